"""What an audit found, in one table: how well the strongest attack does, what is proven, and what may not be read."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from fedveil.attacks import Participation
from fedveil.attacks.bounds import epsilon_ceiling
from fedveil.attacks.statistics import Estimate
from fedveil.config.world import world_of
from fedveil.games import Audit
from fedveil.games.game import Refused
from fedveil.games.scoring import Scored
from fedveil.gdp import rounded_down
from fedveil.report.table import NOTHING, Table, grouped_by

LITTLE = 0.5  # an epsilon: with runs that cannot even prove this much, that has to be said
MILESTONES = (0.0, 0.5, 1.0, 2.0)


def in_words(value: Estimate) -> str:
    """A figure with its interval."""
    return f"{value.point:.3f} ({value.low:.2f}-{value.high:.2f})"


def answered(label: str, own: Sequence[Participation], best: Participation | None) -> str:
    """What attacks on a setting found, by the strongest that counts, in a sentence."""
    if best is None:
        return f"{label}: open, none of {len(own)} attacks works here even without a defence."
    answer = "yes" if best.auc.low > 0.5 else "not shown"
    return f"{label}: {answer}, the strongest attack ({best.attack}) has an AUC of {in_words(best.auc)}."


def headline(found: Audit) -> Table | None:
    """The strongest attack against each defence (against the federation itself, if it has none), and what is proven.

    An attack counts if it works without the defence, or evidently against it. None where nothing was judged.
    """
    plain, labels = found.settings[0], found.settings[1:] or found.settings
    every = {(v.attack, v.setting): v for v in found.verdicts}
    rows = []
    for label in labels:
        own, counted, best = _strongest(found, label)
        undefended = None if best is None else every.get((best.attack, plain))
        bound = found.values["together"].get(label)
        cells = [NOTHING if best is None else best.attack, f"{len(counted)} of {len(own)}"]
        cells += [NOTHING if r is None else in_words(r.auc) for r in (best, undefended)[: 1 + (label != plain)]]
        cells.append(NOTHING if bound is None else f"{rounded_down(bound['lower'])} of {bound['ceiling']:.2f}")
        rows.append([label, *cells])
    if not any(setting in labels for _, setting in every):
        return None
    areas = ["AUC (95%)", "without the defence"][: 1 + (labels != found.settings)]
    title = f"Does client {found.values['target']} take part? The strongest attack; .5 is guessing, 1 is certainty"
    numbers = ["attacks that work", *areas, "epsilon >="]
    return Table(["against", "strongest", *numbers], rows, title, numbers, notes=too_few(found.values))


def _strongest(found: Audit, label: str) -> tuple[list[Scored], list[Scored], Scored | None]:
    """What was judged against a setting, what counts of it, and the strongest of these."""
    own = [v for v in found.verdicts if v.setting == label and not v.supposed]
    counted = [r for r in own if r.valid or r.succeeds]
    return own, counted, max(counted, key=lambda r: (r.point, r.auc.low), default=None)


def answer(found: Audit) -> str:
    """The question and its answer for each setting, a sentence each; empty where nothing was judged."""
    labels = found.settings[1:] or found.settings
    lines = [answered(label, own, best) for label in labels for own, _, best in [_strongest(found, label)] if own]
    asked = f"Can client {found.values['attacker']} tell whether client {found.values['target']} takes part?"
    return " ".join([asked, *lines]) if lines else ""


def folded(refused: Sequence[Refused]) -> list[str]:
    """One line for all attacks that were not run, by the reason."""
    reasons = {
        why: dict.fromkeys(r.attack for r in own) for why, own in grouped_by(refused, lambda r: r.reason).items()
    }
    said = "; ".join(f"{', '.join(attacks)} ({reason})" for reason, attacks in reasons.items())
    return [f"not run: {said}"] if said else []


def compared(found: Audit) -> list[str]:
    """What was promised beside what was proven; one line where an epsilon is promised for another relation."""
    values, played = found.values, found.values["relation"]
    others, lines = dict[str, list[str]](), []
    for label, about in values["settings"].items():
        bound = values["together"].get(label)
        if about["guarantee_relation"] not in ("", played):
            others.setdefault(about["guarantee_relation"], []).append(label)
        elif about["guarantee_relation"] and bound is not None:
            proven = f"{rounded_down(bound['lower'])} of {bound['ceiling']:.2f} provable ({played}, 95%)"
            lines.append(f"{label}: promised {about['guarantee']}; measured epsilon >= {proven}.")
    return lines + [
        f"{', '.join(labels)}: the guarantee is for {promised}, the measured epsilon for {played}, so they cannot be "
        f"compared; --out-world {world_of(promised)} (and another --out) measures {promised}."
        for promised, labels in others.items()
    ]


def fewest_runs(epsilon: float, delta: float) -> int:
    """The fewest runs in each world that can prove more than an epsilon, with one attack."""
    return next(n for n in count(2) if epsilon_ceiling(n, delta) > epsilon)


def too_few(values: dict[str, Any]) -> list[str]:
    """How many runs it takes, where there are so few that next to nothing could be proven."""
    runs, ceiling, delta = values["replicates"], values["epsilon_ceiling"], values["delta"]
    if ceiling is None or ceiling >= LITTLE:
        return []
    needed = ", ".join(f"{fewest_runs(epsilon, delta)} for {epsilon:g}" for epsilon in MILESTONES)
    return [
        f"{runs} runs in each world are few: an epsilon of {ceiling:.2f} at most can be proven with one attack, and "
        f"'no' can mean too few runs. Runs in each world to prove more than an epsilon: {needed}."
    ]
