"""The game of membership: what the server learns about single records, or persons, in runs as they are configured.

Members are the clients' training records; half of what the clients hold out are non-members, the other half the
adversary's reference. A person is in with all her records, or out with all; her score is their mean. Each run is
judged by itself; runs differ in the seed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy
import torch
from torch import Tensor

from fedveil.attacks import ServerView, Verdict
from fedveil.attacks.membership import (
    by_class,
    by_round_and_client,
    confidence,
    fed_mia,
    guess,
    loss_of_confidence,
    same_classes,
)
from fedveil.attacks.membership.judge import RATES, figures_of
from fedveil.attacks.statistics import auc, runs_for_rate
from fedveil.audit.game import GAMES, Judgement, Refused
from fedveil.audit.settings import Planned, settings_of
from fedveil.audit.shadows import SHADOWED, ShadowView
from fedveil.config import Config
from fedveil.engines.probe import Seen
from fedveil.errors import FedVeilError, FieldError, nearest, require_count
from fedveil.grid import Cell, Finished
from fedveil.learning import ClientData
from fedveil.runs.deal import deal_out, split_clients
from fedveil.runs.prepare import Setup, prepare

# What is measured: its unit, and what guessing reaches.
ATTACKS: dict[str, str] = {
    "loss": "AUC",
    "loss-trajectory": "AUC",
    "fedmia": "AUC",
    "fedmia-by-class": "AUC",
    "fedmia-same-classes": "AUC",
    "source": "top-1 accuracy less chance",
    "person-loss": "AUC",
    "person-loss-trajectory": "AUC",
    **SHADOWED,
}


BY_PERSON = ("person-loss", "person-loss-trajectory")
BY_CLIENT = ("fedmia", "fedmia-by-class", "fedmia-same-classes")  # attack each client by itself


class MembershipView:
    """A probe that keeps what the server sees and, after the run, says how well each attack did.

    Clients that did not reply in every round are left out.
    """

    name = "membership"
    figures: Collection[str] = ()

    def begin(self, setup: Setup) -> None:
        """Take the records in question; see `fedveil.runs.judging.Judge`."""
        self._clients: Sequence[ClientData] = setup.arguments["clients"]
        self._view, self._globals, self._setup = ServerView(), list[Tensor](), setup

    def load(self, setup: Setup) -> tuple[int, int]:
        return setup.config.rounds * (len(setup.dealt.clients) + 1), 0

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """One round."""
        self._globals.append(seen.models[0])
        self._view(seen)
        return {}

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """``figures`` by attack, and why others were ``refused``."""
        return [judge._concluded() for judge in judges]

    def _concluded(self) -> dict[str, Any]:
        found: dict[str, Any] = figures_of({})
        refused: dict[str, str] = {}
        try:
            found = self._judge(refused)
        except FedVeilError as error:
            refused |= {name: str(error) for name in ATTACKS if name not in SHADOWED}
        return {**found, "refused": refused}

    def _judge(self, refused: dict[str, str]) -> dict[str, Any]:
        partitions, table = by_round_and_client(self._view.received)
        held = [self._clients[p] for p in partitions]
        x, y = torch.cat([c.x for c in held]), torch.cat([c.y for c in held])
        owner = torch.repeat_interleave(torch.arange(len(held)), torch.tensor([len(c.x) for c in held]))
        apart = [(c.test_x, c.test_y) for c in held if c.test_x is not None and c.test_y is not None]
        if not apart:
            raise FieldError("data.holdout", 0, "non-members are what clients hold out: set it")
        out_x, out_y = torch.cat([a for a, _ in apart]), torch.cat([b for _, b in apart])
        records, labels = torch.cat([x, out_x[::2], out_x[1::2]]), torch.cat([y, out_y[::2], out_y[1::2]])
        n, m = len(x), len(out_x[::2])
        tools = self._setup.learner.model, self._setup.learner.layout
        whole = -loss_of_confidence(confidence(*tools, torch.stack(self._globals), records, labels))
        odds = torch.stack([confidence(*tools, torch.stack([r.model for r in row]), records, labels) for row in table])
        each = dict[str, list[tuple[Tensor, Tensor]]]()
        own = [(owner == client).nonzero().flatten() for client in range(len(held))]
        try:
            if few := [partition for partition, mine in zip(partitions, own, strict=True) if len(mine) < 2]:
                raise FieldError("clients", few[:5], "have too few training records: two of each are asked for")
            plain = [fed_mia(odds[..., : n + m], client) for client in range(len(held))]
            each["fedmia"] = [(scores[mine], scores[n:]) for scores, mine in zip(plain, own, strict=True)]
            each["fedmia-same-classes"] = []
            for scores, mine in zip(plain, own, strict=True):
                with suppress(FieldError):  # of this client, too few non-members have the members' classes
                    alike = n + same_classes(y[mine], labels[n : n + m])
                    each["fedmia-same-classes"].append((scores[mine], scores[alike]))
            scaled = by_class(odds[..., : n + m], labels[: n + m], odds[..., n + m :], labels[n + m :])
            by = [fed_mia(scaled, client) for client in range(len(held))]
            each["fedmia-by-class"] = [(scores[mine], scores[n:]) for scores, mine in zip(by, own, strict=True)]
        except FieldError as error:
            refused |= {name: str(error) for name in BY_CLIENT if name not in each}
        mean = whole.mean(0)
        pairs = {"loss": (whole[-1, :n], whole[-1, n : n + m]), "loss-trajectory": (mean[:n], mean[n : n + m])}
        if any(c.person is None or c.test_person is None for c in held):
            refused |= dict.fromkeys(BY_PERSON, "clients do not say whose their records are: see data.person")
        else:
            who, others = (torch.cat([getattr(c, field) for c in held]) for field in ("person", "test_person"))
            others = torch.cat([others[::2], others[1::2]])
            away = ~torch.isin(others, who)  # of two hospitals: in at one of them is in
            for name, scores in zip(BY_PERSON, (whole[-1], mean), strict=True):
                pairs[name] = of_people(scores[:n], who), of_people(scores[n:][away], others[away])
        for name, found in each.items():
            if found:
                inside, outside = zip(*found, strict=True)
                pairs[name] = torch.cat(inside), torch.cat(outside)
        told = figures_of(pairs)
        for name, found in each.items():
            if found:  # mean over the clients: each is attacked by itself
                told["figures"][name] = float(np.mean([auc(inside, outside) for inside, outside in found]))
            else:
                refused[name] = "no client has enough non-members of its members' classes"
        right = float((guess(odds[..., :n].mean(0)) == owner).double().mean())
        told["figures"]["source"] = right - 1 / len(held)
        return told


def of_people(scores: Tensor, person: Tensor) -> Tensor:
    """The mean score of each person's records [N]; `person` says whose they are."""
    owner = torch.unique(person, return_inverse=True)[1]
    return torch.bincount(owner, scores.double()) / torch.bincount(owner)


@dataclass(frozen=True, eq=False)
class MembershipAudit(Judgement):
    """What the game found.

    Attributes
    ----------
    roc : dict of str to dict
        By setting and attack, false and true positive rates of the first run, for logarithmic axes.
    """

    roc: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)


@GAMES.register("membership")
@dataclass(frozen=True, eq=False)
class MembershipGame:
    """What an honest-but-curious server learns about single records, or persons; see `ATTACKS`.

    Parameters
    ----------
    config, compare
        See `ParticipationGame`.
    attacks : tuple of str
        Of `ATTACKS`; without any, all that need no shadow models; those on persons where persons are protected.
    replicates : int
        Runs of each setting, under seeds of their own; from 3 on there is an interval.
    """

    config: Config
    compare: bool = False
    attacks: tuple[str, ...] = ()
    replicates: int = 3

    name: ClassVar[str] = "membership"
    known: ClassVar[Collection[str]] = ATTACKS
    together: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse what is unknown."""
        for name in self.attacks:
            if name not in ATTACKS:
                raise FieldError("--attack", name, nearest(name, ATTACKS))
        require_count("--replicates", self.replicates)

    def question(self) -> dict[str, Any]:
        return {"attacks": list(self.chosen), "replicates": self.replicates, "seed": self.config.seed}

    @property
    def chosen(self) -> tuple[str, ...]:
        """The attacks that were asked for, or all that need no shadow models."""
        people = self.config.privacy.options.get("unit") == "person"
        left_out = (*SHADOWED, *(() if people else BY_PERSON))
        return tuple(dict.fromkeys(self.attacks)) or tuple(name for name in ATTACKS if name not in left_out)

    @property
    def _probes(self) -> tuple[MembershipView | ShadowView, ...]:
        shadowed = [name in SHADOWED for name in self.chosen]
        return (MembershipView(),) * (not all(shadowed)) + (ShadowView(),) * any(shadowed)

    @cached_property
    def settings(self) -> list[Planned]:
        """The undefended federation first; settings that match another's sigma are left out."""
        return [planned for planned in settings_of(self.config, self.compare) if not planned.matches]

    @cached_property
    def of_run(self) -> dict[tuple[str, int], Cell]:
        """The cell of every run."""
        found = {}
        for planned in self.settings:
            for i in range(self.replicates):
                config = planned.config.model_copy(update={"seed": self.config.seed + i})
                found[planned.label, i] = Cell(planned.label, config, self._probes)
        return found

    def check(self) -> list[str]:
        """Refuse data without classes, or without records held out."""
        setup = prepare(self.settings[-1].config)
        if setup.dataset.task != "classification":
            raise FieldError("data.name", self.config.data.name, f"is a {setup.dataset.task}; records need a class")
        if not self.config.data.holdout:
            raise FieldError("data.holdout", 0, "non-members are what clients hold out: set it")
        if asked := [name for name in self.chosen if name in BY_CLIENT]:
            for i in range(self.replicates):
                self._require_records(self.config.seed + i, asked)
        return list(setup.warnings)

    def _require_records(self, seed: int, asked: Sequence[str]) -> None:
        """Refuse a deal that leaves a client too few records to be attacked by itself: its run would tell nothing."""
        clients = deal_out(self.config.data, seed).clients
        if self.config.stopping is not None:
            clients, _ = split_clients(clients, self.config.stopping.clients, seed)
        few = [i for i, client in enumerate(clients) if client.examples < 2]
        if few:
            accepted = (
                f"under seed {seed}, leaves clients {few[:5]} fewer than two training records, which "
                f"{', '.join(asked)} ask for: raise data.min_size, or name other attacks, as --attack loss"
            )
            raise FieldError("data.partition", self.config.data.partition, accepted)

    def cells(self) -> list[Cell]:
        return list(self.of_run.values())

    def judge(self, finished: Finished) -> MembershipAudit:
        """One verdict an attack and setting, over runs."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        refused: dict[tuple[str, str], list[str]] = {}
        roc: dict[str, dict[str, list[list[float]]]] = {}
        trusted: list[str] = []
        for (label, run), cell in self.of_run.items():
            values = finished.outcomes[cell.key].summary.values
            if values["trust"] == "central" and label not in trusted:
                trusted.append(label)
            for name in self.chosen:
                told = values["concluded"][(ShadowView if name in SHADOWED else MembershipView).name]
                if name in told["figures"]:
                    one = {key: told[key][name] for key in ("figures", "rates", "others") if name in told[key]}
                    found.setdefault((label, name), []).append(one)
                    if name in told["roc"]:
                        roc.setdefault(label, {}).setdefault(name, told["roc"][name])
                else:
                    why = told["refused"].get(name, "was not played")
                    refused.setdefault((label, name), []).append(f"under seed {self.config.seed + run}: {why}")
        undefended = self.settings[0].label
        bare = {n: float(np.mean([o["figures"] for o in v])) for (label, n), v in found.items() if label == undefended}
        verdicts = [
            _over_runs(label, name, values, bare.get(name), refused.get((label, name), ()))
            for (label, name), values in found.items()
        ]
        lines = [Refused(name, label, why[0]) for (label, name), why in refused.items() if (label, name) not in found]
        notes = [
            f"{label}: the server is trusted and sees clear updates; only attacks on the global model are an outsider's"
            for label in trusted
        ]
        values = {"results": [v.to_dict() for v in verdicts], "replicates": self.replicates, "roc": roc}
        return MembershipAudit(verdicts, lines, values, notes, roc)


def _over_runs(
    label: str, name: str, runs: Sequence[Mapping[str, Any]], bare: float | None, refused: Sequence[str]
) -> Verdict:
    """The mean over runs, with Student's interval from three runs on; `refused` says which are not in it, and why."""
    values = [float(one["figures"]) for one in runs]
    unit, point, n = ATTACKS[name], float(np.mean(values)), len(values)
    half, notes, details = 0.0, [], {}
    if n >= 3:
        half = float(scipy.stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5)
    else:
        notes.append("no interval: three runs are the least for one")
    if refused:
        notes.append(f"{len(refused)} of {len(refused) + n} runs are not in it; {refused[0]}")
    if all("rates" in one for one in runs):
        for alpha in RATES:
            rates = [one["rates"].get(f"{alpha:g}") for one in runs]
            if None in rates:
                others = min(one["others"] for one in runs)
                notes.append(f"TPR at FPR {alpha:g} needs {runs_for_rate(alpha)} non-members; there are {others}")
            else:
                details[f"TPR at FPR {alpha:g}"] = float(np.mean(rates))
    return Verdict(
        attack=name,
        setting=label,
        figure=unit,
        point=point,
        low=point - half,
        high=point + half,
        n=n,
        replication="one run",
        without_defence=bare,
        valid=None if bare is None else bare > (0.55 if unit == "AUC" else 0.05),
        threat="honest-but-curious server",
        details=details,
        notes=notes,
    )
