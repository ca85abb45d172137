"""claims.md: every claim of a paper, judged on the files of a folder; one row a claim."""

import math
from collections import Counter
from collections.abc import Sequence
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
    UNTESTED,
    Claim,
    Row,
)
from fedveil_studies.frame.study import Study
from fedveil_studies.frame.tables import FIRST

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
    """The page in Markdown, from ``table-*.json``, ``cells.json`` and ``audit-*.json`` below a folder alone.

    Raises
    ------
    FieldError
        If a file cannot be read.
    """
    spec = study.described
    every = read_evidence(folder, study) or [Evidence(study, next(iter(spec.scales)))]
    judged = [best_of(claim, every) for claim in spec.claims if claim.expect not in study.audits]
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
    if spec.statements:
        lines += [
            f"{'; '.join(f'**{name}** {text}' for name, text in spec.statements.items())}.",
            "",
        ]
    for evidence in every:
        versions = sorted(
            {v for r in evidence.results.values() if r.values for v in r.numerics or FIRST}
        )
        if len(versions) > 1:
            lines += [
                f"{evidence.title}: runs of several versions of the arithmetic ({', '.join(versions)}).",
                "",
            ]
    asked = [_claim_row(*one) for one in judged if one[0].of.paper is not False]
    ours = [_claim_row(*one) for one in judged if one[0].of.paper is False]
    for title, rows in (("What the paper claims", asked), ("Questions of ours", ours)):
        lines += Table(HEADER, rows, title).markdown() if rows else []
    on_audits = [claim for claim in spec.claims if claim.expect in study.audits]
    audits = read_audits(folder, study) if on_audits else []
    if audits:
        lines += _audited(on_audits, audits)
    lines += _row_by_row(study, judged)
    lines += _noise(every)
    more = [
        *_missing(judged, every),
        *_undecided(judged, every),
        *(f"* {one}" for one in spec.open),
    ]
    lines += ["## Runs that would tell more", "", *(more or ["* none"])]
    return "\n".join(lines).rstrip() + "\n"


def _claim_row(claim: Claim, others: Sequence[Claim]) -> list[str]:
    seeds = max(
        (row.difference.count for row in claim.tested if row.difference is not None), default=0
    )
    with_runs = any(row.why != UNTESTED for row in claim.rows)
    evidence = [
        claim.title if with_runs else "none",
        *([f"{seeds} seeds"] if seeds else []),
        claim.counts,
    ]
    elsewhere = [
        f"{f.title}: {f.verdict}{'' if f.interval is None else f' {f.text}'}"
        for f in others
        if f.tested
    ]
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
    """The mean of the paper's differences."""
    printed = [row.printed for row in claim.rows if row.printed is not None]
    if not printed:
        return NOTHING
    mean = fmean(printed)
    return f"{mean:+.3f}" if abs(mean) < 1 else f"{mean:+.3g}"


def _audited(claims: Sequence[ClaimOf], audits: Sequence[Audited]) -> list[str]:
    rows = []
    for claim in claims:
        judged = [judge(claim, audit) for audit in audits]
        said = [f"**{f.verdict}**: {'; '.join(map(_in_short, f.rows))}" for f in judged]
        rows.append([" ".join(claim.answers), f"{claim.name} ({claim.says})", *said])
    note = (
        "Data, first model, training and noise are new in each run; the bootstrap is over runs, thresholds come from "
        "other runs, and several attacks share the 5% between them."
    )
    header = ("answers", "claim", *(audit.title for audit in audits))
    return [
        *Table(
            header, rows, "On independent runs with and without a client, with our own attackers"
        ).markdown(),
        note,
        "",
    ]


def _in_short(row: Row) -> str:
    return " ".join(filter(None, [MARKS[row.verdict], row.label, row.why or row.text]))


def _row_by_row(study: Study, judged: Sequence[Judged]) -> list[str]:
    """A line for each claim, group of runs and figure, a column for each row of the tables.

    Of many rows only those have a column that a claim is about.
    Groups that a claim is not judged on stand there where they take no more than two lines.
    """
    about = {
        row.column
        for first, others in judged
        for f in (first, *others)
        if f.tested
        for row in f.rows
    }
    every_label = study.labels
    columns = [label for label in every_label if label in about or len(every_label) <= COLUMNS]
    lines: list[list[str]] = []
    for first, others in judged:
        for finding in [f for f in (first, *others) if f.tested]:
            every = [row for row in finding.rows if row.column in columns]
            crowded = len({row.column for row in every}) < len(every)
            labels = dict.fromkeys(row.label if crowded else "" for row in every)
            if finding is not first and len(labels) > 2:
                continue
            for label in labels:
                said = {
                    row.column: f"{MARKS[row.verdict]} {row.why or row.text}"
                    for row in every
                    if label in ("", row.label)
                }
                name = ", ".join(filter(None, [first.of.name, label]))
                lines.append([name, finding.title, *(said.get(column, "") for column in columns)])
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
            rivals = [
                r
                for (t, w, s, f), r in evidence.results.items()
                if (t, w, f) == (table, row, figure) and s != setting
            ]
            plain = [
                r.noise["sigma"] for r in rivals if "sigma" in r.noise and "distance" not in r.noise
            ]
            if distance and sigma and len(plain) == 1 and abs(sigma / plain[0] - 1) > MATCHED:
                by_table.setdefault(table, {})[row] = (distance, sigma / plain[0])
        seen: set[tuple[str, tuple[float, float]]] = set()
        for table, by_row in sorted(by_table.items(), key=lambda one: (-len(one[1]), one[0])):
            if not seen >= set(by_row.items()):
                seen |= set(by_row.items())
                cells = [
                    f"{min(v):.2f} to {max(v):.2f}" for v in zip(*by_row.values(), strict=True)
                ]
                rows.append([evidence.title, table, *cells])
    header = ("runs", "table", "d, over the rows", "sigma beside global DP's")
    return Table(header, rows, "How much noise").markdown() if rows else []


def _missing(judged: Sequence[Judged], every: Sequence[Evidence]) -> list[str]:
    """The commands that make what claims lack, on the group on which most of them are judged."""
    most = Counter(claim.title for claim, _ in judged if claim.tested).most_common(1)
    group = next((e for e in every if most and e.title == most[0][0]), every[0])
    wanted: dict[int, dict[str, None]] = {}
    for claim, _ in judged:
        if any(row.lacking for row in claim.rows):
            seeds = group.study.described.seeds_of(claim.of)
            wanted.setdefault(seeds, {}).update(
                dict.fromkeys(table for table, _ in claim.of.figures)
            )
    return [
        f"* `{group.command(tables, seeds)}`: no runs, or too few"
        for seeds, tables in wanted.items()
        if tables
    ]


def _undecided(judged: Sequence[Judged], every: Sequence[Evidence]) -> list[str]:
    """The commands that repeat what was run and cannot be told, and how many seeds that may take."""
    needed: dict[tuple[str, tuple[str, ...]], int] = {}
    for claim, _ in judged:
        open_rows = [row for row in claim.tested if row.verdict == CANNOT_TELL]
        seeds = [
            _seeds(claim.of, row)
            for row in open_rows
            if row.difference is not None and row.difference.count > 1
        ]
        if claim.verdict == CANNOT_TELL and seeds:
            place = claim.title, tuple(dict.fromkeys(table for table, _ in claim.of.figures))
            needed[place] = max(needed.get(place, 0), *seeds)
    groups = {one.title: one for one in every}
    return [
        f"* tables {', '.join(tables)}: undecided, at this spread more than {MANY} seeds would decide"
        if seeds > MANY
        else f"* `{groups[title].command(tables, seeds)}`: undecided, at this spread about {seeds} seeds decide"
        for (title, tables), seeds in needed.items()
    ]


def _seeds(claim: ClaimOf, row: Row) -> int:
    """About how many decide a row: its interval then leaves out zero, or lies within the margin."""
    assert row.difference is not None
    far, half = abs(row.difference.mean), (row.difference.high - row.difference.low) / 2
    nearest = abs(claim.margin - far) if claim.expect == "alike" else max(far, claim.margin - far)
    return math.ceil(row.difference.count * min(half / max(nearest, 1e-9), MANY) ** 2)
