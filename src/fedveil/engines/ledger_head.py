"""The head of a lifetime ledger: how many lines it has and their checksum, under a key, in a second place.

A ledger proves that none of its lines was edited, and cannot prove that none is missing at its end: an older copy is
whole. Its head can. It lies in a folder that the operator names, on another disk at best, and the order is line, head,
release: whatever left is in both. A ledger that lacks what its head knows, or goes on where its head does not, was put
back or edited.

A line that opens an entry may be missing in the head, as a crash between the two leaves it: it only adds to what was
spent. Every other line is announced in the head before it is written, so that a crash is told from an edit. Both places
put back together agree, and whoever holds ledger, head and key can forge them.
"""

import hmac
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from fedveil.accounting import OPEN
from fedveil.errors import FieldError, LedgerError
from fedveil.files import LockedFile, create, private_folder, write_atomic
from fedveil.reading import json_of


@dataclass(frozen=True)
class Head:
    """Knowledge of a ledger in the second place.

    Attributes
    ----------
    dataset, ledger : str
        The data set's name, and SHA-256 of the ledger's first line.
    count : int
        Lines after the first that the ledger has at the least.
    checksum : str
        Of the last of them; of the first line's chain where there is none.
    announced : str
        The checksum of the line that is being written, the ledger that is taking this one's place (`following`), or an
        empty one.
    by, begun : str
        Who made the head, and why; when.
    """

    dataset: str
    ledger: str
    count: int
    checksum: str
    by: str
    announced: str = ""
    begun: str = ""

    def extended(self, lines: Sequence[str], first: str, before: int = 0) -> "Head":
        """Make the head of a ledger that agrees with this one, from its further lines.

        Parameters
        ----------
        lines : sequence of str
            All but the first `before`, which this head knows.
        first : str
            Checksum of the line before them.
        before : int
            Number of lines that are left out.

        Raises
        ------
        LedgerError
            If the ledger lacks a line that the head knows, or has one that neither opens an entry nor was announced.
        """
        known = self.count - before
        if known > len(lines) or _last_checksum(lines[:known], first) != self.checksum:
            why = f"is another at line {self.count} than its head knows"
            if known > len(lines):
                why = f"has {before + len(lines)} lines, and its head knows {self.count}"
            raise LedgerError(
                f"the ledger of {self.dataset!r} {why}: it was put back or edited; restore the last one"
            )
        for line in lines[known:]:
            if not opens(line) and checksum_of(line) != self.announced:
                why = f"goes on after the {self.count} lines that its head knows"
                raise LedgerError(
                    f"the ledger of {self.dataset!r} {why}: one of the two was put back; restore both"
                )
        return Head(
            self.dataset,
            self.ledger,
            before + len(lines),
            _last_checksum(lines, first),
            self.by,
            "",
            self.begun,
        )


class SecondPlace:
    """The folder that holds the head of a data set's ledger, and its key.

    Parameters
    ----------
    folder : str or Path
        Named by the operator; not the ledger's own.
    dataset : str
        Names the files, ``<dataset>.head``, ``<dataset>.key`` and ``<dataset>.sums``; the key's is locked while the
        ledger is in use, so that copies of a ledger cannot be used at the same time.

    Attributes
    ----------
    key_file, sums_file : Path
        The latter two.
    """

    def __init__(self, folder: str | Path, dataset: str) -> None:
        self.file, self.key_file = Path(folder) / f"{dataset}.head", Path(folder) / f"{dataset}.key"
        self.sums_file = Path(folder) / f"{dataset}.sums"
        self._dataset, self._key = dataset, b""

    def make(self, ledger: str, count: int, checksum: str, by: str) -> None:
        """Make the head of a ledger, and its key.

        Raises
        ------
        FieldError
            If nobody is named who makes it, or there is one: another ledger of the data set would be another budget.
        """
        if not by.strip():
            raise FieldError("by", by, "must say who begins the ledger, or makes its head, and why")
        if self.file.exists() or self.key_file.exists():
            accepted = "holds a head of this data set: what was spent stays spent. Restore its ledger, or name another"
            raise FieldError("head", str(self.file.parent), accepted)
        private_folder(self.file.parent)
        self._key = secrets.token_hex(32).encode()
        try:
            create(self.key_file, self._key)
            begun = datetime.now(UTC).isoformat(timespec="seconds")
            self.write(Head(self._dataset, ledger, count, checksum, by, "", begun))
        except OSError:
            for file in (self.file, self.key_file):  # a head of no ledger would refuse the next
                file.unlink(missing_ok=True)
            raise

    def locked(self) -> LockedFile:
        """Return the key's file, to be held while the ledger, or a copy of it, is in use.

        Raises
        ------
        LedgerError
            If there is none.
        """
        self._require_key()
        return LockedFile(self.key_file)

    def look(self, ledger: str) -> Head:
        """Read the head of a ledger, without a lock."""
        self._require_key()
        try:
            with self.key_file.open("rb") as file:
                self.know(file.fileno())
        except OSError as error:
            raise LedgerError(
                f"{self.key_file} cannot be read ({error.strerror}): restore it"
            ) from error
        return self.read(ledger)

    def _require_key(self) -> None:
        if not self.key_file.exists():
            what = f"{self.key_file}, the key of the ledger's head, is not there: without it nothing leaves"
            fix = "restore it; if it is lost, make another head and key in a new folder (fedveil ledger head)"
            raise LedgerError(f"{what}. {fix}")

    def know(self, handle: int) -> None:
        """Read the key, from its open file.

        Raises
        ------
        LedgerError
            If there is none in it, or others can read it.
        """
        os.lseek(handle, 0, os.SEEK_SET)
        self._key = os.read(handle, 4096).strip()
        open_to_others = os.name == "posix" and os.fstat(handle).st_mode & 0o077
        if open_to_others or not self._key:
            raise LedgerError(
                f"{self.key_file} is empty, or others can read it: restore it, with mode 600"
            )

    def read(self, ledger: str) -> Head:
        """Read the head of a ledger.

        Raises
        ------
        LedgerError
            If it is not there, was edited, or is another ledger's.
        """
        try:
            values = json_of(self.file.read_bytes())
            mark = values.pop("mac")
            head = Head(**values)
            if type(head.count) is not int or type(mark) is not str or head.count < 0:
                raise ValueError("a count and a code are needed")
        except FileNotFoundError as error:
            raise LedgerError(
                f"{self.file} is not there: without the head nothing leaves; restore it"
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(
                f"{self.file} cannot be read ({type(error).__name__}): restore it"
            ) from error
        if not hmac.compare_digest(mark.encode(), self._mac(head).encode()):
            raise LedgerError(f"{self.file} was edited, or its key is another: restore both")
        if head.ledger != ledger and head.announced.startswith(following(ledger, "")):
            begun = head.announced.removeprefix(following(ledger, ""))
            head = replace(head, ledger=ledger, count=0, checksum=begun, announced="")
        if (head.dataset, head.ledger) != (self._dataset, ledger):
            reason = f"is of another ledger of data set {head.dataset!r}"
            raise LedgerError(
                f"{self.file} {reason}: one data set has one ledger; restore that one"
            )
        return head

    def write(self, head: Head) -> None:
        """Replace the head at once, on the disk when this returns."""
        text = json.dumps({**asdict(head), "mac": self._mac(head)}) + "\n"
        write_atomic(self.file, text.encode())

    def _mac(self, head: Head) -> str:
        text = json.dumps([getattr(head, field.name) for field in fields(head)])
        return self.mark(text.encode()).decode()

    def mark(self, text: bytes) -> bytes:
        """Compute the code of a text under the key, 64 hexadecimal digits."""
        return hmac.new(self._key, text, "sha256").hexdigest().encode()


def following(ledger: str, checksum: str) -> str:
    """Return what a head announces while another ledger, whose chain begins so, takes the place of its own."""
    return f"next {ledger} {checksum}"


def _last_checksum(lines: Sequence[str], first: str) -> str:
    """Return what chains the next line to these; `first` where there are none."""
    return checksum_of(lines[-1]) if lines else first


def opens(line: str) -> bool:
    """Whether a line is an intent, which only adds to what was spent."""
    return bool(json_of(line).get("digest") == OPEN)


def checksum_of(line: str) -> str:
    """Return the checksum that chains the next line to this one."""
    return str(json_of(line)["checksum"])
