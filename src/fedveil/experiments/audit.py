"""Audit a configuration: play it again and again with and without one client, and see what others learn of that.

The same attacks always run against the federation without its defence too: an attack that fails there says nothing
about the defence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, Protocol

from fedveil.attacks import ATTACKS, Active
from fedveil.attacks.paper import MULTI_ROUND, MULTI_ROUNDS, SINGLE_SHOT, SingleShot
from fedveil.attacks.result import RUN, AuditResult
from fedveil.attacks.statistics import epsilon_ceiling
from fedveil.errors import FieldError, nearest, require_count
from fedveil.experiments.audit_folder import AuditFolder
from fedveil.experiments.audit_paper import play_multi_round, play_single_shot
from fedveil.experiments.audit_results import Judged, judge_all
from fedveil.experiments.config import Config
from fedveil.experiments.replicates import Stage
from fedveil.experiments.replicates_data import WORLDS, Roles
from fedveil.experiments.replicates_record import HONEST, MALICIOUS, Case, never_drawn
from fedveil.experiments.runner import one_thread
from fedveil.experiments.sections import Comparison, Setting
from fedveil.experiments.settings import configure
from fedveil.experiments.setup import prepare, resolve_device
from fedveil.experiments.summary import REPRODUCIBLE, versions

VANILLA = "vanilla"
NAMES = (*ATTACKS, SINGLE_SHOT, MULTI_ROUND)
LEAST, REHEARSALS = 4, 8  # runs in each world; rehearsals are half as many as runs, and at least so many


class AuditProgress(Protocol):
    """Is told how an audit goes."""

    def begin(self, steps: int) -> None:
        """So many rounds of blocks of replicates lie ahead."""

    def advance(self, text: str) -> None:
        """One of them is done."""

    def say(self, text: str) -> None:
        """Something that the user should know."""

    def end(self) -> None:
        """It is over, whatever happened."""


class Quiet:
    """Tells nobody."""

    def begin(self, steps: int) -> None:
        """Nothing."""

    def advance(self, text: str) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


@dataclass(frozen=True, eq=False)
class Audit:
    """A finished audit.

    Attributes
    ----------
    values : dict
        What audit.json holds.
    judged : Judged
        Every attack in every setting.
    settings : tuple of str
        The undefended federation first.
    single_shots : list of SingleShot
        The paper's, if asked for.
    multi_rounds : list of AuditResult
        The paper's, if asked for.
    """

    values: dict[str, Any]
    judged: Judged
    settings: tuple[str, ...]
    single_shots: list[SingleShot] = field(default_factory=list)
    multi_rounds: list[AuditResult] = field(default_factory=list)


def audit(
    config: Config,
    out: str | Path | None = None,
    *,
    attacks: Sequence[str] = (),
    replicates: int = 30,
    target: int | None = None,
    attacker: int | None = None,
    shadow: str = "clean",
    world: str = "replace",
    progress: AuditProgress | None = None,
) -> Audit:
    """Measure what a client learns about the participation of another.

    Parameters
    ----------
    config : Config
        Of one run; its ``[compare]`` is not looked at, and the embedded engine plays it.
    out : path, optional
        Where finished replicates, audit.json and the spec go; an interrupted audit goes on there, and one with fewer
        replicates is extended.
    attacks : sequence of str
        Of `NAMES`; without any, all of them.
    replicates : int
        Evaluated runs in each world; half as many more (at least 8) are rehearsals.
    target, attacker : int, optional
        Partitions; by default the first client attacks the last.
    shadow : {"clean", "noisy", "partial", "public"}
        What the adversary holds of the target's data.
    world : {"replace", "remove", "empty"}
        What stands in the target's place.
    progress : AuditProgress, optional
        Is told how it goes.

    Raises
    ------
    FieldError
        If something does not fit, before anything is written.
    ThreatError
        If no adversary of this federation could run an attack that was asked for by name.
    """
    began, progress = perf_counter(), progress or Quiet()
    chosen = tuple(dict.fromkeys(attacks)) or NAMES
    for name in chosen:
        if name not in NAMES:
            raise FieldError("--attack", name, nearest(name, NAMES))
    runs = require_count("--replicates", replicates, least=LEAST)
    config = _plain(config)
    with one_thread():
        stages, roles = _stages(config, target, attacker, shadow, world)
        if attacks:
            _check(stages, chosen)
        cases = _cases(stages, [name for name in chosen if name in ATTACKS], runs, max(REHEARSALS, runs // 2))
        notes = _look_ahead(stages[-1], roles, cases, config)
        folder = AuditFolder(None if out is None else Path(out), config, {**asdict(roles), "seed": config.seed})
        for note in notes:
            progress.say(note)
        folder.begin()
        shots, rounds = _play(stages, roles, cases, chosen, folder, progress)
        wanted = {case: folder.done[case] for case in cases}
        labels = tuple(stage.label for stage in stages)
        delta = config.privacy.budget.delta
        judged = judge_all(wanted, labels, [name for name in chosen if name in ATTACKS], roles, delta)
    after = _afterthoughts(wanted.values())
    for note in after:
        progress.say(note)
    values = {
        "name": config.name,
        **asdict(roles),
        "relation": WORLDS[roles.world],
        "unit": RUN,
        "replicates": runs,
        "rehearsals": max(REHEARSALS, runs // 2),
        "epsilon_ceiling": epsilon_ceiling(runs, delta),
        "published_metrics": {"mode": config.publish.metrics, "text": config.publish.describe()},
        "settings": {label: _about(label, wanted.values()) for label in labels},
        "results": [v.to_dict() for v in judged.verdicts],
        "refused": [asdict(r) for r in judged.refused],
        "paper": {"single_shot": [asdict(s) for s in shots], "multi_round": [r.to_dict() for r in rounds]},
        "notes": notes + after,
        "seed": config.seed,
        "source": REPRODUCIBLE,
        "versions": versions(),
        "seconds": round(perf_counter() - began, 1),
    }
    folder.finish(values)
    return Audit(values, judged, labels, shots, rounds)


def _plain(config: Config) -> Config:
    """One run, on the embedded engine, which plays many at once."""
    changes = {"compare": Comparison(), "engine": "local", "device": resolve_device(config.device)}
    return config.model_copy(update=changes)


def _stages(
    config: Config, target: int | None, attacker: int | None, shadow: str, world: str
) -> tuple[list[Stage], Roles]:
    label = config.privacy.method
    settings = [(label, config)]
    if label != VANILLA:
        settings.insert(0, (VANILLA, configure(config, VANILLA, Setting.model_validate({"method": VANILLA}))))
    setups = [(label, spec, prepare(spec)) for label, spec in settings]
    roles = Roles.of(len(setups[0][2].arguments["clients"]), target, attacker, world, shadow)
    return [Stage(label, spec, setup, roles, config.seed) for label, spec, setup in setups], roles


def _check(stages: Sequence[Stage], chosen: Sequence[str]) -> None:
    """Refuse what was asked for by name and no adversary of the defended federation can do."""
    for name in chosen:
        if name in ATTACKS:
            kind = MALICIOUS if name == Active.name else HONEST
            stages[-1].threat(kind, reference=True).require(name, ATTACKS[name].needs)


def _cases(stages: Sequence[Stage], attacks: Sequence[str], runs: int, rehearsals: int) -> list[Case]:
    kinds = [HONEST] * any(name != Active.name for name in attacks) + [MALICIOUS] * (Active.name in attacks)
    counts = {"rehearsal": rehearsals, "run": runs}
    return [
        Case(stage.label, kind, phase, inside, index)
        for stage in stages
        for kind in kinds
        for phase, count in counts.items()
        for index in range(count)
        for inside in (True, False)
    ]


def _look_ahead(stage: Stage, roles: Roles, cases: Sequence[Case], config: Config) -> list[str]:
    """Refuse what cannot work before anything is written; say what is odd."""
    stage.rehearse_deal()
    notes = list(stage.setup.warnings)
    own = [case for case in cases if case.setting == stage.label and case.inside]
    lost = never_drawn(config, len(stage.setup.arguments["clients"]), roles, own, config.seed)
    if own and len(lost) == len(own):
        accepted = "is in no round's cohort in any run: it never trains; raise rounds or clients_per_round"
        raise FieldError("--target", roles.target, accepted)
    if lost:
        notes.append(f"in {len(lost)} of {len(own)} runs 'with' the target it is in no cohort, and never trains")
    return notes


def _play(
    stages: Sequence[Stage],
    roles: Roles,
    cases: Sequence[Case],
    chosen: Sequence[str],
    folder: AuditFolder,
    progress: AuditProgress,
) -> tuple[list[SingleShot], list[AuditResult]]:
    work: list[tuple[Stage, list[Case]]] = []
    for stage in stages:
        for kind in (HONEST, MALICIOUS):
            left = [c for c in cases if (c.setting, c.kind) == (stage.label, kind) and c not in folder.done]
            work += [(stage, left[i : i + stage.block]) for i in range(0, len(left), stage.block)]
    steps = sum(stage.config.rounds for stage, _ in work)
    steps += len(stages) * ((SINGLE_SHOT in chosen) + MULTI_ROUNDS * (MULTI_ROUND in chosen))
    if len(folder.done) and work:
        progress.say(f"going on: {sum(c in folder.done for c in cases)} of {len(cases)} replicates are there")
    shots: list[SingleShot] = []
    rounds: list[AuditResult] = []
    progress.begin(steps)
    try:
        for stage in stages:
            if SINGLE_SHOT in chosen:
                text = f"{stage.label}, {SINGLE_SHOT}"
                shots.append(play_single_shot(stage.label, stage.config, roles, lambda t=text: progress.advance(t)))  # type: ignore[misc]
            if MULTI_ROUND in chosen:
                text = f"{stage.label}, {MULTI_ROUND}"
                rounds.append(play_multi_round(stage.label, stage.config, roles, lambda t=text: progress.advance(t)))  # type: ignore[misc]
        for stage, block in work:
            text = f"{stage.label}, {len(block)} runs, {block[0].kind} adversary"
            folder.add(stage.play(block, lambda t=text: progress.advance(t)))  # type: ignore[misc]
    finally:
        progress.end()
    return shots, rounds


def _afterthoughts(replicates: Any) -> list[str]:
    found = list(replicates)
    notes = []
    lacking = [r for r in found if r.missing]
    if lacking:
        classes = sorted({c for r in lacking for c in r.missing})
        notes.append(
            f"in {len(lacking)} of {len(found)} runs the shadow data lack classes that the target has "
            f"({', '.join(map(str, classes))}): the attacks on them are weaker than with a fuller shadow"
        )
    stopped = [r for r in found if r.stopped]
    if stopped:
        notes.append(f"{len(stopped)} of {len(found)} runs ended early: {stopped[0].stopped}")
    return notes


def _about(label: str, replicates: Any) -> dict[str, Any]:
    own = [r for r in replicates if r.case.setting == label and r.case.kind == HONEST and r.case.inside]
    measured = [r.accuracy for r in own if r.accuracy is not None]
    return {
        "guarantee": own[0].guarantee if own else "",
        "accuracy": fmean(measured) if measured else None,
    }
