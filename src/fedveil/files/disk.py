"""Files and folders that survive a crash: appending, replacing at once, and locks for one process."""

import io
import os
import platform
from pathlib import Path

from fedveil.errors import FieldError
from fedveil.files.locked import lock, sync

LOCK = ".lock"


class InUseError(FieldError):
    """Error: another process is writing to the folder."""


class FolderLock:
    """Lock of a folder: only this object may write to it, from `take` to `release`.

    The operating system frees the lock when the process ends, even if it is killed. The file names the process that
    holds the lock or was killed; `release` empties it.

    Parameters
    ----------
    folder : Path
        Folder of the lock's file.
    name : str
        Name of that file.
    """

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self._folder, self._name, self._handle = folder, name, -1

    def try_take(self) -> bool:
        """Lock the folder and return True; return False if another holder has it."""
        try:
            self.take()
        except InUseError:
            return False
        return True

    def take(self) -> None:
        """Lock the folder.

        Raises
        ------
        InUseError, FieldError
            If another holder has the lock, or the file system has no locks.
        """
        handle = os.open(self._folder / self._name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock(handle)
        except (BlockingIOError, PermissionError) as error:
            os.lseek(handle, 0, os.SEEK_SET)
            holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            os.close(handle)
            accepted = f"is being written to by {holder}: wait until that has ended, or end it"
            raise InUseError("--out", str(self._folder), accepted) from error
        except OSError as error:
            os.close(handle)
            accepted = f"cannot be locked ({error.strerror}): give a folder on a file system that can, as a local one"
            raise FieldError("--out", str(self._folder), accepted) from error
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
        self._handle = handle

    def release(self) -> None:
        """Unlock the folder, if it is locked.

        The file is not removed: otherwise two processes could lock two files with the same name.
        """
        if self._handle >= 0:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = -1


def append(path: Path, text: str) -> None:
    """Append to a file, and wait until it is on the disk; a failed write leaves the file unchanged."""
    with io.open(path, "ab", opener=_mine) as file:  # noqa: UP020 - the crash tests watch io.open
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


def write_atomic(
    path: Path,
    content: bytes,
    writer: str = "",
    mode: int = 0o600,
) -> None:
    """Replace a file's content atomically: after a crash the file has the old content or the new one.

    Parameters
    ----------
    path : Path
        File to replace.
    content : bytes
        New content.
    writer : str
        Name of the writing process, if several may write the file at the same time; the last one wins.
    mode : int
        Permissions; by default for the owner alone, because not all files of a run are noised.

    Raises
    ------
    FieldError
        If the path is a device, a pipe or a folder, which a file would replace.
    """
    if path.exists() and not path.is_file():
        raise FieldError(
            "file", str(path), "is no regular file, and would be replaced by one: give another path"
        )

    def new_file(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_EXCL, mode)

    temporary = path.with_name(f".{path.name}{writer}.part")
    temporary.unlink(missing_ok=True)
    with io.open(temporary, "wb", opener=new_file) as file:  # noqa: UP020
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def _mine(path: str, flags: int) -> int:
    """Open a file with permissions for its owner only, as not all files of a run are protected by noise."""
    return os.open(path, flags, 0o600)


def make_folder(path: Path) -> None:
    """Make a folder for its owner only, with missing parents, and wait until it is on the disk."""
    if not path.parent.exists():
        make_folder(path.parent)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        accepted = f"cannot be made ({error.strerror}): give a folder of your own with --out (in Python, out=)"
        raise FieldError("--out", str(path), accepted) from error
    sync(path.parent)
