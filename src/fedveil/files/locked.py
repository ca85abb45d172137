"""Files for one process at a time, and private files.

The shared file itself is locked, not a second file that could be removed or mistaken. The operating system holds the
lock under every name of the file, and frees it when the process ends.
"""

import os
import stat
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from fedveil.errors import FieldError, LedgerError

BINARY = getattr(os, "O_BINARY", 0)
LEDGER = "ledger "  # start of the line in a key's file that binds it to a ledger
_BEYOND = 1 << 30  # a locked byte cannot be read on Windows, and the file's text should be
PATIENCE = 60.0  # seconds to wait for another process
_STEP = 0.02  # seconds between two tries

if sys.platform == "win32":
    import msvcrt

    def lock(handle: int) -> None:
        """Lock an open file; if another handle has it locked, raise BlockingIOError or PermissionError at once."""
        os.lseek(handle, _BEYOND, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int) -> None:
        """Unlock an open file, also for a forked process that inherited the handle."""
        os.lseek(handle, _BEYOND, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def lock(handle: int) -> None:
        """Lock an open file; if another handle has it locked, raise BlockingIOError or PermissionError at once."""
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        """Unlock an open file, also for a forked process that inherited the handle."""
        fcntl.flock(handle, fcntl.LOCK_UN)


def wait_for(handle: int, deadline: float) -> bool:
    """Lock an open file as soon as it is free; return False at the deadline (a time of `time.monotonic`).

    Raises
    ------
    OSError
        If the file system has no locks.
    """
    while True:
        try:
            lock(handle)
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_STEP)
        else:
            return True


class LockedFile:
    """File that only one process at a time can use, as a context manager.

    All links to the file share one lock. The file is refused if its path now leads to another file, or if it has a
    second name, which could restore an old state.

    Parameters
    ----------
    path : Path
        Existing file.

    Attributes
    ----------
    handle : int
        Handle of the open file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.handle, self._process = path, -1, os.getpid()
        self._end = 0  # bytes, as this process knows the file

    def __enter__(self) -> "LockedFile":
        """Lock the file.

        Raises
        ------
        LedgerError
            If the file cannot be opened or locked, another process holds the lock, or the file has several names.
        """
        try:
            self.handle = os.open(self._path, os.O_RDWR | os.O_APPEND | BINARY)
            with ExitStack() as stack:
                stack.callback(os.close, self.handle)
                if not wait_for(self.handle, time.monotonic() + PATIENCE):
                    raise LedgerError(f"{self._path} is in use by another process")
                self._require_one_name()
                self._end = self.size
                stack.pop_all()
        except OSError as error:
            fix = "restore it, on a file system that knows locks"
            raise LedgerError(f"{self._path} cannot be locked ({error.strerror}): {fix}") from error
        return self

    def __exit__(self, *error: object) -> None:
        """Unlock the file."""
        _unlock(self.handle)
        os.close(self.handle)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return os.fstat(self.handle).st_size

    def content(self, start: int = 0, end: int | None = None) -> bytes:
        """Read the bytes from `start` up to `end`; by default all."""
        with self._opened_at(start) as file:
            return file.read() if end is None else file.read(end - start)

    def first_line(self) -> bytes:
        """Read the first line, with its end."""
        with self._opened_at(0) as file:
            return file.readline()

    def _opened_at(self, start: int) -> BinaryIO:
        os.lseek(self.handle, start, os.SEEK_SET)
        return os.fdopen(os.dup(self.handle), "rb")

    def cut(self, length: int) -> None:
        """Remove the last `length` bytes."""
        if length:
            self.require_alone()
            self._end -= length
            os.ftruncate(self.handle, self._end)

    def append(self, data: bytes) -> None:
        """Append bytes, and wait until they are on the disk; a failed write leaves the file unchanged."""
        self.require_alone()
        try:
            _write_all(self.handle, data)
        except OSError:
            os.ftruncate(self.handle, self._end)
            raise
        self._end += len(data)

    def require_alone(self) -> None:
        """Refuse a file that another process changed, as some file systems accept locks without effect.

        Raises
        ------
        LedgerError
            If its length changed since this process's last write, or the path leads to another file.
        """
        self._require_one_name()
        if self.size != self._end:
            why = "was written to by another process, though it is locked"
            raise LedgerError(
                f"{self._path} {why}: put it on a file system that keeps locks (flock), and open it again"
            )

    def _require_one_name(self) -> None:
        held = os.fstat(self.handle)
        try:
            named = os.path.samestat(held, os.stat(self._path))
        except FileNotFoundError:
            named = False
        if not named or self._process != os.getpid():
            raise LedgerError(
                f"{self._path} was replaced while this process used it, or the process is a fork"
            )
        if held.st_nlink > 1:
            raise LedgerError(
                f"{self._path} has {held.st_nlink} names (hard links): undo the others"
            )


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk.

    A new file needs both to survive a power cut. Windows has no such call for folders, so nothing is done there.
    """
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def private_folder(path: Path) -> None:
    """Make a folder for its owner only, with missing parents, and wait until their names are on the disk."""
    if path.is_dir():
        return
    private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync(path.parent)


def create(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a new file, and wait until it is on the disk; a failed write leaves no file.

    Raises
    ------
    FileExistsError
        If the file exists.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
    try:
        _write_all(handle, data)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
    os.fsync(handle)


def _open_to_others(about: os.stat_result) -> bool:
    """Whether other users may use a file, or another user owns it."""
    return bool(about.st_mode & 0o077) or about.st_uid not in (os.geteuid(), 0)


def _open_no_link(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0))


def write_private(path: str | Path, first: str, secret: bytes) -> None:
    """Write a secret to a new file of mode 0600; `first` is a first line that names its kind.

    Raises
    ------
    FieldError
        If the file exists: an overwritten key would be lost.
    """
    file = Path(path).expanduser()
    private_folder(file.parent)
    try:
        create(file, f"{first}\n{secret.hex()}\n".encode())
        sync(file.parent)
    except FileExistsError as error:
        raise FieldError(
            "key", str(file), "exists: a study has one key; name another file"
        ) from error


def read_private(path: str | Path, first: str, size: int) -> bytes:
    """Read a secret of `size` bytes from a private file, after checking its first line.

    Raises
    ------
    FieldError
        If there is no such file, others can read or write it, or it is damaged. Its content is never shown.
    """
    file = Path(path).expanduser()
    try:
        with open(file, "rb", opener=_open_no_link) as stream:
            about = os.fstat(stream.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise FieldError("key", str(file), "must be a file")
            if os.name == "posix" and _open_to_others(about):
                accepted = (
                    f"others can read it: chmod 600 {file.name}; if others have read it, end it"
                )
                raise FieldError("key", str(file), accepted)
            lines = stream.read(1 << 10).decode("ascii", "replace").split("\n")
    except OSError as error:
        accepted = "cannot be read as a key file: make one first (a link is not followed)"
        raise FieldError("key", str(file), accepted) from error
    try:
        secret = bytes.fromhex(lines[1])
        more = lines[2:]  # lines that bind it; a process that died may have left half of one
        binding = all(LEDGER.startswith(line[: len(LEDGER)]) for line in more)
        if lines[0] != first or not more or not binding or len(secret) != size:
            raise ValueError
    except (ValueError, IndexError):
        raise FieldError(
            "key", str(file), "is no key file, or damaged: restore it, or agree on a new key"
        ) from None
    return secret
