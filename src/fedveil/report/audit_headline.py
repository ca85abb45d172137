"""What an audit found, in plain sentences: how well the strongest attack does, what is proven, what may not be read."""

from __future__ import annotations

from itertools import count
from typing import Any

from fedveil.attacks.result import AuditResult
from fedveil.attacks.statistics import epsilon_ceiling
from fedveil.experiments.audit import Audit
from fedveil.experiments.replicates_roles import WORLDS

LITTLE = 0.5  # an epsilon: with runs that cannot even prove this much, that has to be said
MILESTONES = (0.0, 0.5, 1.0, 2.0)


def headline(found: Audit) -> list[str]:
    """A sentence or two on each defence (on the federation itself, if it has none), then on too few runs.

    Where so few runs can prove nothing at all, that is the only sentence.
    """
    judged = {v.result.setting for v in found.judged.verdicts}
    labels = [label for label in found.settings[1:] or found.settings if label in judged]
    if not labels:
        return []
    few = _too_few(found.values)
    hopeless = found.values["epsilon_ceiling"] == 0
    return few if hopeless else [*(_sentence(found, label) for label in labels), *few]


def incomparable(found: Audit) -> list[str]:
    """One line where an epsilon is promised for another relation than the one that was played."""
    values, played = found.values, found.values["relation"]
    others: dict[str, list[str]] = {}
    for label, about in values["settings"].items():
        if about["guarantee_relation"] not in ("", played):
            others.setdefault(about["guarantee_relation"], []).append(label)
    return [
        f"{', '.join(labels)}: the guarantee is for {promised}, the measured epsilon for {played}, so they cannot be "
        f"compared; --out-world {_world_of(promised)} (and another --out) measures {promised}."
        for promised, labels in others.items()
    ]


def fewest_runs(epsilon: float, delta: float) -> int:
    """The fewest runs in each world that can prove more than an epsilon, with one attack."""
    return next(n for n in count(2) if epsilon_ceiling(n, delta) > epsilon)


def _sentence(found: Audit, label: str) -> str:
    plain, defended = found.settings[0], len(found.settings) > 1
    where = f"Against {label}" if defended else "Without a defence"
    own = [v for v in found.judged.verdicts if v.result.setting == label and not v.supposed]
    if not own:
        return f"{where}: nothing was judged on what clients really see."
    counted = [v for v in own if v.result.valid_without_defence or v.result.succeeds]
    if not counted:
        who = f"none of its {len(own)} attacks" if len(own) > 1 else f"not even {own[0].result.attack}, its one attack,"
        what = f"{who} demonstrably tells whether client {found.values['target']} takes part"
        if not defended:
            return f"{where} this audit noticed nothing: {what}."
        return f"{where} this audit could not have noticed anything: {what}, even without the defence."
    best = max(counted, key=lambda v: (v.result.point, v.result.auc.low)).result
    name = f"{best.attack}, the strongest of {len(own)} attacks," if len(own) > 1 else f"the attack {best.attack}"
    verb = "tells" if best.succeeds else "does not demonstrably tell"
    text = (
        f"{where}, {name} {verb} whether client {found.values['target']} takes part: AUC {best.point:.3f} "
        f"(95%: {best.auc.low:.2f}-{best.auc.high:.2f}; .5 is guessing, 1 is certainty)"
    )
    if defended:
        text += f"; {_without(found, best, plain)}"
    return f"{text}. {_proven(found.values, label, len(own))}"


def _without(found: Audit, best: AuditResult, plain: str) -> str:
    """Whether the attack works without the defence."""
    every = [v.result for v in found.judged.verdicts]
    undefended = [r for r in every if (r.attack, r.setting) == (best.attack, plain)]
    if not undefended:
        return "without the defence it could not be run"
    how = "it works" if undefended[0].succeeds else "it does not work"
    too = " too" if undefended[0].succeeds and best.succeeds else ""
    area = undefended[0].auc
    return f"without the defence {how}{too} ({area.point:.3f}, {area.low:.2f}-{area.high:.2f})"


def _proven(values: dict[str, Any], label: str, attacks: int) -> str:
    bound = values["together"].get(label)
    if bound is None:
        return "No error rate was measured, so nothing is proven."
    who = "All attacks together prove" if attacks > 1 else "It proves"
    most = f"at most {bound['ceiling']:.2f}"
    if bound["lower"] > 0:
        return f"{who} epsilon >= {bound['lower']:.2f}, of {most} with so many runs, for {values['relation']}."
    return f"{who} nothing about epsilon ({most} with so many runs)."


def _too_few(values: dict[str, Any]) -> list[str]:
    """How many runs it takes, where there are so few that next to nothing could be proven."""
    runs, ceiling, delta = values["replicates"], values["epsilon_ceiling"], values["delta"]
    if ceiling is None or ceiling >= LITTLE:
        return []
    least, *more = (fewest_runs(epsilon, delta) for epsilon in MILESTONES)
    needed = ", ".join(f"{n} for {epsilon:g}" for n, epsilon in zip(more, MILESTONES[1:], strict=True))
    takes = f"One attack alone can prove an epsilon above 0 from {least} runs in each world, {needed}."
    if ceiling > 0:
        return [f"{runs} runs in each world are few: an epsilon of {ceiling:.2f} at most can be proven. {takes}"]
    return [
        f"This audit could not have noticed anything: with {runs} runs in each world nothing can be proven, and even "
        f"an AUC of 1.000 has an interval that holds .5, so that 'valid: no' means too few runs. {takes}"
    ]


def _world_of(relation: str) -> str:
    """What to play for a relation; the first of the worlds that stand for it."""
    return next(world for world, stands_for in WORLDS.items() if stands_for == relation)
