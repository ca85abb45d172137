"""Tables of an audit: the strongest attack against each defence, each attack's result, and notes."""

import math
from collections.abc import Sequence
from itertools import count
from operator import attrgetter
from typing import Any

from fedveil.gdp import rounded_down
from fedveil.tables import NOTHING, Table, grouped_by
from fedveil_lab.attacks import Participation
from fedveil_lab.attacks.bounds import epsilon_ceiling
from fedveil_lab.attacks.participation.rounds import Colluding
from fedveil_lab.attacks.statistics import Estimate
from fedveil_lab.attacks.verdict import NO_RATE
from fedveil_lab.games import Audit
from fedveil_lab.games.game import Refused
from fedveil_lab.games.roles import IN_ITS_PLACE, world_of
from fedveil_lab.games.scoring import Scored, row_of

CEILINGS = (20, 50, 100, 300, 1000)
SUPPOSED = " *"  # behind the name of an attack on metrics that are not published so
LITTLE = 0.5  # an epsilon: with runs that cannot even prove this much, that has to be said
MILESTONES = (0.0, 0.5, 1.0, 2.0)


def in_words(value: Estimate | None) -> str:
    """Write a figure with its interval."""
    if value is None:
        return NOTHING
    return f"{value.point:.3f} ({value.low:.2f}-{value.high:.2f})"


def proven(bound: dict[str, float] | None) -> str:
    """Write the epsilon that the runs prove, and the largest one that they could prove."""
    if bound is None:
        return NOTHING
    return f"{rounded_down(bound['lower'])} of {bound['ceiling']:.2f}"


def answered(label: str, own: Sequence[Participation], best: Participation | None) -> str:
    """Say in a sentence what the strongest valid attack found on a setting."""
    if best is None:
        return f"{label}: undecided: not one attack ({len(own)} played) works here, not even without a defence."
    area = f"the AUC of the strongest attack ({best.attack}) is {in_words(best.auc)}"
    if best.auc.low > 0.5:
        return f"{label}: yes, {area}."
    return f"{label}: not shown, as the interval does not lie above .5: {area}."


def headline(audit: Audit) -> Table | None:
    """Make the table of the strongest valid attack and the proven epsilon, for each defence.

    An attack is valid if it works without the defence, or evidently against it. None if no attack was judged.
    """
    judged, plain = _strongest(audit), by_attack(audit)
    if not any(verdict.setting in judged for verdict in audit.verdicts):
        return None
    defended = len(audit.settings) > 1
    rows = []
    for label, (own, counted, best) in judged.items():
        name = areas = NOTHING
        without = NOTHING
        if best is not None:
            name, areas = best.attack, in_words(best.auc)
            undefended = plain[best.attack].get(audit.settings[0])
            if undefended is not None:
                without = in_words(undefended.auc)
        row = [label, name, f"{len(counted)} of {len(own)}", areas]
        if defended:
            row.append(without)
        rows.append([*row, proven(audit.values["together"].get(label))])
    numbers = ["attacks that work", "AUC (95%)"]
    if defended:
        numbers.append("without the defence")
    numbers.append("epsilon >=")
    title = f"Does client {audit.values['target']} take part? The strongest attack; .5 is guessing, 1 is certainty"
    return Table(
        ["against", "strongest", *numbers], rows, title, numbers, notes=too_few(audit.values)
    )


def _strongest(audit: Audit) -> dict[str, tuple[list[Scored], list[Scored], Scored | None]]:
    """Collect for each defence the judged attacks, the valid ones, and the strongest of these."""
    judged = {}
    for label in audit.settings[1:] or audit.settings:
        own = [
            verdict
            for verdict in audit.verdicts
            if verdict.setting == label and not verdict.supposed
        ]
        counted = [verdict for verdict in own if verdict.valid or verdict.succeeds]
        judged[label] = own, counted, max(counted, key=_success, default=None)
    return judged


def _success(verdict: Scored) -> tuple[float, float]:
    """Sort key of verdicts: the area under the curve, then the lower end of its interval."""
    return verdict.point, verdict.auc.low


def answer(audit: Audit) -> str:
    """Write the audit's question, and a sentence with the answer for each setting; "" if nothing was judged."""
    lines = []
    for label, (own, _, best) in _strongest(audit).items():
        if own:
            lines.append(answered(label, own, best))
    if not lines:
        return ""
    asked = f"Can client {audit.values['attacker']} tell whether client {audit.values['target']} takes part?"
    return " ".join([asked, *lines])


def folded(refused: Sequence[Refused]) -> list[str]:
    """Write one line for each reason why attacks were not run."""
    said = []
    for reason, own in grouped_by(refused, attrgetter("reason")).items():
        attacks = dict.fromkeys(one.attack for one in own)
        said.append(f"{', '.join(attacks)} ({reason})")
    if not said:
        return []
    return [f"not run: {'; '.join(said)}"]


def compared(audit: Audit) -> list[str]:
    """Compare promised and proven epsilons; an epsilon for another relation gets a line of its own."""
    values, played = audit.values, audit.values["relation"]
    others, lines = dict[str, list[str]](), []
    for label, about in values["settings"].items():
        bound = values["together"].get(label)
        if about["guarantee_relation"] not in ("", played):
            others.setdefault(about["guarantee_relation"], []).append(label)
        elif about["guarantee_relation"] and bound is not None:
            measured = f"measured epsilon >= {proven(bound)} provable ({played}, 95%)"
            lines.append(f"{label}: promised {about['guarantee']}; {measured}.")
    for promised, labels in others.items():
        lines.append(
            f"{', '.join(labels)}: the guarantee is for {promised}, the measured epsilon for {played}, so they cannot "
            f"be compared; --out-world {world_of(promised)} (and another --out) measures {promised}."
        )
    return lines


def fewest_runs(epsilon: float, delta: float) -> int:
    """Fewest runs in each world that can prove more than an epsilon with one attack."""
    return next(n for n in count(2) if epsilon_ceiling(n, delta) > epsilon)


def too_few(values: dict[str, Any]) -> list[str]:
    """Write how many runs are needed if there are too few to prove anything."""
    runs, ceiling, delta = values["replicates"], values["epsilon_ceiling"], values["delta"]
    if ceiling is None or ceiling >= LITTLE:
        return []
    needed = ", ".join(f"{fewest_runs(epsilon, delta)} above {epsilon:g}" for epsilon in MILESTONES)
    return [
        f"{runs} runs in each world are few: one attack can prove an epsilon of at most {ceiling:.2f}, and 'no' can "
        f"mean too few runs. Runs in each world that can prove an epsilon: {needed}."
    ]


def audit_tables(audit: Audit) -> list[Table]:
    """Make one table per setting, the undefended federation first; later tables repeat its results for comparison."""
    return [_table(audit, label) for label in audit.settings]


def _table(audit: Audit, label: str) -> Table:
    """Make the table of each attack's result against one setting."""
    undefended = audit.settings[0]
    columns = ["AUC (95%)", "advantage", "measured epsilon >=", "AUC without defence", "valid"]
    numbers, lines = columns, []
    if label == undefended:
        numbers = columns[:3]
    for name, verdicts in by_attack(audit).items():
        cells = [
            *_figures(verdicts.get(label)),
            _area(verdicts.get(undefended)),
            _validity(verdicts.get(label)),
        ]
        verdict, shown_as = verdicts.get(label), name
        if verdict is not None and verdict.supposed:
            shown_as += SUPPOSED
        lines.append([shown_as, *cells[: len(numbers)]])
    title = f"{label}: {_about(audit.values['settings'][label])}"
    return Table(["attack", *numbers], lines, title, numbers, ["advantage", *columns[3:]])


def _area(verdict: Scored | None) -> str:
    """Write the area under an attack's curve; an attack without a verdict was refused."""
    if verdict is None:
        return "refused"
    return in_words(verdict.auc)


def _validity(verdict: Scored | None) -> str:
    """Write whether an attack works without the defence, so that its failure against the defence means something."""
    if verdict is None or verdict.valid is None:
        return NOTHING
    if verdict.valid:
        return "yes"
    return "no"


def _figures(verdict: Scored | None) -> list[str]:
    """Write area, advantage and proven epsilon of an attack."""
    if verdict is None:
        return ["refused", NOTHING, NOTHING]
    advantage = bound = NOTHING
    if verdict.advantage is not None:
        advantage = f"{verdict.advantage.point:.2f}"
    if verdict.epsilon is not None:
        bound = proven(vars(verdict.epsilon))
    return [in_words(verdict.auc), advantage, bound]


def by_attack(audit: Audit) -> dict[str, dict[str, Scored]]:
    """Group verdicts by attack and setting, in the order of judgement."""
    rows: dict[str, dict[str, Scored]] = {}
    for verdict in audit.verdicts:
        rows.setdefault(verdict.attack, {})[verdict.setting] = verdict
    return rows


def audit_notes(audit: Audit) -> list[str]:
    """Write the notes beside the tables."""
    values = audit.values
    pooled = ""
    if Colluding.name in by_attack(audit):
        pooled = f"; colluding: clients {', '.join(map(str, values['colluders']))}"
    together = ", ".join(f"{label} {proven(bound)}" for label, bound in values["together"].items())
    runs, rehearsals = values["replicates"], values["rehearsals"]
    ceilings = ", ".join(f"{n}: {epsilon_ceiling(n):.1f}" for n in CEILINGS)
    notes = [
        f"Without client {values['target']} there is {IN_ITS_PLACE[values['world']]}. Client {values['attacker']} "
        f"holds {values['shadow']} shadow data{pooled}.",
        f"{runs} independent runs with and {runs} without the target; intervals are over runs. Each has its own data "
        "(natural clients keep theirs), first model (unless it is pre-trained), training order and noise. Thresholds "
        f"come from {rehearsals} + {rehearsals} rehearsals, which are not evaluated.",
        f"measured epsilon >=: proven at 95%, for {values['relation']} at delta = {values['delta']:g}; {runs} runs can "
        f"prove {values['epsilon_ceiling']:.2f} at most (by number of runs: {ceilings}). It is no guarantee: a "
        f"stronger attack may prove more. All together prove, at 95%: {together or 'nothing'}.",
        "valid: the attack beats guessing without the defence (95%); else its figure says nothing about the defence.",
        f"Metrics that clients see after each round: {values['published_metrics']['text']}.{_gain(audit)}",
    ]
    if any(verdict.supposed for verdict in audit.verdicts):
        notes.append("* supposes that metrics are published so, which they are not here.")
    for verdict in audit.verdicts:
        if verdict.sequential is not None and not verdict.supposed:
            notes.append(_sequential(verdict))
    return [*notes, *folded(audit.refused), *_of_verdicts(audit.verdicts)]


def _of_verdicts(verdicts: Sequence[Scored]) -> list[str]:
    """Collect notes of single verdicts; missing rates are noted once, last."""
    notes, rates = [], list[str]()
    for verdict in verdicts:
        for note in verdict.notes:
            if note.startswith(NO_RATE):
                rates.append(note)
            else:
                notes.append(f"{verdict.attack}, {verdict.setting}: {note}")
    return [*notes, *rates[:1]]


def _about(about: dict[str, Any]) -> str:
    """Write guarantee, accuracy and noise of a setting."""
    parts = [f"guarantee {about['guarantee'] or 'not played'}"]
    if about["accuracy"] is not None:
        parts.append(f"accuracy {about['accuracy']:.3f}")
    if about["sigma"] is not None:
        sigma, without = about["sigma"], about["sigma_without_target"]
        text = f"average sigma {sigma:.3g}"
        if without is not None and not math.isclose(without, sigma, rel_tol=1e-6):
            text += f" ({without:.3g} without the target)"
        parts.append(text)
    return "; ".join(parts)


def _gain(audit: Audit) -> str:
    """Write how much each way of publishing metrics helps adversaries, with shadow data only and with all means."""
    rows = by_attack(audit)
    means = (
        ("shadow data alone", "loss", "side-channel"),
        ("reference data and rehearsals too", "adaptive", "informed"),
    )
    lines = []
    for who, without, attack in means:
        for label in audit.settings:
            names = {
                "off": without,
                "noised": row_of(attack, "noised"),
                "clear": row_of(attack, "clear"),
            }
            parts = []
            for mode, name in names.items():
                verdict = rows.get(name, {}).get(label)
                if verdict is not None:
                    parts.append(f"{mode} {verdict.point:.3f}")
            if len(parts) > 1:
                lines.append(f"{label}, {who}: {', '.join(parts)}")
    if not lines:
        return ""
    return f" AUC of an adversary by what is published: {'; '.join(lines)}."


def _sequential(verdict: Scored) -> str:
    """Write when the sequential test decides, and how often it is wrong."""
    test = verdict.sequential
    assert test is not None
    median = f"decides after {test.rounds_in:g} rounds (median, with the target) and {test.rounds_out:g} (without)"
    errors = f"said OUT of {in_words(test.miss)} of the runs with it, IN of {in_words(test.alarm)} of those without"
    undecided = f"undecided {test.undecided} of {sum(verdict.runs)}"
    said = f"{median}; {errors}; {undecided}"
    if test.undecided == sum(verdict.runs):
        said = undecided
    return f"{verdict.attack}, {verdict.setting}: sequential test for errors of {test.wanted:.0%}: {said}"
