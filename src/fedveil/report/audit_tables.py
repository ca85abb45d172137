"""Tables of an audit: what each attack reached, with and without the defence, and what has to be said beside it."""

from __future__ import annotations

from rich import box
from rich.table import Table

from fedveil.attacks.adaptive import ERROR
from fedveil.attacks.paper import MULTI_ROUND, SINGLE_SHOT
from fedveil.attacks.statistics import Estimate, epsilon_ceiling
from fedveil.experiments.audit import VANILLA, Audit
from fedveil.experiments.audit_results import Verdict

CEILINGS = (20, 50, 100, 300, 1000)


def audit_table(found: Audit) -> Table:
    """One row an attack: the area under the ROC curve in each setting, and what the defended runs prove."""
    values, defended = found.values, found.settings[-1]
    unit = f"{values['replicates']} runs with and {values['replicates']} without the target"
    title = f"AUC with 95% interval, bootstrapped over runs: {unit}, in every setting"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("attack", no_wrap=True)
    for label in found.settings:
        table.add_column(f"{label} (no defence)" if label == VANILLA else label, justify="right", no_wrap=True)
    for name in ("advantage", "epsilon >=", "valid without defence", "null check"):
        table.add_column(name, justify="right")
    rows = by_attack(found)
    refused = {r.attack for r in found.judged.refused}
    for attack in [*rows, *sorted(refused - set(rows))]:
        by = rows.get(attack, {})
        cells = [_estimate(by[label].result.auc) if label in by else "refused" for label in found.settings]
        last = by.get(defended)
        cells += ["-"] * 4 if last is None else _figures(last)
        table.add_row(attack, *cells)
    return table


def by_attack(found: Audit) -> dict[str, dict[str, Verdict]]:
    """Verdicts by attack and setting, in the order in which they were judged."""
    rows: dict[str, dict[str, Verdict]] = {}
    for verdict in found.judged.verdicts:
        rows.setdefault(verdict.result.attack, {})[verdict.result.setting] = verdict
    return rows


def audit_notes(found: Audit) -> list[str]:
    """What has to be said beside the table."""
    values = found.values
    world = {
        "replace": "another client of equal size in its place",
        "remove": "nobody in its place, so that the number of clients changes",
        "empty": "a client without examples in its place",
    }[values["world"]]
    ceilings = ", ".join(f"{n}: {epsilon_ceiling(n):.1f}" for n in CEILINGS)
    notes = [
        f"Client {values['attacker']} asks whether client {values['target']} takes part; without the target there is "
        f"{world}. It holds {values['shadow']} shadow data; colluding: clients "
        f"{', '.join(map(str, values['colluders']))}. Each run has its own data, first model, training order and "
        "noise (natural clients keep their data).",
        f"epsilon >= is a lower bound (95%) that the attack proves, of {values['relation']} between the two worlds; "
        f"{values['replicates']} runs can prove {values['epsilon_ceiling']:.2f} at most (by number of runs: "
        f"{ceilings}). It is no guarantee.",
        f"Thresholds come from {values['rehearsals']} + {values['rehearsals']} rehearsals that are not evaluated. "
        "Valid without defence: the same attack's interval lies above .5 on the federation without its defence; where "
        "it does not, its figure says nothing about the defence.",
    ]
    notes += [f"{label}: {_about(about)}" for label, about in values["settings"].items()]
    notes.append(f"Metrics that clients see after each round: {values['published_metrics']['text']}.{_gain(found)}")
    notes += [_sequential(v) for v in found.judged.verdicts if v.sequential is not None]
    notes += [f"{r.attack}, {r.setting}: {r.reason}" for r in found.judged.refused]
    for verdict in found.judged.verdicts:
        kept = [n for n in verdict.result.notes if not n.startswith("no true positive rate")]
        notes += [f"{verdict.result.attack}, {verdict.result.setting}: {note}" for note in kept]
    rates = [n for v in found.judged.verdicts for n in v.result.notes if n.startswith("no true positive rate")]
    return notes + rates[:1]


def paper_table(found: Audit) -> Table | None:
    """The paper's own statistics, named as such; None if they were not asked for."""
    if not (found.single_shots or found.multi_rounds):
        return None
    title = "As printed in the metric privacy paper (for comparison with its tables, not for inference)"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("statistic", "setting", "figure", "what it is not"):
        table.add_column(name)
    for shot in found.single_shots:
        losses = f"shadow loss {shot.shadow_loss:.3f}, aggregated loss {shot.aggregated_loss:.3f}"
        table.add_row(SINGLE_SHOT, shot.setting, f"{shot.difference:.1f}% ({losses})", shot.note)
    for result in found.multi_rounds:
        figure = f"AUC {_estimate(result.auc)} over {result.runs[0]} + {result.runs[1]} rounds"
        table.add_row(MULTI_ROUND, result.setting, figure, "; ".join(result.notes))
    return table


def _estimate(value: Estimate) -> str:
    return f"{value.point:.3f} ({value.low:.2f}-{value.high:.2f})"


def _figures(verdict: Verdict) -> list[str]:
    result = verdict.result
    gain = "-" if result.advantage is None else f"{result.advantage.point:.2f}"
    bound = "-" if result.epsilon is None else f"{result.epsilon.lower:.2f} of {result.epsilon.ceiling:.2f}"
    valid = "-" if result.valid_without_defence is None else ("yes" if result.valid_without_defence else "no")
    return [gain, bound, valid, "-" if result.null is None else _estimate(result.null)]


def _about(about: dict[str, object]) -> str:
    accuracy = about["accuracy"]
    text = f"guarantee: {about['guarantee'] or 'not played'}"
    return text if not isinstance(accuracy, float) else f"{text}; accuracy with the target {accuracy:.3f}"


def _gain(found: Audit) -> str:
    """What each way of publishing gives the attacker, in the defended setting."""
    label = found.settings[-1]
    auc = {v.result.attack: v.result.point for v in found.judged.verdicts if v.result.setting == label}
    parts = [f"{name} {auc[name]:.3f}" for name in ("side-channel (noised)", "side-channel (clear)") if name in auc]
    if not parts:
        return ""
    off = f"off (loss) {auc['loss']:.3f}, " if "loss" in auc else ""
    return f" What publishing would give an attacker here, AUC: {off}{', '.join(parts)}."


def _sequential(verdict: Verdict) -> str:
    found, result = verdict.sequential, verdict.result
    if found is None:
        return ""
    median = f"decides after {found.rounds_in:g} rounds (median, with the target) and {found.rounds_out:g} (without)"
    errors = f"said OUT of {_estimate(found.miss)} of the runs with it, IN of {_estimate(found.alarm)} of those without"
    undecided = f"undecided {found.undecided} of {sum(result.runs)}"
    return (
        f"{result.attack}, {result.setting}: sequential test for errors of {ERROR:.0%}: {median}; {errors}; {undecided}"
    )
