"""Disks that fail: full, read-only, torn in the middle of a write, slow; and a power cut that loses what was not synced.

Each change of a file or a folder below a root is a *step*: opening for writing, a write, a sync, a replacement, a new
folder, a cut at the end. From the step that is told, the disk fails, until the block is left.
"""

import errno
import io
import os
import time
from contextlib import contextmanager
from pathlib import Path

FAULTS = {"full": errno.ENOSPC, "read-only": errno.EROFS, "torn": errno.EIO, "slow": None}
PAUSE = 0.001


class Disk:
    """Counts steps below a root, and fails from one of them on.

    Parameters
    ----------
    root : Path
        Changes below it are steps.
    fault : str
        One of FAULTS; "torn" fails once, after half of the bytes, the others for good.
    first : int
        The first step that fails; 0: none does.
    """

    def __init__(self, root, fault="slow", first=0):
        self.root, self.fault, self.first, self.steps = str(root), fault, first, 0
        self.handles = {}

    def inside(self, path):
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self.root)

    def fails(self):
        """Count a step; whether it fails."""
        self.steps += 1
        if self.fault == "slow":
            time.sleep(PAUSE if self.first else 0)
            return False
        if self.fault == "torn":
            return self.steps == self.first
        return bool(self.first) and self.steps >= self.first

    def refuse(self):
        number = FAULTS[self.fault]
        raise OSError(number, os.strerror(number))


class FailingFile:
    """A file that was opened for writing below the root."""

    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def write(self, data):
        if self._disk.fails():
            if self._disk.fault == "torn":
                self._file.write(data[: len(data) // 2])
                self._file.flush()
            self._disk.refuse()
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __iter__(self):
        return iter(self._file)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


@contextmanager
def failing(disk):
    """Let a disk fail while the block runs."""
    held = io.open, os.open, os.write, os.fsync, os.replace, os.mkdir, os.ftruncate
    opened, os_open, write, fsync, replace, mkdir, ftruncate = held
    made = Path.open

    def ours(handle):
        try:
            return disk.inside(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:
            return False

    def guarded(call, is_ours):
        def guarding(*arguments, **more):
            if is_ours(*arguments) and disk.fails():
                disk.refuse()
            return call(*arguments, **more)

        return guarding

    def opening(file, mode="r", *arguments, **more):
        if not set(mode) & set("wax+") or not disk.inside(file):
            return opened(file, mode, *arguments, **more)
        if disk.fails():
            disk.refuse()
        return FailingFile(opened(file, mode, *arguments, **more), disk)

    def writing(handle, data):
        if ours(handle) and disk.fails():
            if disk.fault == "torn":
                write(handle, data[: len(data) // 2])
            disk.refuse()
        return write(handle, data)

    def creates(path, flags, *_):
        return disk.inside(path) and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)

    try:
        io.open, os.write = opening, writing
        os.open = guarded(os_open, creates)
        os.fsync = guarded(fsync, ours)
        os.ftruncate = ftruncate  # gives room back: a full disk allows it
        os.replace = guarded(replace, lambda source, *_: disk.inside(source))
        os.mkdir = guarded(mkdir, lambda path, *_: disk.inside(path))
        Path.open = lambda self, mode="r", *a, **more: opening(self, mode, *a, **more)
        yield disk
    finally:
        io.open, os.open, os.write, os.fsync, os.replace, os.mkdir, os.ftruncate = held
        Path.open = made
