"""The ledgers of a run: in memory, or one file a party."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from fedveil.accounting import Ledger
from fedveil.engines.party import Store
from fedveil.errors import LedgerError


class Ledgers:
    """Ledgers that live in memory.

    Parameters
    ----------
    run_id : str
        The run they belong to.

    Attributes
    ----------
    books : dict of str to Ledger
        By party.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.books: dict[str, Ledger] = {}

    def open(self, party: str) -> tuple[Ledger, Store]:
        """A party's ledger, and what makes its lines durable."""
        book = self.books.setdefault(party, Ledger(self.run_id, party))
        return book, lambda line: None

    def flush(self) -> None:
        """Make every line durable."""

    def counts(self) -> dict[str, int]:
        """Number of lines of each party."""
        return {party: len(book.entries) for party, book in sorted(self.books.items())}


class LedgerFiles(Ledgers):
    """One file a party: ``<party>.jsonl``, lines of JSON, only ever appended to.

    With `durable` a line is on the disk before its release is handed over. Without, lines are written when `flush` is
    called, once a round before the round's broadcast is used: that is enough where the same bits can be drawn again
    and no party is apart from the others.

    A last line without its end was never handed over (the write had not returned). If all that is missing are its
    closing marks, and its checksum then proves it whole, it is completed and counts as spent; otherwise it is removed,
    with a message. A line that has its end but cannot be read was edited, and the ledger is refused.

    Parameters
    ----------
    folder : Path
        Where the files lie.
    run_id : str
        Lines of another run are refused.
    durable : bool
        Write each line at once.
    message : callable
        Takes what the user should know.
    """

    def __init__(self, folder: Path, run_id: str, *, durable: bool, message: Callable[[str], None]) -> None:
        super().__init__(run_id)
        self.folder, self.durable, self._message = folder, durable, message
        self._pending: dict[str, list[str]] = {}

    def resume(self, recorded: Mapping[str, int]) -> None:
        """Read and check every file.

        Parameters
        ----------
        recorded : mapping of str to int
            Lines of each party that a checkpoint knows of.

        Raises
        ------
        LedgerError
            If a file was edited, belongs to another run, or has fewer whole lines than recorded.
        """
        parties = {path.stem for path in self.folder.glob("*.jsonl")}
        if parties:  # whoever was killed may have written, and not come to this
            sync(self.folder)
        for party in sorted(parties | set(recorded)):
            book = Ledger.parse(self.run_id, party, self._read(party))
            if len(book.entries) < recorded.get(party, 0):
                raise LedgerError(
                    f"ledger of {party!r} has {len(book.entries)} whole lines, fewer than the {recorded[party]} of the "
                    "checkpoint; restore the file or start a new run"
                )
            self.books[party] = book

    def open(self, party: str) -> tuple[Ledger, Store]:
        book, _ = super().open(party)

        def store(line: str) -> None:
            self._pending.setdefault(party, []).append(line)
            if self.durable:
                self._write(party)

        return book, store

    def flush(self) -> None:
        for party in sorted(self._pending):
            self._write(party)

    def _write(self, party: str) -> None:
        lines = self._pending.get(party, [])
        if lines:
            append(self.folder / f"{party}.jsonl", "".join(f"{line}\n" for line in lines))
            self._pending[party] = []

    def _read(self, party: str) -> list[str]:
        path = self.folder / f"{party}.jsonl"
        raw = b""
        if path.exists():
            sync(path)
            raw = path.read_bytes()
        head, end, tail = raw.rpartition(b"\n")
        try:
            lines = head.decode().split("\n") if end else []
        except UnicodeDecodeError as error:
            raise LedgerError(f"ledger of {party!r} is no text; restore the file or start a new run") from error
        if not tail:
            return lines
        whole = self._completed(party, lines, tail)
        if whole is None:
            self._message(f"ledger of {party!r}: a half-written last line was removed; its release never left")
        else:
            self._message(f"ledger of {party!r}: a half-written last line was completed and counts as spent")
            lines.append(whole)
        replace(path, "".join(f"{line}\n" for line in lines).encode())
        return lines

    def _completed(self, party: str, lines: list[str], tail: bytes) -> str | None:
        for closing in ("", "}", '"}'):
            try:
                text = tail.decode() + closing
                json.loads(text)
                Ledger.parse(self.run_id, party, [*lines, text])
            except ValueError:  # not whole, or (LedgerError) not what the checksum says
                continue
            return text
        return None


def append(path: Path, text: str) -> None:
    """Append to a file and wait for the disk; a failed write leaves the file as it was."""
    with path.open("ab") as file:
        before = file.tell()
        try:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
            if before == 0:
                sync(path.parent)
        except OSError:
            os.truncate(path, before)
            raise


def replace(path: Path, content: bytes, writer: str = "") -> None:
    """Replace a file's content at once: after a crash there is the old one or the new one.

    Parameters
    ----------
    path : Path
        The file.
    content : bytes
        What it is to hold.
    writer : str
        Tells apart processes that may write the same file at the same time; without locks, the last one stands.
    """
    temporary = path.with_name(f".{path.name}{writer}.part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those it lies in, unless they are there; wait for the disk."""
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the disk holds a file's bytes, or a folder's names; only with both a new file outlasts a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
