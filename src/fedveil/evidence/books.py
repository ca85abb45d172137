"""Ledgers in files, of runs (by run and party) and of data sets, with their promises and digests."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedveil.accounting import Guarantee, Ledger, guarantee_values
from fedveil.engines.history import totals_of
from fedveil.engines.lifetime import read_ledger
from fedveil.errors import FieldError, LedgerError
from fedveil.reading import json_of


@dataclass(frozen=True, eq=False)
class Book:
    """Ledger of one party in one run, or of a data set over all runs.

    Attributes
    ----------
    ledger : Ledger
        Ledger, checked line by line.
    lines : tuple of str
        Lines of the file; for a data set's ledger without the first line.
    file : Path, optional
        File of a data set's ledger.
    """

    ledger: Ledger
    lines: tuple[str, ...]
    file: Path | None = None

    def of(self, *runs: str) -> "Book":
        """Return the same lines with the entries of one run; a continued run may have several ids."""
        ledger = self.ledger
        first, *more = [Ledger.parse(run, ledger.party, self.lines, ledger.head) for run in runs]
        for other in more:
            first.entries += other.entries
        return Book(first, self.lines)

    def up_to(self, count: int) -> "Book":
        """Return a ledger with only the first `count` lines, as an earlier report had it."""
        ledger, lines = self.ledger, self.lines[:count]
        return Book(Ledger.parse(ledger.run, ledger.party, lines, ledger.head), lines)

    def values(self) -> dict[str, Any]:
        """Return party, number of lines, last checksum and digest of the bytes, for JSON."""
        digest = hashlib.sha256("".join(f"{line}\n" for line in self.lines).encode()).hexdigest()
        party, head = self.ledger.party, self.ledger.checksum
        return {"party": party, "lines": len(self.lines), "head": head, "digest": digest}


@dataclass(frozen=True, eq=False)
class Books:
    """Ledgers read from files: `runs` by run and party, and data `sets` by name."""

    runs: Mapping[str, Mapping[str, Book]] = field(default_factory=dict)
    sets: Mapping[str, Book] = field(default_factory=dict)


def read_books(paths: Iterable[Path]) -> Books:
    """Read and check every ledger among files and below folders.

    Raises
    ------
    LedgerError
        If a line was edited or is incomplete, or two files of one party or data set differ.
    FieldError
        If there is no such file.
    """
    lines: dict[tuple[str, str], list[str]] = {}
    sets: dict[str, Book] = {}
    for path in paths:
        if not path.exists():
            raise FieldError("--ledgers", str(path), "there is no such file or folder")
        for file in _ledgers_below(path) if path.is_dir() else [path]:
            if _of_data(file):
                _add_set(sets, file)
            else:
                _add(lines, file)
    runs: dict[str, dict[str, Book]] = {}
    for (run, party), own in lines.items():
        runs.setdefault(run, {})[party] = Book(Ledger.parse(run, party, own), tuple(own))
    return Books(runs, sets)


def _ledgers_below(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.jsonl"))
    return [file for file in files if file.parent.name.startswith("ledger") or _of_data(file)]


def _add_set(sets: dict[str, Book], file: Path) -> None:
    """Add a data set's ledger; a file given twice counts once."""
    ledger, lines, torn = read_ledger(file)
    if torn:
        raise LedgerError(f"{file}: its last line has no end; restore the file")
    name = file.stem
    if name in sets and sets[name].lines != tuple(lines):
        raise LedgerError(
            f"{file}: there is another ledger of a data set {name!r}; name one of them"
        )
    sets[name] = Book(ledger, tuple(lines), file)


def _add(lines: dict[tuple[str, str], list[str]], file: Path) -> None:
    """Add a file's lines to those of their parties; a file given twice counts once."""
    own: dict[tuple[str, str], list[str]] = {}
    for key, line in _lines_of(file):
        own.setdefault(key, []).append(line)
    for (run, party), read in own.items():
        if lines.setdefault((run, party), read) != read:
            raise LedgerError(
                f"{file}: there is another ledger of run {run!r}, party {party!r}; name one of them"
            )


def _lines_of(file: Path) -> Iterable[tuple[tuple[str, str], str]]:
    try:
        *lines, end = file.read_bytes().decode().split("\n")
        if end:
            raise ValueError("its last line has no end")
        for line in lines:
            values = json_of(line)
            yield (str(values["run"]), str(values["party"])), line
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{file} is no ledger: {error}; restore the file") from error


def _of_data(file: Path) -> bool:
    """Whether a file is a data set's ledger, by its first line."""
    with file.open("rb") as opened:
        first = opened.readline(1 << 20)
    try:
        return "dataset" in json_of(first)
    except (ValueError, TypeError):
        return False


def promise_of_sites(
    trust: str, books: Mapping[str, Book], delta: float
) -> dict[str, dict[str, Any]]:
    """Compute the promise of clients in one deployed run from the ledgers of their data sets; for JSON."""
    ledgers = [book.ledger for book in books.values() if book.ledger.entries]
    if not ledgers or trust == "central":
        return {}
    own = {
        str(number): ledger for number, ledger in enumerate(ledgers)
    }  # a data set's name may be "server"
    whose = f"worst of {len(own)} clients, by their own ledgers"
    return {whose: plain(totals_of(trust, own).worst, delta)}


def plain(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """Return a guarantee for JSON without its events, as there may be thousands and the ledgers have them."""
    values = guarantee_values(guarantee, delta)
    return {name: value for name, value in values.items() if not name.startswith("events")}
