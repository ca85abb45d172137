"""claims.md: every claim of a paper, judged on the files of a folder; one row a claim."""

import math
from collections import Counter
from collections.abc import Sequence, Sized
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from fedveil.tables import NOTHING, Table
from fedveil_studies.frame.audited import Audited, read_audits
from fedveil_studies.frame.claims import best_of, judge
from fedveil_studies.frame.described import ClaimOf
from fedveil_studies.frame.evidence import Evidence, read_evidence
from fedveil_studies.frame.finding import (
    CANNOT_TELL,
    CONTRADICTED,
    HOLDS,
    NO_DIFFERENCE,
    RULES,
    Claim,
    Row,
)
from fedveil_studies.frame.study import Study
from fedveil_studies.frame.tables import versions_of

MARKS = {HOLDS: "✓", CONTRADICTED: "✗", NO_DIFFERENCE: "=", CANNOT_TELL: "?"}
COLUMNS = 20  # more are shown only where a claim is about them
MANY = 100  # seeds: who needs more is told no number
MATCHED = 1e-3  # sigmas that differ by a smaller share were set equal
Judged = tuple[Claim, Sequence[Claim]]  # on the first group, and on the others
HEADER = (
    "answers",
    "claim, and where the paper has it",
    "paper",
    "ours",
    "evidence",
    "verdict",
    "cause",
    "other runs",
)


def claims_page(folder: Path, study: Study) -> str:
    """Make the page in Markdown from ``table-*.json``, ``cells.json`` and ``audit-*.json`` in a folder.

    Raises
    ------
    FieldError
        If a file cannot be read.
    """
    spec = study.described
    every = read_evidence(folder, study) or [Evidence(study, next(iter(spec.scales)))]
    judged, on_audits = [], []
    for claim_of in spec.claims:
        if claim_of.expect in study.audits:
            on_audits.append(claim_of)
        else:
            judged.append(best_of(claim_of, every))
    lines = [
        f"# {study.name}: what the paper claims, and what was found",
        "",
        f"{spec.title}. {spec.source}.",
        "",
    ]
    lines += [
        "Generated from the files beside this page. Settings are paired under the same seeds.",
        "",
    ]
    lines += [*(f"* {rule}" for rule in RULES), ""]
    where = "; ".join(spec.judged_on) or "as they come"
    lines += [
        "A claim about several rows is judged by their mean, unless one contradicts, on the first of these groups "
        f"that has the runs: {where}. *Cause*: what stands behind the verdict. "
        "*Other runs*: verdicts of the other groups.",
        "",
    ]
    statements = []
    for name, text in spec.statements.items():
        statements.append(f"**{name}** {text}")
    if statements:
        lines += [f"{'; '.join(statements)}.", ""]
    for evidence in every:
        numerics = versions_of(evidence.results.values())
        if len(numerics) > 1:
            named = ", ".join(numerics)
            said = f"{evidence.title}: runs of several versions of the arithmetic ({named})."
            lines += [said, ""]
    asked, ours = [], []
    for claim, others in judged:
        row = _claim_row(claim, others)
        if claim.of.paper is False:
            ours.append(row)
        else:
            asked.append(row)
    for title, rows in (("What the paper claims", asked), ("Questions of ours", ours)):
        if rows:
            lines += Table(HEADER, rows, title).markdown()
    if on_audits:
        lines += _audited(on_audits, read_audits(folder, study))
    lines += _row_by_row(study, judged)
    lines += _noise(every)
    more = _missing(judged, every) + _undecided(judged, every)
    for question in spec.open:
        more.append(f"* {question}")
    lines += ["## Runs that would tell more", "", *(more or ["* none"])]
    return "\n".join(lines).rstrip() + "\n"


def _claim_row(claim: Claim, others: Sequence[Claim]) -> list[str]:
    evidence = ["none"]
    if claim.with_runs:
        evidence = [claim.title]
    counts = [row.difference.count for row in claim.tested if row.difference is not None]
    if counts:
        evidence.append(f"{max(counts)} seeds")
    evidence.append(claim.counts)
    elsewhere = []
    for other in others:
        said = f"{other.title}: {other.verdict}"
        if other.interval is not None:
            said += f" {other.text}"
        if other.tested:
            elsewhere.append(said)
    return [
        " ".join(claim.of.answers),
        f"{claim.of.name} ({claim.of.says})",
        claim.of.paper or _printed(claim),
        claim.text or NOTHING,
        "; ".join(filter(None, evidence)),
        f"**{claim.verdict}**",
        claim.why or NOTHING,
        "; ".join(elsewhere) or NOTHING,
    ]


def _printed(claim: Claim) -> str:
    """Mean of the paper's printed differences, as text."""
    printed = []
    for row in claim.rows:
        if row.printed is not None:
            printed.append(row.printed)
    if not printed:
        return NOTHING
    mean = fmean(printed)
    if abs(mean) < 1:
        return f"{mean:+.3f}"
    return f"{mean:+.3g}"


def _audited(claims: Sequence[ClaimOf], audits: Sequence[Audited]) -> list[str]:
    if not audits:
        return []
    rows = []
    for claim in claims:
        row = [" ".join(claim.answers), f"{claim.name} ({claim.says})"]
        for audit in audits:
            found = judge(claim, audit)
            row.append(f"**{found.verdict}**: {'; '.join(map(_in_short, found.rows))}")
        rows.append(row)
    note = (
        "Data, first model, training and noise are new in each run; the bootstrap is over runs, thresholds come from "
        "other runs, and several attacks share the 5% between them."
    )
    header = ["answers", "claim", *map(attrgetter("title"), audits)]
    title = "On independent runs with and without a client, with our own attackers"
    return [*Table(header, rows, title).markdown(), note, ""]


def _in_short(row: Row) -> str:
    return " ".join(filter(None, [MARKS[row.verdict], row.label, row.why or row.text]))


def _row_by_row(study: Study, judged: Sequence[Judged]) -> list[str]:
    """A line for each claim, group of runs and figure, a column for each row of the tables.

    Of many rows only those have a column that a claim is about.
    Groups that a claim is not judged on stand there where they take no more than two lines.
    """
    columns = list(study.labels)
    if len(columns) > COLUMNS:
        about = set[str]()
        for first, others in judged:
            for found in (first, *others):
                if found.tested:
                    about.update(row.column for row in found.rows)
        columns = [label for label in columns if label in about]
    lines: list[list[str]] = []
    for first, others in judged:
        for found in (first, *others):
            if not found.tested:
                continue
            by_label: dict[str, dict[str, str]] = {}
            every = [row for row in found.rows if row.column in columns]
            crowded = len({row.column for row in every}) < len(every)
            for row in every:
                label = ""
                if crowded:
                    label = row.label
                said = by_label.setdefault(label, {})
                said[row.column] = f"{MARKS[row.verdict]} {row.why or row.text}"
            if found is not first and len(by_label) > 2:
                continue
            for label, said in by_label.items():
                name = ", ".join(filter(None, [first.of.name, label]))
                shown = [said.get(column, "") for column in columns]
                lines.append([name, found.title, *shown])
    if not lines:
        return []
    legend = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    title = f"{study.described.row_name.capitalize()} by {study.described.row_name}"
    return [*Table(("claim", "runs", *columns), lines, title).markdown(), f"{legend}.", ""]


def _noise(every: Sequence[Evidence]) -> list[str]:
    """By group and table: average d, and sigma beside the setting of central noise without a distance."""
    rows = []
    for evidence in every:
        by_table: dict[str, dict[str, tuple[float, float]]] = {}
        for (table, row, setting, figure), result in evidence.results.items():
            distance, sigma = result.noise.get("distance"), result.noise.get("sigma")
            if not distance or not sigma:
                continue
            plain = []
            for (its_row, its_setting), other in evidence.of_figure(table, figure).items():
                rival = its_row == row and its_setting != setting
                if rival and "sigma" in other.noise and "distance" not in other.noise:
                    plain.append(other.noise["sigma"])
            if len(plain) == 1 and abs(sigma / plain[0] - 1) > MATCHED:
                by_table.setdefault(table, {})[row] = (distance, sigma / plain[0])
        seen: set[tuple[str, tuple[float, float]]] = set()
        by_name = sorted(by_table.items())
        for table, by_row in sorted(by_name, key=_many_first):
            if not seen >= set(by_row.items()):
                seen |= set(by_row.items())
                columns = zip(*by_row.values(), strict=True)
                spans = [f"{min(column):.2f} to {max(column):.2f}" for column in columns]
                rows.append([evidence.title, table, *spans])
    if not rows:
        return []
    header = ("runs", "table", "d, over the rows", "sigma beside global DP's")
    return Table(header, rows, "How much noise").markdown()


def _missing(judged: Sequence[Judged], every: Sequence[Evidence]) -> list[str]:
    """The commands that make what claims lack, on the group on which most of them are judged."""
    most = Counter(claim.title for claim, _ in judged if claim.tested).most_common(1)
    group = every[0]
    if most:
        [(title, _)] = most
        group = next((evidence for evidence in every if evidence.title == title), group)
    wanted: dict[int, dict[str, None]] = {}
    for claim, _ in judged:
        if any(row.lacking for row in claim.rows):
            seeds = group.study.described.seeds_of(claim.of)
            wanted.setdefault(seeds, {}).update(dict.fromkeys(_tables(claim)))
    lines = []
    for seeds, tables in wanted.items():
        if tables:
            lines.append(f"* `{group.command(tables, seeds)}`: no runs, or too few")
    return lines


def _many_first(table: tuple[str, Sized]) -> int:
    return -len(table[1])


def _tables(claim: Claim) -> tuple[str, ...]:
    """Return the tables that a claim is about, once each."""
    return tuple(dict.fromkeys(table for table, _ in claim.of.figures))


def _undecided(judged: Sequence[Judged], every: Sequence[Evidence]) -> list[str]:
    """The commands that repeat what was run and cannot be told, and how many seeds that may take."""
    needed: dict[tuple[str, tuple[str, ...]], int] = {}
    for claim, _ in judged:
        if claim.verdict != CANNOT_TELL:
            continue
        place = claim.title, _tables(claim)
        for row in claim.tested:
            several = row.difference is not None and row.difference.count > 1
            if row.verdict == CANNOT_TELL and several:
                needed[place] = max(needed.get(place, 0), _seeds(claim.of, row))
    groups = {one.title: one for one in every}
    lines = []
    for (title, tables), seeds in needed.items():
        said = f"`{groups[title].command(tables, seeds)}`: undecided, at this spread about {seeds} seeds decide"
        if seeds > MANY:
            said = f"tables {', '.join(tables)}: undecided, at this spread more than {MANY} seeds would decide"
        lines.append(f"* {said}")
    return lines


def _seeds(claim: ClaimOf, row: Row) -> int:
    """About how many decide a row: its interval then leaves out zero, or lies within the margin."""
    assert row.difference is not None
    far, half = abs(row.difference.mean), (row.difference.high - row.difference.low) / 2
    nearest = max(far, claim.margin - far)
    if claim.expect == "alike":
        nearest = abs(claim.margin - far)
    return math.ceil(row.difference.count * min(half / max(nearest, 1e-9), MANY) ** 2)
