"""A report's promises checked against ledgers, on any machine.

What ledgers carry is added up again, and has to be what report.json says. Whoever holds the true ledgers cannot be
shown another promise. Ledgers that were edited together with the report are noticed by the heads of data sets in a
second place alone. The pages beside it are compared by the laboratory's `fedveil report --verify`.
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


Files = Callable[[Path, bytes, Mapping[str, Any]], Iterable[Checked]]


def no_files(report: Path, raw: bytes, values: Mapping[str, Any]) -> Iterable[Checked]:
    """Compare no file but the report."""
    return ()


def check_promises(
    report: Path, ledgers: Sequence[Path], heads: Path | None = None, files: Files = no_files
) -> list[Checked]:
    """Compare what a report says that ledgers carry with the ledgers.

    Parameters
    ----------
    report : Path
        report.json.
    ledgers : sequence of Path
        Of runs and data sets; files and folders.
    heads : Path, optional
        The second place of data sets' ledgers.
    files : callable, optional
        Compares what lies beside the report: a function of its path, its bytes and what they say.

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
        checks += [*_promises(values, books), *_sets(values, books, heads), *files(report, raw, values)]
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
    every = [*own.values(), *books_of_sites(own, said, sets).values()]
    count = on_their_word(entry for book in every for entry in book.ledger.entries)
    if count:
        why = "scale and sensitivity allow them; they name no draws from which they could be computed anew"
        yield Checked(f"{name}: {count} lines on their word", None, why)
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
        known = book.up_to(one["ledger"]["lines"])
        same = agree(set_values(known, values["said"]["policy"]), one)
        weak = too_small(party, known.ledger.all_entries)
        yield Checked(name, same and not weak, weak or "its ledger is another, was shortened, or gives other sums")
        yield _head(name, book, heads)
    said = {one["ledger"]["party"] for one in values["evidence"]["sets"]}
    for party in sorted(books.sets.keys() - said):
        yield Checked(f"data set {party}", None, "the report says nothing of it, and its ledger is given", "promise")


def _head(name: str, book: Book, heads: Path | None) -> Checked:
    if heads is None or book.file is None:
        return Checked(f"{name}: head", None, "not given (--head FOLDER): lines may be missing at the ledger's end")
    try:
        read_head(book.file, heads)
    except LedgerError as error:
        return Checked(f"{name}: head", False, str(error))
    return Checked(f"{name}: head", True)


def encoded(values: Mapping[str, Any]) -> bytes:
    """The one way to write these values, with the digest of all others at the end."""
    plain = {k: v for k, v in values.items() if k != "digest"}
    text = json.dumps(plain, indent=1, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps({**plain, "digest": digest}, indent=1, sort_keys=True) + "\n").encode()


def rule_of(policy: Mapping[str, Any]) -> Policy:
    """The policy in force; without one, one that counts what is spent."""
    return Policy.from_dict(dict(policy)) if policy else Policy(distance=1.0)


def set_values(book: Book, policy: Mapping[str, Any]) -> dict[str, Any]:
    """A data set's ledger, and what was spent of it, for JSON."""
    spent = spent_of(book.ledger, rule_of(policy))
    rows = [["" if cell == NOTHING else str(cell) for cell in row] for row in spent.rows]
    return {"ledger": book.values(), "header": list(spent.header), "spent": rows}
