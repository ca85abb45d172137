"""Audit a configuration: play it again and again with and without one client, and see what others learn of that.

The same attacks always run against the federation without its defence too: an attack that fails there says nothing
about the defence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from fedveil.attacks import ATTACKS
from fedveil.attacks.paper import MULTI_ROUND, SINGLE_SHOT, SingleShot, multi_round, single_shot
from fedveil.attacks.result import RUN, AuditResult
from fedveil.attacks.statistics import epsilon_ceiling
from fedveil.errors import require_count
from fedveil.experiments.audit_folder import AuditFolder
from fedveil.experiments.audit_plan import (
    LEAST,
    check_threats,
    chosen_attacks,
    look_ahead,
    one_run,
    plan_cases,
    plan_settings,
    stage_of,
    with_earlier,
)
from fedveil.experiments.audit_play import AuditProgress, Quiet, play
from fedveil.experiments.audit_results import Judged, Refused, judge_all
from fedveil.experiments.config import Config
from fedveil.experiments.dealing import deal_out
from fedveil.experiments.replicates import Stage
from fedveil.experiments.replicates_record import HONEST, Case, Replicate
from fedveil.experiments.replicates_roles import WORLDS, Roles
from fedveil.experiments.runner import one_thread
from fedveil.experiments.summary import REPRODUCIBLE, versions


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
    colluders: int | None = None,
    shadow: str = "clean",
    world: str = "replace",
    compare: bool = False,
    progress: AuditProgress | None = None,
) -> Audit:
    """Measure what a client learns about the participation of another.

    Parameters
    ----------
    config : Config
        Of one run, or with the settings of a comparison; the embedded engine plays it.
    out : path, optional
        Where finished replicates, audit.json and the spec go. An interrupted audit goes on there; a finished one of
        the same question is extended: its attacks and its number of replicates are kept where fewer are asked for.
    attacks : sequence of str
        Of `audit_plan.NAMES`; without any, all of them.
    replicates : int
        Evaluated runs in each world; half as many more (at least 8) are rehearsals.
    target, attacker : int, optional
        Partitions; by default the first client attacks the last.
    colluders : int, optional
        Clients that pool what they sent, the attacker included; by default 2, where there are so many.
    shadow : {"clean", "noisy", "partial", "public"}
        What the adversary holds of the target's data.
    world : {"replace", "twin", "remove", "empty", "itself"}
        What stands in the target's place.
    compare : bool
        Audit every setting of ``[compare]`` instead of the one of ``[privacy]``.
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
    chosen = chosen_attacks(attacks, config)
    runs = require_count("--replicates", replicates, least=LEAST)
    planned = plan_settings(config, compare)
    with one_thread():
        dealt = deal_out(config.data, config.seed)
        roles = Roles.of(len(dealt.clients), target, attacker, world, shadow, colluders)
        stages = [stage_of(p, roles, config.seed, dealt) for p in planned]
        check_threats(stages, attacks)
        question = {**asdict(roles), "seed": config.seed, "settings": [p.label for p in planned]}
        folder = AuditFolder(None if out is None else Path(out), one_run(config, compare), question)
        try:
            chosen, runs, kept = with_earlier(chosen, runs, folder.earlier())
            cases = plan_cases(planned, [name for name in chosen if name in ATTACKS], runs)
            notes = look_ahead(stages[-1], cases)
            folder.begin()
            for note in [kept, *notes] if kept else notes:
                progress.say(note)
            play(config, planned, stages, cases, chosen, folder, progress)
            found = _judged(config, stages, cases, chosen, folder)
            after = _afterthoughts([folder.done[case] for case in cases])
            for note in after:
                progress.say(note)
            found.values.update(notes=notes + after, seconds=round(perf_counter() - began, 1))
            folder.finish(found.values)
        finally:
            folder.close()
    return found


def _judged(
    config: Config, stages: Sequence[Stage], cases: Sequence[Case], chosen: Sequence[str], folder: AuditFolder
) -> Audit:
    """Figures from finished replicates."""
    delta, roles = config.privacy.budget.delta, stages[0].roles
    labels = tuple(stage.label for stage in stages)
    done = {case: folder.done[case] for case in cases}
    attacks = [name for name in chosen if name in ATTACKS]
    judged = judge_all(done, labels, attacks, roles, delta, config.publish.metrics)
    shots, rounds = _of_the_paper([(name, label) for name in chosen for label in labels], folder, judged)
    runs, rehearsals = ({c.index for c in cases if c.phase == phase} for phase in ("run", "rehearsal"))
    values = {
        "name": config.name,
        **asdict(roles),
        "relation": WORLDS[roles.world],
        "unit": RUN,
        "replicates": len(runs),
        "rehearsals": len(rehearsals),
        "delta": delta,
        "epsilon_ceiling": epsilon_ceiling(len(runs), delta) if runs else None,
        "published_metrics": {"mode": config.publish.metrics, "text": config.publish.describe()},
        "settings": {stage.label: _about(stage, done.values()) for stage in stages},
        "results": [v.to_dict() for v in judged.verdicts],
        "refused": [asdict(r) for r in judged.refused],
        "together": {label: asdict(bound) for label, bound in judged.together.items()},
        "paper": {"single_shot": [asdict(s) for s in shots], "multi_round": [r.to_dict() for r in rounds]},
        "seed": config.seed,
        "source": REPRODUCIBLE,
        "versions": versions(),
    }
    return Audit(values, judged, labels, shots, rounds)


def _of_the_paper(
    asked: Sequence[tuple[str, str]], folder: AuditFolder, judged: Judged
) -> tuple[list[SingleShot], list[AuditResult]]:
    """The paper's statistics by setting; what cannot be computed is refused, with the reason."""
    shots, rounds = [], []
    for name, label in asked:
        losses = folder.paper.get((name, label), ())
        if isinstance(losses, str):
            judged.refused.append(Refused(name, label, losses))
        elif name == MULTI_ROUND:
            rounds.append(multi_round(label, *losses))
        elif name == SINGLE_SHOT:
            [shadow], [aggregated] = losses
            if 0 < shadow < math.inf and math.isfinite(aggregated):
                shots.append(single_shot(label, shadow, aggregated))
            else:
                why = f"the losses are {shadow:g} and {aggregated:g}: there is no share of them"
                judged.refused.append(Refused(name, label, why))
    return shots, rounds


def _afterthoughts(found: Sequence[Replicate]) -> list[str]:
    """What only the finished replicates show."""
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


def _about(stage: Stage, replicates: Iterable[Replicate]) -> dict[str, Any]:
    played = [r for r in replicates if r.case.setting == stage.label]
    played = [r for r in played if r.case.phase == "run"] or played
    played = [r for r in played if r.case.kind == HONEST] or played
    inside, outside = ([r for r in played if r.case.inside is world] for world in (True, False))
    return {
        "method": stage.config.privacy.method,
        "guarantee": inside[0].guarantee if inside else "",
        "guarantee_relation": inside[0].relation if inside else "",
        "accuracy": _mean(r.accuracy for r in inside),
        "sigma": _mean(r.sigma for r in inside),
        "sigma_without_target": _mean(r.sigma for r in outside),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
