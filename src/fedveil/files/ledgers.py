"""Ledgers of one run, in memory or in files to which lines are added."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedveil.accounting import Ledger
from fedveil.accounting.ledger import RUN_OF_SITES, opening_digest
from fedveil.errors import FieldError, LedgerError
from fedveil.files.disk import append, write_atomic
from fedveil.files.locked import sync
from fedveil.reading import json_of

LineStore = Callable[[str], None]  # stores a committed ledger line, durably when it returns

SERVER = "server"  # party of a run's server
SHARED = "clients"  # name of the file with all clients' ledgers


class Ledgers:
    """Ledgers in memory.

    Parameters
    ----------
    run_id : str
        Id of their run.

    Attributes
    ----------
    books : dict of str to Ledger
        Ledgers by party.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.books: dict[str, Ledger] = {}

    def open(self, party: str) -> tuple[Ledger, LineStore]:
        """Open a party's ledger, with a function that makes its lines durable."""
        book = self.books.setdefault(party, Ledger(self.run_id, party))
        return book, lambda line: None

    def begin(self, opening: Mapping[str, Any], parties: Sequence[str]) -> None:
        """Bind the run in the first lines of its parties' ledgers, if they outlast it."""

    def flush(self) -> None:
        """Make every line durable."""

    def counts(self) -> dict[str, int]:
        """Count the lines of each party."""
        return {party: book.lines for party, book in sorted(self.books.items())}


class LedgerFiles(Ledgers):
    """Ledgers in files of JSON lines, only ever appended to.

    With `durable` each party has a file, ``<party>.jsonl``, and a line is on the disk before its release is handed
    over. Without it, `flush` writes the lines, once a round before the round's broadcast is used. That is enough if the
    same bits can be drawn again and all parties are in one process. All clients then share one file, ``clients.jsonl``,
    so that thousands of them wait for the disk once.

    A last line without its end was never handed over, because its write had not returned. It is completed if only its
    closing marks are missing and its checksum proves it whole; it then counts as spent. Otherwise it is removed, with a
    message. A line with its end that cannot be read was edited, and the ledger is refused.

    Parameters
    ----------
    folder : Path
        Folder of the files.
    run_id : str
        Id of the run; lines of another run are refused.
    durable : bool
        Whether each line is written at once.
    message : callable
        Function that tells the user of a mended line.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        *,
        durable: bool,
        message: Callable[[str], None],
    ) -> None:
        super().__init__(run_id)
        self.folder, self.durable, self._message = folder, durable, message
        self._unread = any(folder.glob("*.jsonl"))
        self._pending: dict[str, list[str]] = {}

    def resume(self, recorded: Mapping[str, int]) -> None:
        """Read and check every file.

        Parameters
        ----------
        recorded : mapping of str to int
            Number of lines of each party in a checkpoint.

        Raises
        ------
        LedgerError
            If a file was edited, belongs to another run, or has fewer whole lines than recorded.
        """
        self._unread = False
        paths = sorted(self.folder.glob("*.jsonl"), key=_shared_last)
        if paths:  # a killed process may not have waited for the disk
            sync(self.folder)
        lines: dict[str, list[str]] = {party: [] for party in recorded}
        for path in paths:
            self._read(path, lines)
        for party in sorted(lines):
            book = Ledger.parse(self.run_id, party, lines[party])
            if book.lines < recorded.get(party, 0):
                few = f"has {book.lines} whole lines, fewer than the {recorded[party]} of the checkpoint"
                raise LedgerError(f"ledger of {party!r} {few}; restore the file or start a new run")
            self.books[party] = book

    def begin(self, opening: Mapping[str, Any], parties: Sequence[str]) -> None:
        """Bind the run in the first line of its parties' ledgers; the line is written with the next one.

        A run that goes on keeps its server's first line. A run of an earlier version without such a line stays as it
        is.

        Parameters
        ----------
        opening : mapping
            First line of the server's ledger (`Ledger.bind`).
        parties : sequence of str
            Parties with ledgers to be bound, the server among them.
        """
        books = {party: self.open(party)[0] for party in parties}
        if any(book.lines and book.opening is None for book in self.books.values()):
            return
        server = books[SERVER]
        earlier = [one.get(RUN_OF_SITES) for one in server.openings]
        went_on = server.opening is not None and opening.get(RUN_OF_SITES) not in earlier
        if went_on:
            self._pending.setdefault(SERVER, []).append(server.bind(opening))
        bound = server.opening or opening
        for party, book in books.items():
            if not book.lines:
                first = bound if party == SERVER else {"of": opening_digest(bound)}
                self._pending.setdefault(party, []).append(book.bind(first))

    def open(self, party: str) -> tuple[Ledger, LineStore]:
        if self._unread:
            accepted = "holds ledgers that were not read: what they say was spent would be forgotten. Call resume first"
            raise FieldError("folder", str(self.folder), accepted)
        book, _ = super().open(party)

        def store(line: str) -> None:
            self._pending.setdefault(party, []).append(line)
            if self.durable:
                self._write(self._path(party), [party])

        return book, store

    def flush(self) -> None:
        waiting = sorted(party for party, lines in self._pending.items() if lines)
        files: dict[Path, list[str]] = {}
        for party in waiting:
            files.setdefault(self._path(party), []).append(party)
        for path, parties in files.items():
            self._write(path, parties)

    def _path(self, party: str) -> Path:
        own = self.durable or party == SERVER
        return self.folder / f"{party if own else SHARED}.jsonl"

    def _write(self, path: Path, parties: Sequence[str]) -> None:
        lines = list(chain.from_iterable(self._pending[party] for party in parties))
        append(path, _text_of(lines))
        for party in parties:
            self._pending[party] = []

    def _read(self, path: Path, lines: dict[str, list[str]]) -> None:
        """Add a file's whole lines to those of their parties."""
        sync(path)
        name, raw = path.stem, path.read_bytes()
        head, end, tail = raw.rpartition(b"\n")
        try:
            whole = head.decode().split("\n") if end else []
        except UnicodeDecodeError as error:
            raise LedgerError(
                f"ledger of {name!r} is no text; restore the file or start a new run"
            ) from error
        if name != SHARED:
            lines.setdefault(name, []).extend(whole)
        else:
            for number, line in enumerate(whole, start=1):
                lines.setdefault(_party(line, number), []).append(line)
        if not tail:
            return
        ledger = self._completed(None if name == SHARED else name, lines, tail)
        if ledger is None:
            self._message(
                f"ledger of {name!r}: a half-written last line was removed; its release never left"
            )
        else:
            self._message(
                f"ledger of {name!r}: a half-written last line was completed and counts as spent"
            )
            party, text = ledger
            whole.append(text)
            lines.setdefault(party, []).append(text)
        write_atomic(path, _text_of(whole).encode())

    def _completed(
        self,
        party: str | None,
        lines: Mapping[str, list[str]],
        tail: bytes,
    ) -> tuple[str, str] | None:
        """Return the whole last line and its party, if its checksum proves it."""
        for closing in ("", "}", '"}'):
            try:
                text = tail.decode() + closing
                owner = party or _party(text, 0)
                Ledger.parse(self.run_id, owner, [*lines.get(owner, []), text])
            except ValueError:  # not whole, or (LedgerError) not what the checksum says
                continue
            return owner, text
        return None


def _shared_last(path: Path) -> tuple[bool, str]:
    """Return a sorting key: files of single parties first."""
    return path.stem == SHARED, path.stem


def _text_of(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _party(line: str, number: int) -> str:
    try:
        return str(json_of(line)["party"])
    except (ValueError, KeyError, TypeError) as error:
        where = f"ledger of {SHARED!r}, line {number}"
        raise LedgerError(
            f"{where} cannot be read ({error}); restore the file or start a new run"
        ) from error
