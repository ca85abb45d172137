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
    """Ledgers of all parties of a run, in memory.

    Parameters
    ----------
    run_id : str
        Id of the run.

    Attributes
    ----------
    books : dict of str to Ledger
        Ledgers by party.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.books: dict[str, Ledger] = {}

    def open(self, party: str) -> tuple[Ledger, LineStore]:
        """Return a party's ledger, and a function that stores its lines."""
        book = self.books.setdefault(party, Ledger(self.run_id, party))
        return book, lambda line: None

    def begin(self, opening: Mapping[str, Any], parties: Sequence[str]) -> None:
        """Write the run's first line into its parties' ledgers, if they are files; here nothing."""

    def flush(self) -> None:
        """Write all pending lines to the disk; here nothing."""

    def counts(self) -> dict[str, int]:
        """Count the lines of each party."""
        return {party: book.lines for party, book in sorted(self.books.items())}


class LedgerFiles(Ledgers):
    """Ledgers of all parties of a run, in files of JSON lines that are only appended to.

    With `durable` each party has a file, ``<party>.jsonl``, and a line is on the disk before its release is sent.
    Without it, `flush` writes the lines once in each round, before the round's broadcast is used. That is enough if the
    same bits can be drawn again and all parties are in one process. All clients then share one file, ``clients.jsonl``,
    so that thousands of them wait for the disk only once.

    If the last line is incomplete, its release was never sent, because the write had not finished. The line is
    completed if only closing brackets are missing and its checksum fits; it then counts as spent. Otherwise it is
    removed, with a message. A complete line that cannot be read was edited, and the ledger is refused.

    Parameters
    ----------
    folder : Path
        Folder of the files.
    run_id : str
        Id of the run; lines of another run are refused.
    durable : bool
        Whether each line is written to the disk at once.
    message : callable
        Called with a text about a repaired line.
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
        """Read and check every ledger file, to continue a run.

        Parameters
        ----------
        recorded : mapping of str to int
            Number of lines of each party in a checkpoint.

        Raises
        ------
        LedgerError
            If a file was edited, belongs to another run, or has fewer complete lines than recorded.
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
        """Put the run's first line into its parties' ledgers; it is written together with the next line.

        A continued run keeps its server's first line. A run of an earlier version without a first line gets none.

        Parameters
        ----------
        opening : mapping
            First line of the server's ledger (`Ledger.bind`).
        parties : sequence of str
            Parties whose ledgers get the first line, with the server.
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
        """Add a file's complete lines to those of their parties."""
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
        """Return the completed last line and its party, if its checksum fits; else None."""
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
    """Return a sorting key for files: those of single parties come first."""
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
