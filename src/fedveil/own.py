"""Comparisons and audits of a federation of one's own: a function makes it, for the clients, method and seed given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedveil.attacks.observation import Knowledge, Observation, ThreatModel
from fedveil.attacks.participation import (
    CalibratedLoss,
    LikelihoodRatio,
    Loss,
    Participation,
    SequentialEvidence,
    judge,
)
from fedveil.attacks.statistics import CONFIDENCE, EpsilonBound, joint_bound
from fedveil.audit.game import Judgement, game_of, play
from fedveil.audit.participation import REHEARSALS
from fedveil.config import Config, load
from fedveil.engines import Federation, RoundRecord
from fedveil.engines.assembly import Privacy, as_client, resolve_method
from fedveil.errors import FieldError, require_count, require_delta, require_rounds
from fedveil.gdp import rounded_down
from fedveil.grid.comparison import compare as compare_settings
from fedveil.grid.comparison import named
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.metrics import task_of
from fedveil.methods.publishing import Publishing
from fedveil.runs.runner import Progress, Silent
from fedveil.runs.summary import REPRODUCIBLE, Row, Summary, core_of, guarantees_of, row_of

Clients = Sequence[Any]
Make = Callable[..., Federation]  # (clients, method, seed), and local= where a setting has its own
Setting = Privacy | None | tuple[Privacy | None, LocalTraining]


def compare(
    what: Make | Config | str | Path,
    clients: Clients | None = None,
    settings: Mapping[str, Setting] | None = None,
    *,
    rounds: int | None = None,
    seeds: int = 1,
    delta: float = 1e-5,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Compared:
    """Compare privacy settings side by side.

    Parameters
    ----------
    what : callable, Config or path
        ``make(clients, method, seed) -> Federation``, or a configuration with ``[compare]``, which needs no more.
    clients : sequence
        As for `Federation`; handed to `make`.
    settings : mapping of str to method
        By label, what `Federation` takes as its method; None: no privacy. A pair ``(method, LocalTraining(...))`` gives
        the setting its own training: `what` is called with ``local=`` then. All are checked before the first run.
    rounds : int
        Of each run.
    seeds : int
        Repetitions under seeds 0, 1, ... (of a configuration: its own seed and those that follow).
    delta : float
        At which an epsilon is stated.
    out : path, optional
        Of a configuration: where its runs are kept.
    progress : Progress, optional
        Is told how it goes; by default a bar on a terminal, and nobody elsewhere.

    Returns
    -------
    Compared
        Printed, it is the table of ``fedveil compare``.
    """
    if isinstance(what, Config | str | Path):
        config = what if isinstance(what, Config) else load(str(what))
        return Compared(tuple(compare_settings(config, out, seeds=seeds, progress=progress or shown())))
    for name, value in (("clients", clients), ("settings", settings), ("rounds", rounds)):
        if not value:
            raise FieldError(name, value, "is needed beside a function: compare(make, clients, settings, rounds=10)")
    if not isinstance(settings, Mapping):
        raise FieldError("settings", type(settings).__name__, 'must name each: {"no privacy": None, "mine": method}')
    if out is not None:
        raise FieldError("out", str(out), "is for configurations; what a function makes has no file to run it again by")
    planned, delta = require_rounds("rounds", rounds), require_delta("delta", delta)
    for label, given in settings.items():
        with named(label):
            _made(what, clients or (), given, 0)
    repeated = range(require_count("seeds", seeds))
    plans = [(label, given, seed) for label, given in settings.items() for seed in repeated]
    going, found = progress or shown(), []
    for label, given, s in plans:
        found.append(_played(_made(what, clients or (), given, s), label, planned, s, delta, going))
    return Compared(tuple(found))


@dataclass(frozen=True)
class Compared(Sequence[Summary]):
    """Finished runs, setting by setting, seed by seed.

    Attributes
    ----------
    summaries : tuple of Summary
        The runs.
    """

    summaries: tuple[Summary, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.summaries[index]

    def __len__(self) -> int:
        return len(self.summaries)

    def __str__(self) -> str:
        """The table, and what has to be said beside it."""
        from rich.console import Console

        from fedveil.report.tables import comparison_notes, comparison_tables

        console = Console(width=180, no_color=True)
        with console.capture() as text:
            for table in comparison_tables(self.summaries, console.width):
                console.print(table)
            for note in comparison_notes(self.summaries):
                console.print(note, markup=False, highlight=False)
        return text.get()


def _made(make: Make, clients: Clients, given: Setting, seed: int) -> Federation:
    method, local = given if isinstance(given, tuple) else (given, None)
    return make_one(make, clients, method, seed, **({} if local is None else {"local": local}))


def shown() -> Progress:
    """A bar on a terminal, and nothing elsewhere."""
    from rich.console import Console

    from fedveil.report.progress import progress_for

    console = Console(stderr=True)
    return progress_for(console) if console.is_terminal else Silent()


def make_one(make: Make, clients: Clients, method: Privacy | None, seed: int, **more: LocalTraining) -> Federation:
    """Call a user's function, and refuse what it must not return."""
    written = "lambda clients, method, seed: fv.Federation(..., clients=clients, method=method, seed=seed)"
    try:
        signature(make).bind(clients, method, seed, **more)
    except TypeError as error:
        raise FieldError("make", getattr(make, "__name__", "a function"), f"{error}; write {written}") from error
    found = make(clients, method, seed, **more)
    if not isinstance(found, Federation):
        raise FieldError("make", type(found).__name__, f"must return a Federation: {written}")
    if method is not None and found.method == resolve_method(None) != resolve_method(method):
        raise FieldError("make", type(method).__name__, f"does not hand its method on: write {written}")
    return found


def _played(federation: Federation, label: str, rounds: int, seed: int, delta: float, progress: Progress) -> Summary:
    """One run, summed up as a run of a configuration would be."""
    rows: list[Row] = []
    its = federation

    def on_round(record: RoundRecord) -> None:
        rows.append(row_of(record, its.method, its.layout, its.client_sides))
        progress.advance(rows[-1])

    progress.begin(f"{label}, seed {seed}", 0, rounds)
    try:
        history = its.run(rounds, on_round)
    finally:
        progress.end()
    guarantee, parties = guarantees_of(its.method, its.books(), delta)
    secure = its.source.deployable
    return Summary(
        {
            **core_of(label, its.method, its.layout, rows, guarantee, delta),
            "task": "classification" if task_of(its.clients[0].y) == "classes" else "regression",
            "guarantees": parties,
            "rounds_planned": rounds,
            "stopped": history.stopped,
            "clients": len(its.clients),
            "examples": int(median(c.examples for c in its.clients)),
            "published_metrics": {"text": Publishing().describe()},
            "derived_from": "",
            "data": {"name": "your clients", "note": "", "warnings": list(its.warnings.said.values())},
            "seed": seed,
            "source": "secure" if secure else REPRODUCIBLE,
        },
        rows,
    )


def audit(
    what: Make | Config | str | Path,
    clients: Clients | None = None,
    method: Privacy | None = None,
    *,
    rounds: int | None = None,
    replicates: int | None = None,
    target: int = -1,
    instead: Any = None,
    reference: Any = None,
    delta: float = 1e-5,
    progress: Progress | None = None,
    **options: Any,
) -> OwnAudit | Judgement:
    """Measure how well whoever receives every model tells whether one client takes part, with and without `method`.

    The world without the target is the guarantee's: a client without examples (zero-out, and where nothing is promised
    for a client), with those of `instead` or of another client (replace-one), or no client (add/remove). Rehearsals,
    half as many as the runs and at least 8, fix thresholds and weights.

    Parameters
    ----------
    what : callable, Config or path
        ``make(clients, method, seed) -> Federation``, or a configuration: `options` are then those of
        `fedveil.audit.game_of`, and ``out`` for a folder.
    clients : sequence
        As for `Federation`.
    method : optional
        What protects the clients. The same attacks are run against the federation without it too.
    rounds : int
        Of each run.
    replicates : int, optional
        Runs in each world; default: 10, and for a configuration what its game has.
    target : int
        Who is asked about; the attacker holds its training examples.
    instead : client, optional
        Takes the target's place; its examples have to be alike.
    reference : client, optional
        Examples on which nobody trains, for the calibrated attacks. Default: the other clients' held-out ones.
    delta : float
        Of the epsilons.
    progress : Progress, optional
        Is told how it goes; by default a bar on a terminal, and nobody elsewhere.
    """
    going = progress or shown()
    if isinstance(what, Config | str | Path):
        config = what if isinstance(what, Config) else load(str(what))
        out = options.pop("out", None)
        asked = options if replicates is None else {"replicates": replicates, **options}
        return play(game_of(config, **asked), out, going)
    for name, value in (("clients", clients), ("rounds", rounds)):
        if not value:
            raise FieldError(name, value, "is needed beside a function: audit(make, clients, method, rounds=10)")
    if options:
        raise FieldError(
            next(iter(options)), options[next(iter(options))], "is for configurations alone: leave it out here"
        )
    held = [as_client(c, f"clients[{i}]") for i, c in enumerate(clients or ())]
    if not -len(held) <= target < len(held):
        raise FieldError("target", target, f"there are clients 0 to {len(held) - 1}")
    where = range(len(held))[target]
    shadow, others = held[where], [*held[:where], *held[where + 1 :]]
    known = _held_out(others) if reference is None else as_client(reference, "reference")
    relation = _relation(what, held, method) if instead is None else "replace-one"
    stand_in = held[where - 1] if instead is None else as_client(instead, "instead")
    if relation == "zero-out":
        stand_in = ClientData(shadow.x[:0], shadow.y[:0])
    without = others if relation == "add/remove" else [*held[:where], stand_in, *held[where + 1 :]]
    worlds = {True: held, False: without}
    runs, planned = (
        require_count("replicates", 10 if replicates is None else replicates, least=4),
        require_rounds("rounds", rounds),
    )
    found, promised, joint = list[Participation](), "", EpsilonBound(0.0, 0.0, delta, CONFIDENCE)
    for label, protects in {"no defence": None, "with the method": method}.items():
        if label == "no defence" or method is not None:
            going.begin(label, 0, 2 * (runs + max(REHEARSALS, runs // 2)))
            try:
                traces, promised = _traces(what, worlds, protects, planned, runs, shadow, known, delta, going)
            finally:
                going.end()
            verdicts, joint = _judged(traces, label, delta, relation)
            found += verdicts
    return OwnAudit(tuple(found), where, relation, promised, joint)


@dataclass(frozen=True)
class OwnAudit:
    """What attacks on participation reached.

    Attributes
    ----------
    verdicts : tuple of Participation
        Without the method first.
    target : int
        The client in question.
    relation : str
        Between the two worlds.
    promised : str
        The method's guarantee.
    measured : EpsilonBound
        What all attacks against the method prove together.
    """

    verdicts: tuple[Participation, ...]
    target: int
    relation: str
    promised: str
    measured: EpsilonBound

    def __str__(self) -> str:
        """The answer, a line an attack, then what was promised beside what was measured."""
        from fedveil.report.words import answered

        own = [v for v in self.verdicts if v.setting == self.verdicts[-1].setting]
        told = answered(own[0].setting, own, max(own, key=lambda v: v.point))
        lines = [f"Can others tell whether client {self.target} takes part? {told}"]
        lines += [
            f"{v.setting}, {v.attack}: AUC {v.point:.3f} ({v.low:.2f}-{v.high:.2f}) over {v.n} runs"
            for v in self.verdicts
        ]
        measured = f"epsilon >= {rounded_down(self.measured.lower)} of at most {self.measured.ceiling:.2f} provable"
        lines.append(f"promised: {self.promised}; measured: {measured} ({self.relation}, 95%)")
        return "\n".join(lines)


def _relation(make: Make, clients: Clients, method: Privacy | None) -> str:
    """Of what a method promises a client, after a round of it."""
    found = make_one(make, clients, method, 0).run(1).guarantee
    return found.relation if found.proven and found.unit not in ("record", "person") else "zero-out"


def _traces(
    make: Make,
    worlds: Mapping[bool, Clients],
    method: Privacy | None,
    rounds: int,
    runs: int,
    shadow: ClientData,
    reference: ClientData | None,
    delta: float,
    progress: Progress,
) -> tuple[dict[tuple[str, bool], dict[str, Tensor]], str]:
    """Scores [runs, R] of each attack, by phase and world, and the guarantee of a run."""
    scores: dict[tuple[str, bool], dict[str, list[Tensor]]] = {}
    promised = ""
    for phase, first, count in (("rehearsal", 0, max(REHEARSALS, runs // 2)), ("run", 10**6, runs)):
        for inside, clients in worlds.items():
            own = scores.setdefault((phase, inside), {})
            for seed in range(first, first + count):
                federation = make_one(make, clients, method, 2 * seed + inside)
                broadcasts = [federation.models.clone()]
                history = federation.run(rounds, lambda _: broadcasts.append(federation.models.clone()))  # noqa: B023
                progress.advance(
                    row_of(history.rounds[-1], federation.method, federation.layout, federation.client_sides)
                )
                promised = history.guarantee.describe(delta)
                for name, trace in _scores(federation, torch.stack(broadcasts), shadow, reference).items():
                    own.setdefault(name, []).append(trace)
    least = min(len(t) for own in scores.values() for ts in own.values() for t in ts)
    cut = {key: {n: torch.stack([t[:least] for t in ts]) for n, ts in own.items()} for key, own in scores.items()}
    return cut, promised


def _scores(
    federation: Federation, models: Tensor, shadow: ClientData, reference: ClientData | None
) -> dict[str, Tensor]:
    """One score a round of the attacks that need nothing but models and examples."""
    if federation.own_buffers:
        accepted = "these attacks model no client's own statistics: mend the model (fedveil.learning.mend)"
        raise FieldError("buffers", "keep", accepted)
    learner, outsider = federation.learner, None if reference is None else models[0, 0]
    known = Knowledge(learner.model, federation.layout, learner.local.loss, shadow, reference, outsider)
    threat = ThreatModel("semi-honest client", frozenset({"models", "shadow", "reference"}))
    kinds: list[type[Loss | CalibratedLoss]] = [Loss] if reference is None else [Loss, CalibratedLoss]
    return {kind.name: kind(known, threat).run(Observation(models, len(federation.clients))) for kind in kinds}


def _judged(
    traces: Mapping[tuple[str, bool], Mapping[str, Tensor]], setting: str, delta: float, relation: str
) -> tuple[list[Participation], EpsilonBound]:
    found, scores = [], []
    places = [(phase, inside) for phase in ("rehearsal", "run") for inside in (True, False)]
    about: dict[str, Any] = {"delta": delta, "relation": relation, "threat": "semi-honest client"}
    for name in traces["run", True]:
        last = [Loss.evidence(traces[place][name])[:, -1].numpy() for place in places]
        found.append(judge(name, setting, last[2], last[3], rehearsed=(last[0], last[1]), **about))
        scores.append((last[2], last[3], float(found[-1].threshold or 0.0)))
    if CalibratedLoss.name in traces["run", True]:
        stacked = [LikelihoodRatio.stacked(traces[place]) for place in places]
        model = SequentialEvidence.fit(stacked[0], stacked[1], steady=LikelihoodRatio.steady)
        last = [model.weigh(s)[:, -1].numpy() for s in stacked[2:]]
        found.append(judge(LikelihoodRatio.name, setting, last[0], last[1], threshold=0.0, **about))
        scores.append((last[0], last[1], 0.0))
    return found, joint_bound(scores, delta=delta)


def _held_out(clients: Sequence[ClientData]) -> ClientData | None:
    """What the given clients hold out, together."""
    parts = [(c.test_x, c.test_y) for c in clients if c.test_x is not None and c.test_y is not None]
    return ClientData(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])) if parts else None
