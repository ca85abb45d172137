"""Filter (seccomp) that refuses some system calls of a bundle's own code, for the whole life of its process.

It refuses calls by which one process can influence another through the system. These are locks, leases and watches of
files, keys, system-wide tables of a user, priorities, and new namespaces, in which a process would start over.
"""

import ctypes
import errno
import os
import struct

_MACHINES = {
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
}  # of audit.h; the column of their calls' numbers
_SEPARATED = (
    1,
    2,
    10,
    16,
)  # unix, both internets, netlink: families that a network namespace separates
_ABSENT = -1
REFUSED = {
    "flock": (73, 32),
    # watches tell when others use a file; their number is limited for each user
    "inotify_init": (253, _ABSENT),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "epoll_create": (213, _ABSENT),
    "epoll_create1": (291, 20),
    # keys are those of the user, whatever the namespace
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # requests and queues that are limited for the machine or the user; sockets of a ring pass no filter
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "mq_open": (240, 180),
    # counters, programs and messages of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "syslog": (103, 116),
    # whose turn it is, and waiting for everybody's writes
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "sync": (162, 81),
    "syncfs": (306, 267),
    # namespaces: their number is limited for each user, and inside a new one a process has every capability
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone3": (
        435,
        435,
    ),  # its flags lie in memory, where no filter reads them; C libraries go back to clone
}
_ASKED = {
    "socket": (41, 198),
    "fcntl": (72, 25),
    "clone": (56, 220),
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
}
# dup, get and set flags, dup with close-on-exec, add and get the seals of a file in memory
_OF_A_HANDLE = (0, 1, 2, 3, 4, 1030, 1033, 1034)
_NEW_NAMESPACES = 0x7E020000  # of sched.h: mounts, cgroup, names, IPC, user, processes, network
_CORE = 4  # RLIMIT_CORE

_LOAD, _EQUAL, _LEAST, _ANY_BIT, _END = 0x20, 0x15, 0x35, 0x45, 0x06  # of bpf_common.h
_NUMBER, _MACHINE, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32  # places in what a filter reads
Step = tuple[int, int, int, int]  # code, steps to skip if so and if not, value
_REFUSE: Step = (_END, 0, 0, 0x00050000 | errno.ENOSYS)
_ALLOW: Step = (_END, 0, 0, 0x7FFF0000)


class CallFilter(ctypes.Structure):
    """Filter program in the form that ``prctl(PR_SET_SECCOMP)`` takes."""

    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def call_filter() -> CallFilter:
    """Build the filter for this machine.

    Raises
    ------
    OSError
        If the numbers of this machine's system calls are not known.
    """
    name = os.uname().machine
    if name not in _MACHINES:
        raise OSError(errno.ENOSYS, f"calls of {name} are not known (filter)")
    machine, column = _MACHINES[name]
    numbers = {call: own[column] for call, own in (REFUSED | _ASKED).items()}
    steps = [
        (_LOAD, 0, 0, _MACHINE),
        *_unless((_EQUAL, 1, 0, machine)),
        (_LOAD, 0, 0, _NUMBER),
        *_unless((_LEAST, 0, 1, 1 << 30)),  # x32
    ]
    for call in REFUSED:
        if numbers[call] != _ABSENT:
            steps += _unless((_EQUAL, 0, 1, numbers[call]))
    steps += [
        *_asked(
            numbers["socket"], _one_of(_FIRST, _SEPARATED)
        ),  # vsock reaches a virtual machine's host
        *_asked(numbers["fcntl"], _one_of(_SECOND, _OF_A_HANDLE)),
        *_asked(
            numbers["clone"],
            [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _REFUSE, _ALLOW],
        ),
        *_asked(
            numbers["setrlimit"], [(_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, _CORE), _REFUSE, _ALLOW]
        ),
        *_asked(numbers["prlimit64"], _reads_core()),
        _ALLOW,
    ]
    return CallFilter(len(steps), b"".join(struct.pack("=HBBI", *step) for step in steps))


def _unless(test: Step) -> list[Step]:
    """Return filter steps that refuse the call unless the test holds and skips one step."""
    return [test, _REFUSE]


def _asked(number: int, block: list[Step]) -> list[Step]:
    """Return filter steps that apply a block (with a final decision) to one system call only."""
    return [(_EQUAL, 0, len(block), number), *block]


def _one_of(argument: int, values: tuple[int, ...]) -> list[Step]:
    """Return filter steps that allow the call only for these values of a 32-bit argument."""
    tests = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [(_LOAD, 0, 0, argument), *tests, _REFUSE, _ALLOW]


def _reads_core() -> list[Step]:
    """Return filter steps that allow reading the limit of core dumps and refuse setting it (C libraries use one call)."""
    return [
        (_LOAD, 0, 0, _SECOND),
        (_EQUAL, 0, 5, _CORE),  # else: allow
        (_LOAD, 0, 0, _THIRD),
        (_EQUAL, 0, 2, 0),  # else: refuse
        (_LOAD, 0, 0, _THIRD + 4),
        (_EQUAL, 1, 0, 0),  # then: allow
        _REFUSE,
        _ALLOW,
    ]
