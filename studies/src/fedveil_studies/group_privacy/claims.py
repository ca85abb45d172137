"""Claims of the paper that compare rows, or set figures against a level; study.toml says which judge each one has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from fedveil_studies.frame.claims import compared, verdict_of, within
from fedveil_studies.frame.described import ClaimOf
from fedveil_studies.frame.evidence import Evidence
from fedveil_studies.frame.finding import Decide, Row
from fedveil_studies.group_privacy.measures import study


def _against_no_noise(claim: ClaimOf, evidence: Evidence, decide: Decide) -> Iterator[Row]:
    """Each row beside the one without noise, under the same seeds."""
    for table, figure in claim.figures:
        for row in _rows(claim, evidence, table, figure):
            head, comma, _ = row.rpartition(", ")
            quiet = f"{head}, no noise" if comma else "no noise"
            first, second = (evidence.at(table, label, claim.first, figure) for label in (row, quiet))
            if row != quiet:
                yield replace(compared(row if comma else "", first, second, decide), column="" if comma else row)


@study.judge("as without noise")
def as_without_noise(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Within the margin of what there is without noise."""
    yield from _against_no_noise(claim, evidence, partial(within, margin=claim.margin))


@study.judge("below no noise")
def below_no_noise(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Less than without noise."""
    yield from _against_no_noise(claim, evidence, partial(verdict_of, sign=-1, margin=claim.margin))


@study.judge("grows with n")
def grows(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """The figure of the largest model above that of the smallest; neither is random."""
    [(table, figure)] = claim.figures
    rows = _rows(claim, evidence, table, figure)
    if rows:
        first, second = (evidence.at(table, row, claim.first, figure) for row in (rows[-1], rows[0]))
        yield compared(f"{rows[-1]} less {rows[0]}", first, second, partial(verdict_of, sign=1))


def _rows(claim: ClaimOf, evidence: Evidence, table: str, figure: str) -> list[str]:
    """Labels of a table's rows that the claim is about, in the table's order."""
    every = [row for t, row, setting, f in evidence.results if (t, setting, f) == (table, claim.first, figure)]
    return [row for row in dict.fromkeys(every) if not claim.only or row in claim.only]
