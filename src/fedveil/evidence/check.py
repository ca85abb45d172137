"""Checks of a report's promises against ledgers, on any machine.

The promises are computed again from the ledgers, and must equal those in report.json. So a reader with the true ledgers
cannot be shown another promise. If ledgers were edited together with the report, only the heads of data sets in a
second place show it. The pages next to the report are compared by the laboratory's `fedveil report --verify`.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedveil.accounting import Policy
from fedveil.engines.lifetime import read_head
from fedveil.errors import FieldError, LedgerError, damaged
from fedveil.evidence import earlier
from fedveil.evidence.agreement import agree, found_since, promises_differ
from fedveil.evidence.books import Book, Books, read_books
from fedveil.evidence.carried import books_of_sites, carried
from fedveil.evidence.costs import spent_of
from fedveil.evidence.recomputed import on_their_word, too_small
from fedveil.reading import json_of
from fedveil.tables import NOTHING

FORMAT = "fedveil report 2"
REPORT = "report.json"
APART = "promises"  # of a run's evidence
ON_WORD = "whoever wrote them says how much noise there was: they name nothing from which that can be computed anew"


@dataclass(frozen=True)
class Checked:
    """Result of one check.

    Attributes
    ----------
    what : str
        File or statement that was checked.
    holds : bool or None
        Whether it agrees; None if it could not be checked.
    why : str
        Reason, unless it holds.
    kind : {"", "promise", "file", "word"}
        Kind of check: a run's promise that is computed again, a file that is compared as a whole, or lines that are
        believed.
    """

    what: str
    holds: bool | None
    why: str = ""
    kind: Literal["", "promise", "file", "word"] = ""


Files = Callable[[Path, bytes, Mapping[str, Any]], Iterable[Checked]]


def no_files(report: Path, raw: bytes, values: Mapping[str, Any]) -> Iterable[Checked]:
    """Compare no files besides the report itself."""
    return ()


def check_promises(
    report: Path, ledgers: Sequence[Path], heads: Path | None = None, files: Files = no_files
) -> list[Checked]:
    """Check a report's promises against ledgers.

    Parameters
    ----------
    report : Path
        Path of report.json.
    ledgers : sequence of Path
        Files and folders with ledgers of runs and data sets.
    heads : Path, optional
        Folder with the heads of data sets' ledgers (their second place).
    files : callable, optional
        Function ``(path, bytes, values)`` of the report that checks further files.

    Raises
    ------
    FieldError
        If the file is no report.
    """
    try:
        raw = report.read_bytes()
        values = json_of(raw)
        if values["format"] not in (FORMAT, earlier.FORMAT):
            raise ValueError(
                f"its format is {values['format']!r}, and this version reads {FORMAT!r}"
            )
        checks = [
            Checked(
                REPORT, raw == encoded(values), "its bytes are not those that were written", "file"
            )
        ]
        try:
            books = read_books(ledgers)
        except LedgerError as error:
            return [*checks, Checked("ledgers", False, str(error))]
        if values["format"] == earlier.FORMAT:
            values = earlier.as_today(values)
        checks += _promises(values, books)
        checks += _sets(values, books, heads)
        checks += files(report, raw, values)
    except FieldError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise damaged("REPORT", report, error, "restore the file") from error
    return list(map(_without_reason, checks))


def _without_reason(check: Checked) -> Checked:
    """Drop the reason of a check that holds."""
    return replace(check, why="") if check.holds is True else check


def _promises(values: Mapping[str, Any], books: Books) -> Iterator[Checked]:
    """Compute each run's promises from its ledgers, and compare them with the report's."""
    for held, said in zip(values["evidence"]["runs"], values["said"]["runs"], strict=True):
        seed = said.get("seed")
        name = str(held["setting"]) if seed is None else f"{held['setting']}, seed {seed}"
        own = books.runs.get(held["run"], {})
        known = {one["party"]: one["lines"] for one in held["sites"]}
        sets = dict(books.sets)
        for party in known.keys() & sets.keys():
            sets[party] = sets[party].up_to(known[party])
        if not own and not known.keys() & sets.keys():
            yield Checked(
                f"{name}: promise", None, "its ledgers are not among --ledgers", "promise"
            )
            continue
        yield from _run(name, held, said, own, sets)


def _run(
    name: str,
    held: Mapping[str, Any],
    said: Mapping[str, Any],
    own: Mapping[str, Book],
    sets: Mapping[str, Book],
) -> Iterator[Checked]:
    found = carried(held["run"], own, said, sets)
    given = vars(found)
    differ = [
        part
        for part in given
        if part in held and part != APART and not agree(given[part], held[part])
    ]
    faults = list(found.faults)
    if differ:
        faults.append(f"they give other {', '.join(differ)}")
    why = "; ".join(faults)
    yield Checked(f"{name}: ledgers", not why, why)
    quoted = sorted(said.get("promises", {}).keys() - found.promises.keys())
    if quoted:
        yield Checked(
            f"{name}: {', '.join(quoted)}",
            None,
            "no ledger gives it: the report has the author's word",
        )
    if not found.promises and not held["promises"]:
        yield Checked(f"{name}: promise", None, "no ledger of --ledgers gives it", "promise")
        return
    other = promises_differ(found.promises, held["promises"])
    yield Checked(f"{name}: promise", not other, other, "promise")
    if not found.bound:
        unbound = "they name no parties: one may be missing, and who the author says to trust, at which delta"
        yield Checked(f"{name}: ledgers of an earlier version", None, unbound)
    every = [*own.values(), *books_of_sites(own, said, sets).values()]
    count = sum(on_their_word(book.ledger.entries) for book in every)
    if count:
        yield Checked(f"{name}: {count} lines on their word", None, ON_WORD, "word")
    both = found.promises.keys() & held["promises"].keys()
    doubts: dict[str, None] = {}
    for party in both:
        doubts |= dict.fromkeys(found_since(found.promises[party], held["promises"][party]))
    for doubt in doubts:
        yield Checked(f"{name}: lines of an earlier version", None, f"it holds if, too, {doubt}")


def _sets(values: Mapping[str, Any], books: Books, heads: Path | None) -> Iterator[Checked]:
    """Compare ledgers of data sets with the report, up to the lines that it knew; they may have grown since."""
    named = [one["ledger"]["party"] for one in values["evidence"]["sets"]]
    for party in sorted(set(named)):
        if named.count(party) > 1:
            yield Checked(f"data set {party}", False, "the report shows it more than once")
    for one in values["evidence"]["sets"]:
        party, book = one["ledger"]["party"], books.sets.get(one["ledger"]["party"])
        name = f"data set {party}"
        if book is None:
            yield Checked(name, None, "its ledger is not among --ledgers", "promise")
            continue
        known = book.up_to(one["ledger"]["lines"])
        same = agree(set_values(known, values["said"]["policy"]), one)
        weak = too_small(party, known.ledger.all_entries)
        yield Checked(
            name,
            same and not weak,
            weak or "its ledger is another, was shortened, or gives other sums",
        )
        count = on_their_word(known.ledger.all_entries)
        if count:
            yield Checked(f"{name}: {count} lines on their word", None, ON_WORD, "word")
        yield _head(name, book, heads)
    said = {one["ledger"]["party"] for one in values["evidence"]["sets"]}
    for party in sorted(books.sets.keys() - said):
        yield Checked(
            f"data set {party}",
            None,
            "the report says nothing of it, and its ledger is given",
            "promise",
        )


def _head(name: str, book: Book, heads: Path | None) -> Checked:
    if heads is None or book.file is None:
        return Checked(
            f"{name}: head",
            None,
            "not given (--head FOLDER): lines may be missing at the ledger's end",
        )
    try:
        read_head(book.file, heads)
    except LedgerError as error:
        return Checked(f"{name}: head", False, str(error))
    return Checked(f"{name}: head", True)


def encoded(values: Mapping[str, Any]) -> bytes:
    """Return a report's values as bytes in their canonical form, with a digest of the values."""
    plain = dict(values)
    plain.pop("digest", None)
    text = json.dumps(plain, indent=1, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps({**plain, "digest": digest}, indent=1, sort_keys=True) + "\n").encode()


def rule_of(policy: Mapping[str, Any]) -> Policy:
    """Return the given policy; without one, a policy that only counts costs."""
    return Policy.from_dict(dict(policy)) if policy else Policy(distance=1.0)


def set_values(book: Book, policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a data set's ledger and its costs as values for JSON."""
    spent = spent_of(book.ledger, rule_of(policy))
    rows = []
    for row in spent.rows:
        rows.append(["" if cell == NOTHING else str(cell) for cell in row])
    return {"ledger": book.values(), "header": list(spent.header), "spent": rows}
