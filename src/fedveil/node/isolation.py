"""Take network, disk and other processes from a bundle's own code (Linux, user namespaces, no privileges).

It gets a network without interfaces, sees every file system read-only but for folders in memory, and no process but its
own, which all end with the first. What is left to it: time and processor, reading what the node's user reads, and
sockets and pipes that lie in the file system.
"""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
from pathlib import Path

from fedveil.errors import FedVeilError

_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x00020000, 0x08000000, 0x10000000  # of sched.h
_NEW_PIDS, _NEW_NET = 0x20000000, 0x40000000
_PRIVATE, _RECURSIVE, _LOCKED, _NO_SUID, _NO_DEVICES, _NO_PROGRAMS = 1 << 18, 1 << 14, 1, 2, 4, 8  # of mount.h
_MOUNT_SETATTR, _HERE, _WHOLE_TREE, _READ_ONLY = 442, -100, 0x8000, 1
_KILL_WITH_PARENT, _NO_NEW_PRIVILEGES = 1, 38  # of prctl.h
_INSIDE = 1000  # any user but 0, so that the next program has no capabilities


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def isolate(folder: Path) -> None:
    """Go on in a process that is isolated, and so whatever program it becomes; `folder` stays writable.

    The caller, which must have one thread, waits for it and ends with its code: what it leaves behind is ended before.

    Raises
    ------
    OSError
        If the system does not allow it.
    """
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()

    def do(result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} ({what})")

    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # the first to go where memory ends
    do(libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_NET | _NEW_IPC | _NEW_PIDS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_INSIDE} {user} 1"), ("gid_map", f"{_INSIDE} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    do(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mount, private")
    attributes = _MountAttributes(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    do(libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _WHOLE_TREE, ctypes.byref(attributes), size), "mount, read-only")
    for place in (folder, Path("/dev/shm"), Path("/dev/pts")):  # the last holds the user's terminals
        if place.is_dir():
            do(libc.mount(b"tmpfs", bytes(place), b"tmpfs", _NO_SUID | _NO_DEVICES, b"mode=700"), f"mount {place}")
    _wait_for_child()  # the first process of the new namespace, with which all others end
    how = _LOCKED | _NO_SUID | _NO_DEVICES | _NO_PROGRAMS
    do(libc.mount(b"proc", b"/proc", b"proc", how, None), "mount /proc")
    do(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    _wait_for_child()  # it has capabilities still, so that what comes next cannot trace it
    os.setsid()


def _wait_for_child() -> None:
    """Return in a child that ends with this process, which waits for it and ends with its code."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        end_with_parent()
        if select.select([ours], [], [], 0)[0]:  # the parent has ended already
            os._exit(1)
        return
    ended, status = os.wait()
    while ended != child:  # orphans come to the first process of a namespace
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


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
