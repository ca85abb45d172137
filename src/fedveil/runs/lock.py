"""One process at a time in a run's folder."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from fedveil.engines.locking import lock as _lock
from fedveil.errors import FieldError

FILE = ".lock"


class FolderLock:
    """A folder that only this object may write to, from `take` to `release`.

    The operating system holds the lock and lets go of it when the process ends, however it ends: a file that a killed
    process left behind keeps nobody out. The file names the process that holds it, or was killed; `release` empties it.

    Parameters
    ----------
    folder : Path
        Where the file lies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._handle = folder, -1

    def take(self) -> None:
        """Lock the folder.

        Raises
        ------
        FieldError
            If somebody else holds it, or the file system knows no locks.
        """
        handle = os.open(self._folder / FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError) as error:
            os.lseek(handle, 0, os.SEEK_SET)
            holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            os.close(handle)
            accepted = f"is being written to by {holder}: wait until that has ended, or end it"
            raise FieldError("--out", str(self._folder), accepted) from error
        except OSError as error:
            os.close(handle)
            accepted = (
                f"cannot be locked ({error.strerror}): give a folder on a file system that can, such as a local one"
            )
            raise FieldError("--out", str(self._folder), accepted) from error
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
        self._handle = handle

    def release(self) -> None:
        """Let go, if it is held. The file stays: removing it would let two processes lock two files of one name."""
        if self._handle >= 0:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = -1
