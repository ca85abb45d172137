"""Take network, disk and other processes from a bundle's own code (Linux, user namespaces, no privileges).

It gets a network without interfaces and no socket of a kind that networks do not separate, sees every file system
read-only but for folders in memory, no disk itself, no socket that was bound to a file before, as far as the node's
network lists them, and no process but its own, which all end with the first. What is left to it: time and processor,
reading what the node's user reads, pipes that lie in a file system, and sockets there of another network namespace.
"""

import ctypes
import errno
import os
import select
import stat
import struct
import subprocess
import sys
from pathlib import Path

from fedveil.errors import FedVeilError

_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x00020000, 0x08000000, 0x10000000  # of sched.h
_NEW_PIDS, _NEW_NET = 0x20000000, 0x40000000
_BIND, _PRIVATE, _RECURSIVE, _LOCKED, _NO_SUID, _NO_DEVICES, _NO_PROGRAMS = 1 << 12, 1 << 18, 1 << 14, 1, 2, 4, 8
_MOUNT_SETATTR, _HERE, _WHOLE_TREE, _READ_ONLY = 442, -100, 0x8000, 1
_KILL_WITH_PARENT, _FILTERED, _NO_NEW_PRIVILEGES = 1, 22, 38  # of prctl.h
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # of audit.h; the number of its call `socket`
_SEPARATED = (1, 2, 10, 16)  # unix, both internets, netlink: families that a network namespace separates
_RING = 425  # io_uring_setup: its sockets pass no filter
_INSIDE = 1000  # any user but 0, so that the next program has no capabilities


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


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
    listed = os.fsdecode(Path("/proc/net/unix").read_bytes()).splitlines()  # of the network that is left
    do(libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_NET | _NEW_IPC | _NEW_PIDS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_INSIDE} {user} 1"), ("gid_map", f"{_INSIDE} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    do(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mount, private")
    for file in (*("/" + line.partition(" /")[2] for line in listed), *map(str, Path("/dev").rglob("*"))):
        if _opens_more(file):
            do(libc.mount(b"/dev/null", os.fsencode(file), None, _BIND, None), f"hide {file}")
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
    do(libc.prctl(_FILTERED, 2, ctypes.byref(_filter()), 0, 0), "prctl, filter")
    _wait_for_child()  # it has capabilities still, so that what comes next cannot trace it
    os.setsid()


def _opens_more(place: str) -> bool:
    """Whether a file is a socket or a disk, which a read-only file system does not close."""
    try:
        mode = os.stat(place).st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISBLK(mode)


def _filter() -> _Filter:
    """Refuses sockets of other families (vsock reaches a virtual machine's host) and other systems' calls."""
    if (name := os.uname().machine) not in _MACHINES:
        raise OSError(errno.ENOSYS, f"calls of {name} are not known (filter)")
    machine, socket = _MACHINES[name]
    load, equal, least, end = 0x20, 0x15, 0x35, 0x06  # of bpf_common.h: code, steps to skip if so and if not, value
    steps = [
        (load, 0, 0, 4),  # the machine of the call
        (equal, 0, 5 + len(_SEPARATED), machine),
        (load, 0, 0, 0),  # its number
        (least, 3 + len(_SEPARATED), 0, 1 << 30),  # x32
        (equal, 2 + len(_SEPARATED), 0, _RING),
        (equal, 0, 2 + len(_SEPARATED), socket),
        (load, 0, 0, 16),  # its first argument
        *((equal, len(_SEPARATED) - i, 0, family) for i, family in enumerate(_SEPARATED)),
        (end, 0, 0, 0x00050000 | errno.ENOSYS),
        (end, 0, 0, 0x7FFF0000),
    ]
    return _Filter(len(steps), b"".join(struct.pack("=HBBI", *step) for step in steps))


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
        fix = 'install the client\'s code yourself (policy.node.client), or allow it everything with foreign = "open"'
        raise FedVeilError(f"a bundle's own code cannot be isolated on this machine ({why}): {fix}")


if __name__ == "__main__":
    isolate(Path(sys.argv[1]))
