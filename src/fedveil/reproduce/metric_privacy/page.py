"""claims.md: every claim of the paper, judged on the files of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedveil.reproduce.audited import read_audits
from fedveil.reproduce.claims import LEAST, PAPER, RULE, UNTESTED, AuditClaim, Claim, Finding, overview, section
from fedveil.reproduce.evidence import Source, read_sources
from fedveil.reproduce.metric_privacy.audit_claims import AUDIT_CLAIMS
from fedveil.reproduce.metric_privacy.claims import CLAIMS
from fedveil.reproduce.metric_privacy.plan import described

AUDITS = (
    "Tested on independent runs, in each of which data, first model, training and noise are new: an attack's AUC is "
    "over runs with the target and runs without, the unit of the bootstrap is a run, and thresholds come from other "
    "runs. Rows are attacks, and where there are several, they share the 5% between them; so a single one decides."
)

IMAGES = "alzheimer"  # begins what the provenance of an audit on them says of its data
NOISY = (
    ("5", "accuracy", "homogeneous clients"),
    ("7", "accuracy", "non-iid clients"),
    ("12", "test loss", "three clients, one round of 20 epochs"),
    ("13", "accuracy, target in", "three clients, 20 rounds"),
)  # table, figure, words

NOISE = (
    "Metric privacy's sigma is global DP's divided by d (times d under the reading more-noise). So it adds less noise "
    "where d is above 1, and *more* where it is below. d is a length: the size of the model, the rule, the "
    "clients' steps and the noise itself decide which. Where it adds more, the claims that metric privacy is the more "
    "accurate of the two are tested against the odds. Average d and sigma of the runs:"
)


def claims_page(folder: Path) -> str:
    """The page in Markdown, from ``table-*.json`` and ``audit-*.json`` below a folder alone.

    Raises
    ------
    FieldError
        If a file cannot be read.
    """
    sources = read_sources(folder) or [Source("metric-privacy", "small")]
    tested = [[claim.finding(source) for source in sources] for claim in CLAIMS]
    lines = ["# What the metric-privacy paper claims, and what was found", ""]
    lines += ["Generated from the files beside this page. " + RULE, ""]
    lines += overview(CLAIMS, tested, [source.title for source in sources])
    audits = read_audits(folder)
    judged = [[claim.finding(audit) for audit in audits] for claim in AUDIT_CLAIMS]
    if audits:
        lines += ["", AUDITS, "", *overview(AUDIT_CLAIMS, judged, [audit.title for audit in audits])]
    else:
        lines += ["", "No audit with independent runs is there: see `fedveil audit --compare`."]
    lines += ["", "## Is it less noise?", "", NOISE, "", *_distances(sources)]
    lines += ["", "## On the paper's tables", "", *_sections(CLAIMS, tested)]
    if audits:
        lines += ["## On independent runs", "", *_sections(AUDIT_CLAIMS, judged)]
    lines += ["## What is missing", "", *_missing(sources)]
    if not any(audit.data.startswith(IMAGES) for audit in audits):
        lines.append("* An audit with independent runs on the images: see docs/attacks.md.")
    return "\n".join(lines).rstrip() + "\n"


def _sections(claims: Sequence[Claim | AuditClaim], findings: Sequence[Sequence[Finding]]) -> list[str]:
    return [line for claim, found in zip(claims, findings, strict=True) for line in section(claim, found)]


def _distances(sources: Sequence[Source]) -> list[str]:
    """By source and table: the ranges of d and of sigma over the rules."""
    lines = []
    for source in sources:
        for table, shown, words in NOISY:
            distances: dict[str, float] = {}
            times: dict[str, float] = {}
            for (t, row, setting, name), figure in source.figures.items():
                if (t, setting, name) != (table, "metric", shown) or figure.distance is None:
                    continue
                distances[row] = figure.distance
                other = source.at(table, row, "global", shown)
                if figure.sigma and other is not None and other.sigma:
                    times[row] = figure.sigma / other.sigma
            if distances and times:
                lines.append(f"* {source.title}, {words}: d {_span(distances)}; sigma {_span(times)} times global DP's")
    return lines or ["* no runs yet"]


def _span(found: Mapping[str, float]) -> str:
    """A range, and where its ends are found."""
    least, most = (extreme(found, key=lambda row: found[row]) for extreme in (min, max))
    low, high = (f"{found[row]:.2f} ({row})" for row in (least, most))
    return low if least == most else f"{low} to {high}"


def _missing(sources: Sequence[Source]) -> list[str]:
    """By source: tables without a finished run, and runs that are not finished."""
    every = dict.fromkeys(table for claim in CLAIMS for table in claim.tables)
    lines = []
    for source in sources:
        made = {table for table, _, _, _ in source.figures}
        absent = [table for table in every if table not in made]
        runs = dict.fromkeys(run for table, some in source.missing.items() if table in made for run in some)
        parts = [f"all of tables {', '.join(absent)}"] if absent else []
        parts += [f"{len(runs)} runs of the others: {'; '.join(_by_seed(runs))}"] if runs else []
        lines.append(f"* {source.title}: {'. '.join(parts) or 'nothing'}.")
    for source in sources:
        few = {c.tables: c.seeds for c in CLAIMS if c.seeds > LEAST and _untested(c.finding(source))}
        lines += [
            f"* {source.title}: seeds, to {seeds}, of table {', '.join(tables)}: `{source.command(tables, seeds)}`"
            for tables, seeds in few.items()
        ]
    known = {name for source in sources for name in source.readings}
    unread = [name for name in described()["readings"] if name not in known]
    if unread:
        lines.append(f"* No runs of the readings {', '.join(unread)} (`--reading`).")
    if all(source.scale != PAPER for source in sources):
        command = Source("metric-privacy", PAPER).command(["5"], 1)
        lines.append(f"* {PAPER}: everything. FedAvg alone: `{command} --rule fedavg`.")
    return lines


def _untested(found: Finding) -> bool:
    return bool(found.of(UNTESTED))


def _by_seed(runs: Iterable[str]) -> list[str]:
    """Names of runs, those that differ in the seed alone together."""
    found: dict[str, list[str]] = {}
    for run in runs:
        name, _, seed = run.partition(" seed ")
        found.setdefault(name, []).append(seed)
    return [f"{name} ({', '.join(seeds)})" for name, seeds in found.items()]
