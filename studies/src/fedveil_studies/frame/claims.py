"""Judge a paper's claims by fixed rules on the figures in table files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import Any

from fedveil_studies.frame.audited import Audited
from fedveil_studies.frame.described import ClaimOf
from fedveil_studies.frame.evidence import DRAWS, Difference, Evidence, against, differ
from fedveil_studies.frame.finding import (
    CANNOT_TELL,
    CONTRADICTED,
    HOLDS,
    LEARNED,
    NO_DIFFERENCE,
    UNLEARNED,
    UNTESTED,
    Claim,
    Decide,
    Row,
)
from fedveil_studies.frame.result import Result

HEURISTIC = "heuristic"  # begins the words of a promise that proves nothing
Judge = Callable[[ClaimOf, Any], Iterable[Row]]  # of Evidence, or of an Audited


def judge(claim: ClaimOf, evidence: Evidence | Audited) -> Claim:
    """Judge a claim on one group of runs, or on an audit."""
    study, on_audits = evidence.study, claim.expect in evidence.study.audits
    rule: Judge = {**JUDGES, **study.judges, **study.audits}[claim.expect]
    enough = partial(_with_seeds, seeds=study.described.seeds_of(claim))
    rows = tuple(map(enough, rule(claim, evidence)))
    pooled = claim.pooled and claim.expect != "alike" and not on_audits
    return Claim(claim, evidence.title, rows, pooled)


def best_of(claim: ClaimOf, every: Sequence[Evidence]) -> tuple[Claim, list[Claim]]:
    """Judge a claim on the group nearest to the paper that has its runs; also return the other groups' judgements."""
    order = list(every[0].study.described.judged_on)

    def place(group: Evidence) -> int:
        if group.title in order:
            return order.index(group.title)
        return len(order)

    judged = list(map(partial(judge, claim), sorted(every, key=place)))
    first = max(judged, key=attrgetter("with_runs"))
    for found in judged:
        if found.with_runs and found.enough:
            first = found
            break
    return first, [found for found in judged if found.with_runs and found is not first]


def promised(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether runs of the first setting promise anything."""
    runs = [run for run in evidence.runs if run.setting == claim.first and run.guarantee != "none"]
    if runs:
        none = len([run for run in runs if run.guarantee.startswith(HEURISTIC)])
        verdict = CANNOT_TELL
        if none == 0:
            verdict = HOLDS
        elif none == len(runs):
            verdict = CONTRADICTED
        yield Row(claim.first, verdict, f"none in {none} of {len(runs)} runs")


def lying(claim: ClaimOf, evidence: Evidence, expect: str) -> Iterator[Row]:
    """How the first setting lies to the second or to the level: above, below, or alike within the margin.

    In every row for which the paper shows it; alike means that the whole interval lies within the margin.
    """
    sign = {"above": 1, "below": -1, "alike": 0}[expect]
    decide: Decide = partial(verdict_of, sign=sign, margin=claim.margin)
    if not sign:
        decide = partial(within, margin=claim.margin)
    for table, figure in claim.figures:
        if claim.level is not None:
            seen = evidence.of_figure(table, figure)
            for (row, setting), result in seen.items():
                if setting in (claim.first or setting,) and row in (claim.rows or (row,)):
                    yield levelled(f"{row}, {setting}", means(result), claim.level, decide)
            if not seen:
                yield untested(figure)
        else:
            for row in rows_of(evidence, claim, table, figure, sign):
                yield _compared(claim, evidence, table, figure, row, decide)


def rows_of(evidence: Evidence, claim: ClaimOf, table: str, figure: str, sign: int) -> list[str]:
    """Labels of the rows for which the paper shows what it claims (any, with sign 0); all, for a table of our own.

    Without those in which the table has no such line.
    """
    study = evidence.study
    described = study.described
    shown = {row for t, row, _, f in study.published if (t, f) == (table, figure)}
    if shown:
        rows = [label for label in study.labels if label in shown]
        rows += sorted(shown - set(rows))
    else:
        rows = list(map(study.label, described.tables[table].rows)) or list(study.labels)
    about = list(claim.rows or rows)
    for name in evidence.readings:
        reading = described.readings.get(name)
        if reading is not None and reading.row:
            about.append(study.label(reading.row))
    possible = study.places(table)
    chosen = []
    for row in rows:
        if row not in about:
            continue
        if shown and sign:
            printed = _printed(evidence, claim, table, figure, row)
            if printed is None or printed * sign <= 0:
                continue
        lines = [(row, setting, figure) in possible for setting in claim.settings if setting]
        if all(lines) or evidence.at(table, row, claim.first, figure) is not None:
            chosen.append(row)
    return chosen


def compared(
    label: str,
    first: Result | None,
    second: Result | None,
    decide: Decide,
    accuracies: Sequence[Result | None] = (),
    guess: float | None = None,
) -> Row:
    """A row that sets one figure against another under the same seeds, if by its accuracy either learned anything."""
    if first is None or second is None:
        return untested(label)
    difference = differ(first, second)
    if difference is None:
        return untested(label)
    verdict = decide(difference)
    unlearned = nothing_learned(accuracies, guess)
    if unlearned:
        verdict = CANNOT_TELL
    sigma, other_sigma = first.noise.get("sigma"), second.noise.get("sigma")
    noise = None
    if sigma and other_sigma:
        noise = sigma / other_sigma
    return Row(
        label,
        verdict,
        str(difference),
        difference,
        decide,
        why=unlearned,
        noise=noise,
        distance=first.noise.get("distance"),
    )


def untested(label: str, column: str = "") -> Row:
    """Make a row for a claim without a finished pair of runs."""
    return Row(label, CANNOT_TELL, "", column=column, why=UNTESTED, lacking=True)


def nothing_learned(accuracies: Sequence[Result | None], guess: float | None = None) -> str:
    """Why nothing can be said where no setting is evidently above guessing (the largest class alone, or a figure)."""
    reached, chances = list[float](), list[float]()
    for accuracy in accuracies:
        if accuracy is None:
            continue
        chance = guess
        if guess is None:
            chance = accuracy.chance
        if chance is not None:
            reached.append(accuracy.mean)
            chances.append(chance)
    if reached and max(reached) <= max(chances) + LEARNED:
        return UNLEARNED
    return ""


def levelled(label: str, by_seed: Mapping[int, float], level: float, decide: Decide) -> Row:
    """Make a row that compares a figure by seed with a level; without seeds it is untested."""
    if not by_seed:
        return untested(label)
    difference = against(by_seed, level)
    return Row(label, decide(difference), difference.beside(level), difference, decide, level=level)


def means(result: Result | None) -> dict[int, float]:
    """Average a figure over its draws, by seed; empty if no run is finished."""
    if result is None:
        return {}
    return {seed: fmean(values.values()) for seed, values in result.by_seed.items()}


def verdict_of(difference: Difference, sign: int, margin: float = 0.0) -> str:
    """Return the verdict on "it is above" (sign 1) or "below" (-1); differences within the margin count as none."""
    if difference.low > 0 or difference.high < 0:
        if difference.mean * sign > 0:
            return HOLDS
        return CONTRADICTED
    if -margin <= difference.low and difference.high <= margin:
        return NO_DIFFERENCE
    return CANNOT_TELL


def within(difference: Difference, margin: float) -> str:
    """Return the verdict on "they are alike": contradicted if the difference certainly exceeds the margin."""
    if -margin <= difference.low and difference.high <= margin:
        return HOLDS
    if difference.low > margin or difference.high < -margin:
        return CONTRADICTED
    return CANNOT_TELL


JUDGES: Mapping[str, Judge] = {
    "above": partial(lying, expect="above"),
    "below": partial(lying, expect="below"),
    "alike": partial(lying, expect="alike"),
    "guarantee": promised,
}


def _compared(
    claim: ClaimOf, evidence: Evidence, table: str, figure: str, row: str, decide: Decide
) -> Row:
    first, second = claim.settings
    ours, other = evidence.at(table, row, first, figure), evidence.at(table, row, second, figure)
    learned = evidence.study.described.learned
    where, name = learned.figures.get(table, (table, "accuracy"))
    accuracies = [evidence.at(where, row, setting, name) for setting in claim.settings]
    if learned.first and (where, name) != (table, figure):
        accuracies = accuracies[:1]
    tables, figures = map(set, zip(*claim.figures, strict=True))
    label = []
    if len(tables) > 1:
        label.append(f"table {table}")
    if len(figures) > 1:
        label.append(figure)
    judged = compared(", ".join(label), ours, other, decide, accuracies, learned.guess)
    return replace(judged, column=row, printed=_printed(evidence, claim, table, figure, row))


def _printed(evidence: Evidence, claim: ClaimOf, table: str, figure: str, row: str) -> float | None:
    published = evidence.study.published
    pair = [published.get((table, row, name, figure)) for name in claim.settings if name]
    if len(pair) < 2 or pair[0] is None or pair[1] is None:
        return None
    return pair[0].value - pair[1].value


def _with_seeds(row: Row, seeds: int) -> Row:
    """Fewer seeds than a row needs say nothing, nor do draws of the noise."""
    if row.difference is None or (row.difference.count >= seeds and row.difference.over != DRAWS):
        return row
    few = f"{row.difference.count} of {seeds} seeds"
    if row.difference.over == DRAWS:
        few = "draws of one training"
    return replace(row, verdict=CANNOT_TELL, why=few, lacking=True)
