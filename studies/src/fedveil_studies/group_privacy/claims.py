"""Judges for claims of the group-privacy paper that compare rows, or figures with a level."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import scipy

from fedveil_studies.frame.claims import compared, means, untested, verdict_of, within
from fedveil_studies.frame.described import ClaimOf
from fedveil_studies.frame.evidence import Evidence
from fedveil_studies.frame.finding import CANNOT_TELL, CONTRADICTED, HOLDS, Decide, Row
from fedveil_studies.group_privacy.measures import study


def _against_no_noise(claim: ClaimOf, evidence: Evidence, decide: Decide) -> Iterator[Row]:
    """Each row beside the one without noise, under the same seeds."""
    for table, figure in claim.figures:
        for row in _rows(claim, evidence, table, figure):
            head, comma, _ = row.rpartition(", ")
            quiet = "no noise"
            if comma:
                quiet = f"{head}, no noise"
            if row == quiet:
                continue
            first = evidence.at(table, row, claim.first, figure)
            second = evidence.at(table, quiet, claim.first, figure)
            if comma:
                yield replace(compared(row, first, second, decide), column="")
            else:
                yield replace(compared("", first, second, decide), column=row)


@study.judge("as without noise")
def as_without_noise(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether a figure is within the margin of the one without noise."""
    yield from _against_no_noise(claim, evidence, partial(within, margin=claim.margin))


@study.judge("below no noise")
def below_no_noise(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether a figure is below the one without noise."""
    yield from _against_no_noise(claim, evidence, partial(verdict_of, sign=-1, margin=claim.margin))


@study.judge("grows with n")
def grows(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether the figure of the largest model exceeds that of the smallest."""
    [(table, figure)] = claim.figures
    rows = _rows(claim, evidence, table, figure)
    if rows:
        first = evidence.at(table, rows[-1], claim.first, figure)
        second = evidence.at(table, rows[0], claim.first, figure)
        yield compared(f"{rows[-1]} less {rows[0]}", first, second, partial(verdict_of, sign=1))


@study.judge("both within")
def both_within(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether all figures are below the level in more than half of the runs; bounds are exact at 95%."""
    runs = []
    for table, figure in claim.figures:
        for (_, setting), result in evidence.of_figure(table, figure).items():
            if setting == claim.first:
                runs.append(means(result))
    seeds = set[int]()
    if len(runs) == len(claim.figures):
        seeds = set.intersection(*map(set, runs))
    if not seeds:
        yield untested("share")
        return
    right = sum(all(values[seed] < (claim.level or 0.0) for values in runs) for seed in seeds)
    bounds = scipy.stats.binomtest(right, len(seeds)).proportion_ci(0.9)
    share, low, high = right / len(seeds), bounds.low, bounds.high
    verdict = CANNOT_TELL
    if low > 0.5:
        verdict = HOLDS
    elif high < 0.5:
        verdict = CONTRADICTED
    text = f"{right} of {len(seeds)} runs, {share:.2f} ({low:.2f} to {high:.2f})"
    yield Row("share", verdict, text)


def _rows(claim: ClaimOf, evidence: Evidence, table: str, figure: str) -> list[str]:
    """Labels of a table's rows that the claim is about, in the table's order."""
    rows = []
    for row, setting in evidence.of_figure(table, figure):
        if setting == claim.first and (not claim.rows or row in claim.rows):
            rows.append(row)
    return rows
