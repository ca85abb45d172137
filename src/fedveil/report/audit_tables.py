"""Tables of an audit: what each attack reached, with and without the defence, and what has to be said beside it."""

import math
from typing import Any

from fedveil.attacks.bounds import epsilon_ceiling
from fedveil.attacks.participation.rounds import Colluding
from fedveil.config.world import IN_ITS_PLACE
from fedveil.games import Audit
from fedveil.games.scoring import Scored, row_of
from fedveil.gdp import rounded_down
from fedveil.report.audit_headline import folded, in_words
from fedveil.report.table import NOTHING, Table

CEILINGS = (20, 50, 100, 300, 1000)
SUPPOSED = " *"  # behind the name of an attack on metrics that are not published so


def audit_tables(found: Audit) -> list[Table]:
    """One table a setting, the undefended federation first; defended ones beside it."""
    rows = by_attack(found)
    return [_table(found, label, list(rows), rows) for label in found.settings]


def _table(found: Audit, label: str, names: list[str], rows: dict[str, dict[str, Scored]]) -> Table:
    plain = found.settings[0]
    numbers = ["AUC (95%)", "advantage", "measured epsilon >="]
    if label != plain:
        numbers += ["AUC without defence", "valid"]
    lines = []
    for name in names:
        verdict, undefended = rows.get(name, {}).get(label), rows.get(name, {}).get(plain)
        cells = ["refused", NOTHING, NOTHING] if verdict is None else _figures(verdict)
        if label != plain:
            cells.append("refused" if undefended is None else in_words(undefended.auc))
            valid = None if verdict is None else verdict.valid
            cells.append({None: NOTHING, True: "yes", False: "no"}[valid])
        mark = SUPPOSED if verdict is not None and verdict.supposed else ""
        lines.append([name + mark, *cells])
    title = f"{label}: {_about(found.values['settings'][label])}"
    return Table(["attack", *numbers], lines, title, numbers, ["advantage", "AUC without defence", "valid"])


def by_attack(found: Audit) -> dict[str, dict[str, Scored]]:
    """Verdicts by attack and setting, in the order in which they were judged."""
    rows: dict[str, dict[str, Scored]] = {}
    for verdict in found.verdicts:
        rows.setdefault(verdict.attack, {})[verdict.setting] = verdict
    return rows


def audit_notes(found: Audit) -> list[str]:
    """What has to be said beside the tables."""
    values = found.values
    together = ", ".join(map(str, values["colluders"])) if Colluding.name in by_attack(found) else ""
    runs, rehearsals = values["replicates"], values["rehearsals"]
    ceilings = ", ".join(f"{n}: {epsilon_ceiling(n):.1f}" for n in CEILINGS)
    notes = [
        f"Without client {values['target']} there is {IN_ITS_PLACE[values['world']]}. Client {values['attacker']} "
        f"holds {values['shadow']} shadow data{f'; colluding: clients {together}' if together else ''}.",
        f"{runs} independent runs with and {runs} without the target; intervals are over runs. Each has its own data "
        "(natural clients keep theirs), first model (but a pre-trained one), training order and noise. Thresholds "
        f"come from {rehearsals} + {rehearsals} rehearsals, which are not evaluated.",
        f"measured epsilon >=: proven at 95%, for {values['relation']} at delta = {values['delta']:g}; {runs} runs can "
        f"prove {values['epsilon_ceiling']:.2f} at most (by number of runs: {ceilings}). It is no guarantee: a "
        f"stronger attack may prove more. All together prove, at 95%: {_together(values)}.",
        "valid: the attack works without the defence; else its figure says nothing about the defence.",
        f"Metrics that clients see after each round: {values['published_metrics']['text']}.{_gain(found)}",
    ]
    if any(v.supposed for v in found.verdicts):
        notes.append("* supposes that metrics are published so, which they are not here.")
    notes += [_sequential(v) for v in found.verdicts if v.sequential is not None and not v.supposed]
    notes += folded(found.refused)
    said = [(f"{v.attack}, {v.setting}: {n}", n) for v in found.verdicts for n in v.notes]
    rates = [n for _, n in said if n.startswith("no true positive rate")]
    return [*notes, *(text for text, n in said if n not in rates), *rates[:1]]


def _figures(verdict: Scored) -> list[str]:
    gain, bound = verdict.advantage, verdict.epsilon
    proven = NOTHING if bound is None else f"{rounded_down(bound.lower)} of {bound.ceiling:.2f}"
    return [in_words(verdict.auc), NOTHING if gain is None else f"{gain.point:.2f}", proven]


def _about(about: dict[str, Any]) -> str:
    parts = [f"guarantee {about['guarantee'] or 'not played'}"]
    if about["accuracy"] is not None:
        parts.append(f"accuracy {about['accuracy']:.3f}")
    if about["sigma"] is not None:
        without = about["sigma_without_target"]
        apart = without is not None and not math.isclose(without, about["sigma"], rel_tol=1e-6)
        parts.append(f"average sigma {about['sigma']:.3g}" + (f" ({without:.3g} without the target)" if apart else ""))
    return "; ".join(parts)


def _together(values: dict[str, Any]) -> str:
    proven = (f"{s} {rounded_down(b['lower'])} of {b['ceiling']:.2f}" for s, b in values["together"].items())
    return ", ".join(proven) or "nothing"


def _gain(found: Audit) -> str:
    """What each way of publishing gives an adversary with shadow data alone, and one with all the means, by setting."""
    rows = by_attack(found)
    means = (
        ("shadow data alone", "loss", "side-channel"),
        ("reference data and rehearsals too", "adaptive", "informed"),
    )
    lines = []
    for who, without, attack in means:
        for label in found.settings:
            by_mode = {"off": rows.get(without, {}).get(label)}
            by_mode |= {mode: rows.get(row_of(attack, mode), {}).get(label) for mode in ("noised", "clear")}
            parts = [f"{mode} {v.point:.3f}" for mode, v in by_mode.items() if v is not None]
            if len(parts) > 1:
                lines.append(f"{label}, {who}: {', '.join(parts)}")
    return f" AUC of an adversary by what is published: {'; '.join(lines)}." if lines else ""


def _sequential(verdict: Scored) -> str:
    found = verdict.sequential
    assert found is not None
    median = f"decides after {found.rounds_in:g} rounds (median, with the target) and {found.rounds_out:g} (without)"
    errors = f"said OUT of {in_words(found.miss)} of the runs with it, IN of {in_words(found.alarm)} of those without"
    undecided = f"undecided {found.undecided} of {sum(verdict.runs)}"
    said = undecided if found.undecided == sum(verdict.runs) else f"{median}; {errors}; {undecided}"
    return f"{verdict.attack}, {verdict.setting}: sequential test for errors of {found.wanted:.0%}: {said}"
