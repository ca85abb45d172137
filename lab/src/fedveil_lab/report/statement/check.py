"""A report checked on any machine: its evidence against ledgers, and its files against what follows from them.

What ledgers carry is added up again, and has to be what the report says. The page, the card and report.json are made
again from that evidence and from what the author says, and compared whole. Whoever holds the true ledgers cannot be
shown another promise. Ledgers that were edited together with the report are noticed by the heads of data sets in a
second place alone.
"""

import hashlib
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedveil.engines.lifetime import read_head
from fedveil.errors import FieldError, LedgerError, damaged
from fedveil.evidence import Book, Books, read_books
from fedveil.reading import json_of
from fedveil_lab.report.statement import earlier
from fedveil_lab.report.statement.agreement import agree, found_since, promises_differ
from fedveil_lab.report.statement.carried import carried
from fedveil_lab.report.statement.document import FORMAT, encoded
from fedveil_lab.report.statement.gather import set_values
from fedveil_lab.report.statement.page import PAGE, REPORT, files_of, form_of
from fedveil_lab.report.statement.subject import Subject

MISSING = "does not lie beside the report"
OTHER = "is of another version of FedVeil: its figures are checked, and what it looks like is not"
APART = "promises"  # of a run's evidence


@dataclass(frozen=True)
class Checked:
    """One thing that was looked at; `holds` is None where it could not be.

    Attributes
    ----------
    what : str
        A file, or what a run says.
    holds : bool or None
        Whether it agrees.
    why : str
        Why not.
    kind : {"", "promise", "file"}
        Whether it is a run's promise, added up anew; or a file, compared whole.
    """

    what: str
    holds: bool | None
    why: str = ""
    kind: Literal["", "promise", "file"] = ""


def check(report: Path, ledgers: Sequence[Path], heads: Path | None = None) -> list[Checked]:
    """Compare a report with ledgers, and its files with what follows from them.

    Parameters
    ----------
    report : Path
        report.json; the page and the card lie beside it.
    ledgers : sequence of Path
        Of runs and data sets; files and folders.
    heads : Path, optional
        The second place of data sets' ledgers.

    Raises
    ------
    FieldError
        If the file is no report.
    """
    try:
        raw = report.read_bytes()
        values = json_of(raw)
        if values["format"] not in (FORMAT, earlier.FORMAT):
            raise ValueError(f"its format is {values['format']!r}, and this version reads {FORMAT!r}")
        checks = [Checked(REPORT, raw == encoded(values), "its bytes are not those that were written", "file")]
        try:
            books = read_books(ledgers)
        except LedgerError as error:
            return [*checks, Checked("ledgers", False, str(error))]
        values = earlier.as_today(values) if values["format"] == earlier.FORMAT else values
        checks += [*_promises(values, books), *_sets(values, books, heads), *_files(report, raw, values)]
    except FieldError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise damaged("REPORT", report, error, "restore the file") from error
    return [one if one.holds is not True else replace(one, why="") for one in checks]


def _promises(values: Mapping[str, Any], books: Books) -> Iterator[Checked]:
    """Add up each run's ledgers, and compare them with what the report says that they carry."""
    for held, said in zip(values["evidence"]["runs"], values["said"]["runs"], strict=True):
        seed = said.get("seed")
        name = str(held["setting"]) if seed is None else f"{held['setting']}, seed {seed}"
        own = books.runs.get(held["run"], {})
        known = {one["party"]: one["lines"] for one in held["sites"]}
        sets = {party: book.up_to(known[party]) if party in known else book for party, book in books.sets.items()}
        if not own and not known.keys() & sets.keys():
            yield Checked(f"{name}: promise", None, "its ledgers are not among --ledgers", "promise")
            continue
        yield from _run(name, held, said, own, sets)


def _run(
    name: str, held: Mapping[str, Any], said: Mapping[str, Any], own: Mapping[str, Book], sets: Mapping[str, Book]
) -> Iterator[Checked]:
    found = carried(held["run"], own, said, sets)
    given = vars(found)
    differ = [k for k in given if k in held and k != APART and not agree(given[k], held[k])]
    why = "; ".join([*found.faults, *([f"they give other {', '.join(differ)}"] if differ else [])])
    yield Checked(f"{name}: ledgers", not why, why)
    quoted = sorted(said.get("promises", {}).keys() - found.promises.keys())
    if quoted:
        yield Checked(f"{name}: {', '.join(quoted)}", None, "no ledger gives it: the report has the author's word")
    if not found.promises and not held["promises"]:
        yield Checked(f"{name}: promise", None, "no ledger of --ledgers gives it", "promise")
        return
    other = promises_differ(found.promises, held["promises"])
    yield Checked(f"{name}: promise", not other, other, "promise")
    if not found.bound:
        unbound = "they name no parties: one may be missing, and who the author says to trust, at which delta"
        yield Checked(f"{name}: ledgers of an earlier version", None, unbound)
    both = found.promises.keys() & held["promises"].keys()
    doubts = [doubt for party in both for doubt in found_since(found.promises[party], held["promises"][party])]
    for doubt in dict.fromkeys(doubts):
        yield Checked(f"{name}: lines of an earlier version", None, f"it holds if, too, {doubt}")


def _sets(values: Mapping[str, Any], books: Books, heads: Path | None) -> Iterator[Checked]:
    """Compare ledgers of data sets up to where the report knew them: they may have grown since."""
    for one in values["evidence"]["sets"]:
        party, book = one["ledger"]["party"], books.sets.get(one["ledger"]["party"])
        name = f"data set {party}"
        if book is None:
            yield Checked(name, None, "its ledger is not among --ledgers", "promise")
            continue
        same = agree(set_values(book.up_to(one["ledger"]["lines"]), values["said"]["policy"]), one)
        yield Checked(name, same, "its ledger is another, was shortened, or gives other sums")
        yield _head(name, book, heads)


def _head(name: str, book: Book, heads: Path | None) -> Checked:
    if heads is None or book.file is None:
        return Checked(f"{name}: head", None, "not given (--head FOLDER): lines may be missing at the ledger's end")
    try:
        read_head(book.file, heads)
    except LedgerError as error:
        return Checked(f"{name}: head", False, str(error))
    return Checked(f"{name}: head", True)


def _files(report: Path, raw: bytes, values: Mapping[str, Any]) -> Iterator[Checked]:
    """Make all files again from the report's evidence and its author's words, and compare them whole."""
    if values["form"] != form_of():
        yield from _other(report.parent, values["files"])
        return
    page, shown = report.parent / PAGE, [one["digest"] for one in values["said"]["attacked"]["pictures"]]
    if shown and not page.is_file():
        yield Checked(PAGE, None, MISSING, "file")
        return
    there = _pictures(page.read_bytes()) if shown else {}
    subject = Subject.again(values, {digest: there.get(digest, b"") for digest in shown})
    for name, content in files_of(subject).items():
        if name == REPORT:
            yield Checked("what follows", raw == content, "report.json says what does not follow from it", "file")
        elif not (report.parent / name).is_file():
            yield Checked(name, None, MISSING, "file")
        else:
            same = (report.parent / name).read_bytes() == content
            yield Checked(name, same, "is not the file that follows from the report", "file")


def _other(folder: Path, files: Mapping[str, str]) -> Iterator[Checked]:
    """Compare the digests of files that another version made."""
    for name, digest in files.items():
        file = folder / name
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            yield Checked(name, False, "is not the file that was written with the report", "file")
        else:
            yield Checked(name, None, OTHER if file.is_file() else MISSING, "file")


def _pictures(page: bytes) -> dict[str, bytes]:
    """PNGs on a page, by their SHA-256."""
    found = {}
    for text in re.findall(rb'data:image/png;base64,([^"]*)"', page):
        try:
            content = b64decode(text, validate=True)
        except NotBase64:
            continue
        found[hashlib.sha256(content).hexdigest()] = content
    return found
