"""Head of a lifetime ledger: its number of lines and last checksum, authenticated by a key, in a second place.

A ledger alone shows that no line was edited. It cannot show that no line is missing at its end, because an older copy
looks complete. Its head shows that. The operator chooses the head's folder, preferably on another disk. The order is
line, head, release, so every release is in both. If a ledger lacks a line that its head knows, or has other lines, it
was edited or replaced by an older copy.

After a crash between the two, a line that opens an entry may be missing in the head; such a line only adds a cost.
Every other line is announced in the head before it is written, which distinguishes a crash from an edit. The head has
limits: if both places are replaced by older copies together, they agree. And anybody who holds ledger, head and key can
forge them.
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
    """Content of a ledger's head: number of lines, last checksum, and announced change.

    Attributes
    ----------
    dataset, ledger : str
        Name of the data set, and SHA-256 of the ledger's first line.
    count : int
        Least number of lines that the ledger has after the first.
    checksum : str
        Checksum of the last of these lines, or of the first line if there is none.
    announced : str
        Checksum of the line being written, or announcement of a ledger that replaces this one (`following`), or "".
    by, begun : str
        Author of the head with the reason, and the date.
    """

    dataset: str
    ledger: str
    count: int
    checksum: str
    by: str
    announced: str = ""
    begun: str = ""

    def extended(self, lines: Sequence[str], first: str, before: int = 0) -> "Head":
        """Check a ledger's further lines against this head, and return the head of the whole ledger.

        Parameters
        ----------
        lines : sequence of str
            Lines of the ledger, without its first `before` ones.
        first : str
            Checksum of the line before these.
        before : int
            Number of lines left out; this head covers them.

        Raises
        ------
        LedgerError
            If the ledger lacks a line that the head knows. Also for a new line that opens no entry and was not
            announced.
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
    """Folder with the head of a data set's ledger and the key that authenticates it.

    Parameters
    ----------
    folder : str or Path
        Folder that the operator chose; not the ledger's own.
    dataset : str
        Name of the files ``<dataset>.head``, ``<dataset>.key`` and ``<dataset>.sums``. The key file is locked while the
        ledger is in use, so that two copies of a ledger cannot be used at once.

    Attributes
    ----------
    key_file, sums_file : Path
        Paths of the last two files.
    """

    def __init__(self, folder: str | Path, dataset: str) -> None:
        self.file, self.key_file = Path(folder) / f"{dataset}.head", Path(folder) / f"{dataset}.key"
        self.sums_file = Path(folder) / f"{dataset}.sums"
        self._dataset, self._key = dataset, b""

    def make(self, ledger: str, count: int, checksum: str, by: str) -> None:
        """Make a new head for a ledger, and a new key.

        Raises
        ------
        FieldError
            If `by` is empty, or there is a head already: a second ledger of the data set would be a second budget.
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
            for file in (
                self.file,
                self.key_file,
            ):  # a head without a ledger would refuse the next one
                file.unlink(missing_ok=True)
            raise

    def locked(self) -> LockedFile:
        """Return the key file as a lock, to be held while the ledger or a copy of it is in use.

        Raises
        ------
        LedgerError
            If there is no key file.
        """
        self._require_key()
        return LockedFile(self.key_file)

    def look(self, ledger: str) -> Head:
        """Read the head of a ledger without locking it."""
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
        """Read the key from its open file, and keep it for this object.

        Raises
        ------
        LedgerError
            If the file is empty, or others can read it.
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
            If the head is missing, was edited, or belongs to another ledger.
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
        """Replace the head atomically; it is on the disk when this returns."""
        text = json.dumps({**asdict(head), "mac": self._mac(head)}) + "\n"
        write_atomic(self.file, text.encode())

    def _mac(self, head: Head) -> str:
        text = json.dumps([getattr(head, field.name) for field in fields(head)])
        return self.mark(text.encode()).decode()

    def mark(self, text: bytes) -> bytes:
        """Return the authentication code of a text under the key, 64 hexadecimal digits."""
        return hmac.new(self._key, text, "sha256").hexdigest().encode()


def following(ledger: str, checksum: str) -> str:
    """Return the text in a head that announces another ledger in place of its own; the checksum begins the new chain."""
    return f"next {ledger} {checksum}"


def _last_checksum(lines: Sequence[str], first: str) -> str:
    """Return the checksum of the last line, from which the next line continues; `first` if there are no lines."""
    return checksum_of(lines[-1]) if lines else first


def opens(line: str) -> bool:
    """Whether a line is an intent; it only adds a cost."""
    return bool(json_of(line).get("digest") == OPEN)


def checksum_of(line: str) -> str:
    """Return a line's checksum, from which the next line's is computed."""
    return str(json_of(line)["checksum"])
