"""A report recomputed from its own bytes and the ledgers, on any machine: what agrees, and what does not.

It tells edits of any one file. Whoever edits report and ledgers together leaves nothing to notice: the head of a
ledger in a second place (`fedveil ledger show --head`) and a signature on report.json are for that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from fedveil.accounting import Policy
from fedveil.errors import FieldError, LedgerError, damaged
from fedveil.reading import json_of
from fedveil.report.spent import spent_of
from fedveil.report.statement.books import FoundLedgers, promises, read_books
from fedveil.report.statement.document import FORMAT, Chart, Series, encoded
from fedveil.report.statement.gather import agree
from fedveil.report.statement.page import form_of, page_of
from fedveil.report.statement.sections import headline_of, unit_of


@dataclass(frozen=True)
class Checked:
    """One thing that was looked at; `holds` is None where there was nothing to look at."""

    what: str
    holds: bool | None
    why: str = ""


def check(report: Path, ledgers: list[Path]) -> list[Checked]:
    """Recompute what a report says.

    Raises
    ------
    FieldError
        If the file is no report.
    """
    try:
        raw = report.read_bytes()
        values = json_of(raw)
        if values["format"] != FORMAT:
            raise ValueError(f"its format is {values['format']!r}, and this version reads {FORMAT!r}")
        evidence = values["evidence"]
        found = [Checked("report.json", raw == encoded(values), "its bytes are not those that were written")]
        found += _beside(report.parent, values["files"])
        try:
            books = read_books(ledgers)
        except LedgerError as error:
            return [*found, Checked("ledgers", False, str(error))]
        for run in evidence["runs"]:
            found += _run(run, books)
        found += _sets(evidence, books)
        found += _words(report.parent, values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, FieldError):
            raise
        raise damaged("REPORT", report, error, "restore the file") from error
    return [one if one.holds is not True else Checked(one.what, True) for one in found]


def _beside(folder: Path, files: Mapping[str, str]) -> Iterator[Checked]:
    for name, digest in files.items():
        if not (folder / name).is_file():
            yield Checked(name, None, "does not lie beside the report")
            continue
        own = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        yield Checked(name, own == digest, "is not the file that was written with the report")


def _run(run: Mapping[str, Any], books: FoundLedgers) -> Iterator[Checked]:
    name = run["setting"] if run["seed"] is None else f"{run['setting']}, seed {run['seed']}"
    if not run["ledgers"]:
        yield Checked(f"{name}: promise", None, "this run left no ledger")
        return
    own = books.runs.get(run["run"], {})
    absent = [b["party"] for b in run["ledgers"] if b["party"] not in own]
    if absent:
        yield Checked(f"{name}: ledgers", False, f"not among --ledgers: {', '.join(absent[:5])}")
        return
    wrong = [b["party"] for b in run["ledgers"] if own[b["party"]].values() != b]
    extra = sorted(own.keys() - {b["party"] for b in run["ledgers"]})
    why = f"lines, heads or bytes of {', '.join([*wrong, *extra][:5])} are others"
    yield Checked(f"{name}: ledgers", not wrong and not extra, why)
    if run["recomputed"]:
        given = promises(run["trust"], own, run["delta"])
        yield Checked(f"{name}: promise", agree(given, run["promises"]), "the ledgers give another promise")


def _sets(evidence: Mapping[str, Any], books: FoundLedgers) -> Iterator[Checked]:
    policy = Policy.from_dict(evidence["policy"]) if evidence["policy"] else Policy(distance=1.0)
    for one in evidence["sets"]:
        name, book = one["ledger"]["party"], books.sets.get(one["ledger"]["party"])
        if book is None:
            yield Checked(f"data set {name}", False, "its ledger is not among --ledgers")
        elif book.values(one["ledger"]["lines"]) != one["ledger"]:
            yield Checked(f"data set {name}", False, "its ledger is another, or was shortened")
        elif len(book.lines) > one["ledger"]["lines"]:
            yield Checked(f"data set {name}", True)
        else:
            rows = [list(map(str, row)) for row in spent_of(book.ledger, policy).rows]
            yield Checked(f"data set {name}", rows == one["spent"], "what was spent is not what the report says")


def _words(folder: Path, values: Mapping[str, Any]) -> Iterator[Checked]:
    """Sentences, the table of promises and the page follow from promises that were checked."""
    owed: dict[str, Mapping[str, Any]] = {}
    for run in values["evidence"]["runs"]:
        strength = [
            next(iter(p.values())).get("epsilon", inf) for p in (owed.get(run["setting"]), run["promises"]) if p
        ]
        if len(strength) == 1 or strength[1] > strength[0]:
            owed[run["setting"]] = run["promises"]
    yield Checked("sentences", values["headline"] == headline_of(owed), "they do not follow from the promises")
    table = json_of(json.dumps(asdict(unit_of(owed))))
    yield Checked("table of promises", values["sections"][0] == table, "it does not follow from the promises")
    page = folder / "report.html"
    if not page.is_file() or values["made"]["form"] != form_of():
        yield Checked("words of the page", None, "it is not there, or of another form")
        return
    charts = [chart for section in values["sections"] for chart in section["charts"]]
    for chart in charts:
        chart["series"] = [Series(**series) for series in chart["series"]]
    for section in values["sections"]:
        section["charts"] = [Chart(**chart) for chart in section["charts"]]
    shown = re.sub(r"<svg.*?</svg>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield Checked("words of the page", shown == page_of(values, lambda chart: ""), "they are not those of report.json")
