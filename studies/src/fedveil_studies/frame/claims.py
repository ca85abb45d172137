"""A paper's claims, judged by stated rules on the figures of table files, and nothing else."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
    """Test a claim on a group of runs, or on an audit."""
    study, on_audits = evidence.study, claim.expect in evidence.study.audits
    rule: Judge = {**JUDGES, **study.judges, **study.audits}[claim.expect]
    rows = tuple(_with_seeds(row, study.described.seeds_of(claim)) for row in rule(claim, evidence))
    return Claim(
        claim, evidence.title, rows, claim.pooled and claim.expect != "alike" and not on_audits
    )


def best_of(claim: ClaimOf, every: Sequence[Evidence]) -> tuple[Claim, list[Claim]]:
    """As judged on the group nearest to the paper that has the runs, and on the others that have some."""
    order = {title: i for i, title in enumerate(every[0].study.described.judged_on)}
    judged = [judge(claim, e) for e in sorted(every, key=lambda e: order.get(e.title, len(order)))]
    with_runs = [f for f in judged if any(row.why != UNTESTED for row in f.rows)]
    most = max(judged, key=lambda f: sum(row.why != UNTESTED for row in f.rows))
    first = next((f for f in with_runs if f.enough), most)
    return first, [f for f in with_runs if f is not first]


def promised(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Whether runs of the first setting promise anything."""
    runs = [run for run in evidence.runs if run.setting == claim.first and run.guarantee != "none"]
    if runs:
        none = sum(run.guarantee.startswith(HEURISTIC) for run in runs)
        verdict = HOLDS if not none else CONTRADICTED if none == len(runs) else CANNOT_TELL
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
            seen = [
                (r, s, one)
                for (t, r, s, f), one in evidence.results.items()
                if (t, f) == (table, figure)
            ]
            for row, setting, result in seen:
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
    shown = {row for t, row, _, f in study.published if (t, f) == (table, figure)}
    place = {label: i for i, label in enumerate(study.labels)}
    own = study.described.tables[table].rows
    rows = sorted(shown, key=lambda row: (place.get(row, len(place)), row))
    if not shown:
        rows = [study.label(row) for row in own] if own else list(study.labels)
    read = [
        study.described.readings[name].row
        for name in evidence.readings
        if name in study.described.readings
    ]
    about = [*claim.rows, *(study.label(row) for row in read if row)] if claim.rows else rows
    possible = study.places(table)

    def may(row: str) -> bool:
        printed = (
            not shown or not sign or (_printed(evidence, claim, table, figure, row) or 0) * sign > 0
        )
        lines = [(row, setting, figure) in possible for setting in claim.settings if setting]
        return (
            row in about
            and printed
            and (all(lines) or evidence.at(table, row, claim.first, figure) is not None)
        )

    return [row for row in rows if may(row)]


def compared(
    label: str,
    first: Result | None,
    second: Result | None,
    decide: Decide,
    accuracies: Sequence[Result | None] = (),
    guess: float | None = None,
) -> Row:
    """A row that sets one figure against another under the same seeds, if by its accuracy either learned anything."""
    difference = None if first is None or second is None else differ(first, second)
    if first is None or second is None or difference is None:
        return untested(label)
    unlearned = nothing_learned(accuracies, guess)
    sigmas = first.noise.get("sigma"), second.noise.get("sigma")
    return Row(
        label,
        CANNOT_TELL if unlearned else decide(difference),
        str(difference),
        difference,
        decide,
        why=unlearned,
        noise=sigmas[0] / sigmas[1] if sigmas[0] and sigmas[1] else None,
        distance=first.noise.get("distance"),
    )


def untested(label: str, column: str = "") -> Row:
    """A row without a finished pair of runs."""
    return Row(label, CANNOT_TELL, "", column=column, why=UNTESTED, lacking=True)


def nothing_learned(accuracies: Sequence[Result | None], guess: float | None = None) -> str:
    """Why nothing can be said where no setting is evidently above guessing (the largest class alone, or a figure)."""
    chances = [(a.mean, a.chance if guess is None else guess) for a in accuracies if a is not None]
    known = [(mean, chance) for mean, chance in chances if chance is not None]
    chance = max((c for _, c in known), default=0.0)
    return UNLEARNED if known and max(mean for mean, _ in known) <= chance + LEARNED else ""


def levelled(label: str, by_seed: Mapping[int, float], level: float, decide: Decide) -> Row:
    """A row that sets a figure by seed against a level; without a seed it is untested."""
    if not by_seed:
        return untested(label)
    difference = against(by_seed, level)
    return Row(label, decide(difference), difference.beside(level), difference, decide, level=level)


def means(result: Result | None) -> dict[int, float]:
    """A figure by seed, over its draws; nothing where no run is finished."""
    return (
        {}
        if result is None
        else {seed: fmean(values.values()) for seed, values in result.by_seed.items()}
    )


def verdict_of(difference: Difference, sign: int, margin: float = 0.0) -> str:
    """Of "it is above" (sign 1) or "below" (-1); differences within the margin are none."""
    if difference.low > 0 or difference.high < 0:
        return HOLDS if difference.mean * sign > 0 else CONTRADICTED
    return NO_DIFFERENCE if -margin <= difference.low and difference.high <= margin else CANNOT_TELL


def within(difference: Difference, margin: float) -> str:
    """Of "they are alike": contradicted if they certainly differ by more."""
    if -margin <= difference.low and difference.high <= margin:
        return HOLDS
    return CONTRADICTED if difference.low > margin or difference.high < -margin else CANNOT_TELL


JUDGES: Mapping[str, Judge] = {
    **{expect: partial(lying, expect=expect) for expect in ("above", "below", "alike")},
    "guarantee": promised,
}


def _compared(
    claim: ClaimOf, evidence: Evidence, table: str, figure: str, row: str, decide: Decide
) -> Row:
    ours, other = (evidence.at(table, row, setting, figure) for setting in claim.settings)
    learned = evidence.study.described.learned
    where, name = learned.figures.get(table, (table, "accuracy"))
    alone = learned.first and (where, name) != (table, figure)
    accuracies = [
        evidence.at(where, row, setting, name) for setting in claim.settings[: 1 if alone else 2]
    ]
    tables, figures = ({places[i] for places in claim.figures} for i in (0, 1))
    label = ", ".join(
        [*([f"table {table}"] if len(tables) > 1 else []), *([figure] if len(figures) > 1 else [])]
    )
    judged = compared(label, ours, other, decide, accuracies, learned.guess)
    return replace(judged, column=row, printed=_printed(evidence, claim, table, figure, row))


def _printed(evidence: Evidence, claim: ClaimOf, table: str, figure: str, row: str) -> float | None:
    pair = [
        evidence.study.published.get((table, row, setting, figure))
        for setting in claim.settings
        if setting
    ]
    return pair[0].value - pair[1].value if len(pair) == 2 and pair[0] and pair[1] else None


def _with_seeds(row: Row, seeds: int) -> Row:
    """Fewer seeds than a row needs say nothing, nor do draws of the noise."""
    if row.difference is None or (row.difference.count >= seeds and row.difference.over != DRAWS):
        return row
    few = (
        "draws of one training"
        if row.difference.over == DRAWS
        else f"{row.difference.count} of {seeds} seeds"
    )
    return replace(row, verdict=CANNOT_TELL, why=few, lacking=True)
