"""Take network and disk from a process that is to run a bundle's own code (Linux, user namespaces, no privileges).

The process gets a network without interfaces, and sees every file system read-only but for one folder in memory. What
is left to it: time and processor, reading what the node's user reads, and sockets that lie in the file system.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from fedveil.errors import FedVeilError

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_NET = 0x00020000, 0x08000000, 0x10000000, 0x40000000  # of sched.h
_PRIVATE, _RECURSIVE, _NO_SUID, _NO_DEVICES = 1 << 18, 1 << 14, 2, 4  # of mount.h
_MOUNT_SETATTR, _HERE, _WHOLE_TREE, _READ_ONLY = 442, -100, 0x8000, 1
_KILL_WITH_PARENT, _NO_NEW_PRIVILEGES = 1, 38  # of prctl.h
_INSIDE = 1000  # any user but 0, so that the next program has no capabilities


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def isolate(folder: Path) -> None:
    """Isolate this process, which must have one thread, and whatever program it becomes; `folder` stays writable.

    Raises
    ------
    OSError
        If the system does not allow it.
    """
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()

    def do(result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} ({what})")

    do(libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_NET | _NEW_IPC), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_INSIDE} {user} 1"), ("gid_map", f"{_INSIDE} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    do(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mount, private")
    attributes = _MountAttributes(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    do(libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _WHOLE_TREE, ctypes.byref(attributes), size), "mount, read-only")
    for place in (folder, Path("/dev/shm")):
        if place.is_dir():
            do(libc.mount(b"tmpfs", bytes(place), b"tmpfs", _NO_SUID | _NO_DEVICES, b"mode=700"), f"mount {place}")
    do(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, 9, 0, 0, 0)


def require_isolation(folder: Path) -> None:
    """Refuse where a process cannot be isolated, before there is anything to isolate.

    Raises
    ------
    FedVeilError
        With the reason.
    """
    command = [sys.executable, "-P", "-m", "fedveil.node.isolation", str(folder)]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode != 0:
        why = (tried.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise FedVeilError(
            f"a bundle's own code cannot be isolated on this machine ({why}): install the client's code yourself "
            '(policy.node.client), or allow it everything with foreign = "open"'
        )


if __name__ == "__main__":
    isolate(Path(sys.argv[1]))
