"""Membership game: the server guesses which records or persons were in a run's training data.

Members are the clients' training records. Half of the held-out records are non-members, the other half are the
adversary's reference. A person is in or out with all her records, and her score is their mean. Each run is judged
alone; runs differ in the seed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.engines import Seen
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData
from fedveil_lab.attacks import Received, Verdict
from fedveil_lab.attacks.membership import (
    MEMBERSHIPS,
    ServerRecords,
    by_round_and_client,
    confidence,
    loss_of_confidence,
)
from fedveil_lab.attacks.membership.records import Pairs
from fedveil_lab.attacks.statistics import runs_for_rate, student_interval
from fedveil_lab.attacks.verdict import ALPHAS, beats_guessing
from fedveil_lab.games.game import GAMES, Attacking, Judgement, Planned, Refused, settings_of
from fedveil_lab.games.shadows import RecordsView, ShadowView, held_out, shadowed
from fedveil_lab.grid import Cell, Finished
from fedveil_lab.runs.deal import deal_out, split_clients
from fedveil_lab.runs.prepare import Setup, prepare

UNITS = {"source": "top-1 accuracy less chance"}  # of the others, an AUC
BY_PERSON = ("person-loss", "person-loss-trajectory")
BY_CLIENT = ("fedmia", "fedmia-by-class", "fedmia-same-classes")  # attack each client by itself


class MembershipView(RecordsView):
    """Probe that keeps what the server sees, and judges each attack after the run.

    Clients that did not answer in every round are left out.
    """

    name = "membership"
    shadowed = False

    def begin(self, setup: Setup) -> None:
        super().begin(setup)
        self._globals = list[Tensor]()

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        self._globals.append(seen.models[0])
        self._view(seen)
        return {}

    def _attacked(self, attack: Callable[[ServerRecords], Pairs | float]) -> Pairs | float:
        return attack(self._records)

    @cached_property
    def _records(self) -> ServerRecords:
        partitions, table = by_round_and_client(self._view.received)
        tools = self._setup.learner.model, self._setup.learner.layout
        return records_of(
            [self._clients[p] for p in partitions], tools, torch.stack(self._globals), table
        )


def records_of(
    held: Sequence[ClientData],
    tools: tuple[nn.Module, Layout],
    models: Tensor,
    table: Sequence[Sequence[Received]] | None,
) -> ServerRecords:
    """Collect the server's view of clients' records: training records are members, half of the held-out ones non-members.

    Parameters
    ----------
    held : sequence of ClientData
        Data of the K clients.
    tools : (Module, Layout)
        Model and its layout.
    models : Tensor
        Global model after each round, [R, d].
    table : sequence of sequence of Received, optional
        What each client sent, [rounds][K]. None if it was not kept; then attacks that need it cannot be played.
    """
    out_x, out_y = held_out(held)
    x = torch.cat([*(client.x for client in held), out_x[::2], out_x[1::2]])
    y = torch.cat([*(client.y for client in held), out_y[::2], out_y[1::2]])
    counts = torch.tensor([len(client.x) for client in held])
    owner = torch.repeat_interleave(torch.arange(len(held)), counts)
    losses = -loss_of_confidence(confidence(*tools, models, x, y))
    odds = torch.zeros(0, len(held), len(y))
    if table is not None:
        by_round = []
        for row in table:
            sent = torch.stack([received.model for received in row])
            by_round.append(confidence(*tools, sent, x, y))
        odds = torch.stack(by_round)
    who, others = list[Tensor](), list[Tensor]()
    for client in held:
        if client.person is not None and client.test_person is not None:
            who.append(client.person)
            others.append(client.test_person)
    persons = None
    if len(who) == len(held):
        outside = torch.cat(others)
        persons = torch.cat(who), torch.cat([outside[::2], outside[1::2]])
    return ServerRecords(losses, odds, y, owner, len(out_x[::2]), persons)


@GAMES.register("membership")
@dataclass(frozen=True, eq=False)
class MembershipGame(Attacking):
    """Membership game of an honest-but-curious server that looks for records or persons.

    Parameters
    ----------
    config, compare
        See `ParticipationGame`.
    attacks : tuple of str
        Names from `MEMBERSHIPS`. Default: all that need no shadow models, on persons if persons are protected.
    replicates : int
        Number of runs per setting, each with its own seed; 3 or more give an interval.
    """

    replicates: int = 3

    name: ClassVar[str] = "membership"
    known: ClassVar[Collection[str]] = MEMBERSHIPS

    def usual(self) -> list[str]:
        """List the attacks that need no shadow models and can be played on every client."""
        left_out = list[str]()
        if self.config.privacy.options.get("unit") != "person":
            left_out += BY_PERSON
        if self.small:
            left_out += BY_CLIENT
        return [name for name in MEMBERSHIPS if name not in left_out and not shadowed(name)]

    @cached_property
    def small(self) -> str:
        """Name the clients with too few records for their own attack; "" if there are none."""
        for seed in range(self.config.seed, self.config.seed + self.replicates):
            clients = deal_out(self.config.data, seed).clients
            if self.config.stopping is not None:
                clients, _ = split_clients(clients, self.config.stopping.clients, seed)
            few = [i for i, client in enumerate(clients) if client.examples < 2]
            if few:
                return f"under seed {seed} clients {few[:5]} have fewer than two training records"
        return ""

    @property
    def _probes(self) -> tuple[MembershipView | ShadowView, ...]:
        asked, probes = set(map(shadowed, self.chosen)), list[MembershipView | ShadowView]()
        if False in asked:
            probes.append(MembershipView())
        if True in asked:
            probes.append(ShadowView())
        return tuple(probes)

    @cached_property
    def settings(self) -> list[Planned]:
        """List the settings, the undefended federation first; those that match another's sigma are left out."""
        every = settings_of(self.config, self.compare)
        return [planned for planned in every if not planned.matches]

    @cached_property
    def of_run(self) -> dict[tuple[str, int], Cell]:
        """Map each setting and run number to its cell."""
        verdicts = {}
        for planned in self.settings:
            for i in range(self.replicates):
                config = planned.config.model_copy(update={"seed": self.config.seed + i})
                verdicts[planned.label, i] = Cell(planned.label, config, self._probes)
        return verdicts

    def check(self) -> list[str]:
        """Refuse data without classes or without held-out records."""
        setup = prepare(self.settings[-1].config)
        task = setup.dealt.dataset.task
        if task != "classification":
            raise FieldError(
                "data.name", self.config.data.name, f"is a {task}; records need a class"
            )
        if not self.config.data.holdout:
            raise FieldError("data.holdout", 0, "non-members are what clients hold out: set it")
        asked = [name for name in self.chosen if name in BY_CLIENT]
        if asked and self.small:
            accepted = f"{self.small}, which {', '.join(asked)} ask for: raise data.min_size, or name other attacks"
            raise FieldError("data.partition", self.config.data.partition, accepted)
        notes = list(setup.warnings)
        if self.small and not self.attacks:
            left_out = ", ".join(sorted(BY_CLIENT))
            notes.append(f"left out: {left_out}, as {self.small}; data.min_size = 3 plays them")
        return notes

    def cells(self) -> list[Cell]:
        return list(self.of_run.values())

    def judge(self, finished: Finished) -> Judgement:
        """Make one verdict per attack and setting, over all runs; ``roc`` has the rates of the first run."""
        scores: dict[tuple[str, str], list[dict[str, Any]]] = {}
        refused: dict[tuple[str, str], list[str]] = {}
        roc: dict[str, dict[str, list[list[float]]]] = {}
        trusted: list[str] = []
        for (label, run), cell in self.of_run.items():
            values = finished.outcomes[cell.key].summary.values
            if values["trust"] == "central" and label not in trusted:
                trusted.append(label)
            for name in self.chosen:
                view = MembershipView.name
                if shadowed(name):
                    view = ShadowView.name
                seen = values["concluded"][view]
                if name not in seen["figures"]:
                    why = f"under seed {self.config.seed + run}: "
                    why += seen["refused"].get(name, "was not played")
                    refused.setdefault((label, name), []).append(why)
                    continue
                one = {}
                for key in ("figures", "rates", "others"):
                    if name in seen[key]:
                        one[key] = seen[key][name]
                scores.setdefault((label, name), []).append(one)
                if name in seen["roc"]:
                    roc.setdefault(label, {}).setdefault(name, seen["roc"][name])
        undefended, verdicts, lines = self.settings[0].label, [], []
        for (label, name), runs in scores.items():
            bare = [float(one["figures"]) for one in scores.get((undefended, name), ())]
            why_not = refused.get((label, name), ())
            verdicts.append(_over_runs(label, name, runs, bare, why_not))
        for (label, name), reasons in refused.items():
            if (label, name) not in scores:
                lines.append(Refused(name, label, reasons[0]))
        notes = [
            f"{label}: the server is trusted and sees clear updates; only attacks on the global model are an outsider's"
            for label in trusted
        ]
        return Judgement(verdicts, lines, {"replicates": self.replicates, "roc": roc}, notes)


def _over_runs(
    label: str,
    name: str,
    runs: Sequence[Mapping[str, Any]],
    bare: Sequence[float],
    refused: Sequence[str],
) -> Verdict:
    """Average an attack's result over runs, with Student's interval for three or more."""
    values = [float(one["figures"]) for one in runs]
    interval, n = student_interval(values), len(values)
    point, notes, details = float(np.mean(values)), list[str](), dict[str, float]()
    if interval is None:
        notes.append("no interval: three runs are the least for one")
    if refused:
        notes.append(f"{len(refused)} of {len(refused) + n} runs are not in it; {refused[0]}")
    if all("rates" in one for one in runs):
        for alpha in ALPHAS:
            rates = [one["rates"].get(f"{alpha:g}") for one in runs]
            if None in rates:
                others = min(one["others"] for one in runs)
                notes.append(
                    f"TPR at FPR {alpha:g} needs {runs_for_rate(alpha)} non-members; there are {others}"
                )
            else:
                details[f"TPR at FPR {alpha:g}"] = float(np.mean(rates))
    without_defence: float | None = None
    valid: bool | None = None
    if bare:
        without_defence = float(np.mean(bare))
        chance = 0.5
        if name in UNITS:
            chance = 0.0
        valid = beats_guessing(student_interval(bare), chance)
    return Verdict.of(
        interval or point,
        attack=name,
        setting=label,
        figure=UNITS.get(name, "AUC"),
        n=n,
        replication="one run",
        without_defence=without_defence,
        valid=valid,
        threat="honest-but-curious server",
        details=details,
        notes=notes,
    )
