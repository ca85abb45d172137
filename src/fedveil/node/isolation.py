"""Isolation of a bundle's own code from network, disk and other processes (Linux, user namespaces, no privileges).

The code has a network without interfaces. File systems are read-only for it, except folders in memory. The folders of
the node's ledgers, heads, keys and policy look empty. Disk devices and existing sockets are hidden (as far as the
node's network lists them). It sees only its own processes, which all end with the first one. System calls that affect
others are refused (`calls`). The code can still use time, memory and processor, read other files of the node's user,
and use the channels in docs/foreign-code.md.
"""

import ctypes
import os
import select
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedveil.errors import FedVeilError, FieldError
from fedveil.node.calls import call_filter

_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x00020000, 0x08000000, 0x10000000  # of sched.h
_NEW_PIDS, _NEW_NET = 0x20000000, 0x40000000
_BIND, _PRIVATE, _RECURSIVE, _LOCKED, _NO_SUID, _NO_DEVICES, _NO_PROGRAMS = (
    1 << 12,
    1 << 18,
    1 << 14,
    1,
    2,
    4,
    8,
)
_MOUNT_SETATTR, _HERE, _WHOLE_TREE, _READ_ONLY = 442, -100, 0x8000, 1
_KILL_WITH_PARENT, _FILTERED, _NO_NEW_PRIVILEGES = 1, 22, 38  # of prctl.h
_INSIDE = 1000  # any user but 0, so that the next program has no capabilities
_SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/proc", "/sys", "/usr")
_OF_OTHERS = ("locks", "keys", "key-users")  # in /proc: who holds which lock and key
_NOTHING = 1 | _NO_SUID | _NO_DEVICES | _NO_PROGRAMS  # a mount that is read-only
MOST_TASKS = 4096  # most processes and threads of one message; the machine has 32,768 and more
# Of a core dump, Linux hands the whole memory to a pattern that is a pipe, under a limit of 0 too; 1 is its own mark of
# a process that is not to be dumped, and less than the smallest file (core(5); do_coredump in fs/coredump.c).
# Memory that is held, queues and waiting signals are counted for each user: what one process takes, others lack.
_LIMITS = {
    "RLIMIT_CORE": 1,
    "RLIMIT_NPROC": MOST_TASKS,
    "RLIMIT_MEMLOCK": 0,
    "RLIMIT_MSGQUEUE": 0,
    "RLIMIT_SIGPENDING": 1024,
}


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def isolate(folder: Path, hidden: Sequence[Path] = ()) -> None:
    """Continue in an isolated child process; it stays isolated if it starts another program. `folder` stays writable.

    The caller must have one thread. It waits for the child, ends all processes that the child leaves behind, and exits
    with the child's code.

    Parameters
    ----------
    folder : Path
        Folder in memory for the process's own files.
    hidden : sequence of Path
        Folders that look empty to the process.

    Raises
    ------
    OSError
        If the system does not allow it.
    """
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()

    def do(result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} ({what})")

    Path("/proc/self/oom_score_adj").write_text(
        "1000", encoding="ascii"
    )  # killed first if memory runs out
    listed = os.fsdecode(
        Path("/proc/net/unix").read_bytes()
    ).splitlines()  # of the network that is left
    do(libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_NET | _NEW_IPC | _NEW_PIDS), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{_INSIDE} {user} 1"),
        ("gid_map", f"{_INSIDE} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    do(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mount, private")
    sockets = ["/" + line.partition(" /")[2] for line in listed]
    devices = [str(device) for device in Path("/dev").rglob("*")]
    for file in (*sockets, *devices):
        if _opens_more(file):
            do(libc.mount(b"/dev/null", os.fsencode(file), None, _BIND, None), f"hide {file}")
    attributes = _MountAttributes(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    do(
        libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _WHOLE_TREE, ctypes.byref(attributes), size),
        "mount, read-only",
    )
    for place in hidden:
        do(
            libc.mount(b"tmpfs", bytes(place), b"tmpfs", _NOTHING, b"mode=500,size=4k"),
            f"hide {place}",
        )
    for place in (
        folder,
        Path("/dev/shm"),
        Path("/dev/pts"),
    ):  # the last holds the user's terminals
        if place.is_dir():
            do(
                libc.mount(b"tmpfs", bytes(place), b"tmpfs", _NO_SUID | _NO_DEVICES, b"mode=700"),
                f"mount {place}",
            )
    _wait_for_child()  # the first process of the new namespace, with which all others end
    how = _LOCKED | _NO_SUID | _NO_DEVICES | _NO_PROGRAMS
    do(libc.mount(b"proc", b"/proc", b"proc", how, None), "mount /proc")
    for name in _OF_OTHERS:
        if os.path.exists(f"/proc/{name}"):
            do(
                libc.mount(b"/dev/null", f"/proc/{name}".encode(), None, _BIND, None),
                f"hide {name}",
            )
    _set_limits()
    do(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    do(libc.prctl(_FILTERED, 2, ctypes.byref(call_filter()), 0, 0), "prctl, filter")
    _wait_for_child()  # it has capabilities still, so that what comes next cannot trace it
    os.setsid()


def _opens_more(place: str) -> bool:
    """Whether a path is a socket or a disk device; a read-only file system does not protect these."""
    try:
        mode = os.stat(place).st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISBLK(mode)


def _set_limits() -> None:
    """Lower the limits on resources that all processes of a user share; the process cannot raise them again."""
    import resource  # there is none on Windows

    for name, most in _LIMITS.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))


def _wait_for_child() -> None:
    """Fork and return in the child. This process waits for the child and exits with its code; the child ends with it."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        end_with_parent()
        if select.select([ours], [], [], 0)[0]:  # the parent has ended already
            os._exit(1)
        return
    ended, status = os.wait()
    while ended != child:  # orphans are passed to the first process of a namespace
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, 9, 0, 0, 0)


def require_hidden(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the real paths of folders to hide, without those inside another one.

    Raises
    ------
    FieldError
        If a folder contains files of Python itself.
    """
    real = sorted({folder.resolve() for folder in folders if folder.is_dir()})
    needed = {
        Path(place).resolve()
        for place in (*sys.path, *sysconfig.get_paths().values(), sys.executable)
        if place
    }
    system = {Path(place).resolve() for place in (*_SYSTEM, tempfile.gettempdir())}
    for folder in real:
        for place in sorted(needed | system):
            if place.is_relative_to(folder):
                accepted = f"holds {place}, which a bundle's code needs: give ledgers, heads, keys and policy "
                raise FieldError("folder", str(folder), f"{accepted}their own folders")
    outer: list[Path] = []
    for folder in real:  # in order: an outer folder stands before those in it
        if not any(folder.is_relative_to(other) for other in outer):
            outer.append(folder)
    return tuple(outer)


def require_isolation(folder: Path, hidden: Sequence[Path] = ()) -> None:
    """Check that processes can be isolated on this machine.

    Parameters
    ----------
    folder, hidden
        As in `isolate`.

    Raises
    ------
    FedVeilError
        If they cannot; the text gives the reason.
    """
    command = [sys.executable, "-P", "-m", "fedveil.node.isolation", str(folder), *map(str, hidden)]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode != 0:
        why = (tried.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        fix = 'install the client\'s code yourself (policy.node.client), or allow it everything with foreign = "open"'
        raise FedVeilError(f"a bundle's own code cannot be isolated on this machine ({why}): {fix}")


if __name__ == "__main__":
    isolate(Path(sys.argv[1]), [Path(place) for place in sys.argv[2:]])
