"""Check of this machine's memory: a cohort whose models do not fit is refused before any client trains."""

import os
import sys
from pathlib import Path

from torch import Tensor

from fedveil.errors import FieldError
from fedveil.methods import SecureSum, ServerSide
from fedveil.methods.contract import working_copies_of

WORTH_ASKING = 1 << 28  # bytes below which the check is skipped
_GROUP = Path("/sys/fs/cgroup")
_SHARE = 8  # bytes of an entry of a secure sum's share
# models of room for blocks of columns, sums in float64, noise and an optimiser's state
_VECTORS = 16


def require_room(clients: int, models: Tensor, server: ServerSide, copies: int = 1) -> None:
    """Refuse a cohort if its answers, and what combining them takes, do not fit into memory together.

    Parameters
    ----------
    clients : int
        Number of answers that are held at once.
    models : Tensor
        [k, d], models of the broadcast. An answer is as large as one of them; under a secure sum it is int64 [d].
    server : ServerSide
        Server side of the method.
    copies : int
        Number of copies of each answer: 2 if it is held as a message and as a model.

    Raises
    ------
    FieldError
        If the answers do not fit; the text gives the needed and the free bytes. If the system does not report free
        bytes, nothing is refused.
    """
    parameters = models.shape[-1]
    itemsize = _SHARE if isinstance(server, SecureSum) else models.element_size()
    stacks = copies + working_copies_of(server)
    needed = (stacks * clients + _VECTORS) * parameters * itemsize
    if needed < WORTH_ASKING:
        return
    free = available()
    if free is not None and needed > free:
        held = f"{clients} models of {parameters:,} parameters"
        if stacks > 1:
            held += f", each held {stacks} times"
        accepted = (
            f"{held}, take {_gib(needed)}, and {_gib(free)} are free: ask fewer clients a round"
        )
        hint = 'in one process, under "global" with a linear rule and trainer "sequential", they are added as they come'
        raise FieldError(
            "clients_per_round", clients, f"{accepted}, or take a method that adds them ({hint})"
        )


def available() -> int | None:
    """Return the bytes that this process can still use, by the machine, its control group and its own limit; None: unknown."""
    known = [_of_machine(), _of_group(), _of_process()]
    told = [size for size in known if size is not None]
    return min(told, default=None)


def _of_machine() -> int | None:
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return None


def _of_group() -> int | None:
    """Return the free bytes in the container's control group; None if it has no limit."""
    most, used = _lines(_GROUP / "memory.max"), _lines(_GROUP / "memory.current")
    if not most or not used or not most[0].isdecimal():
        return None
    return max(0, int(most[0]) - int(used[0]))


def _of_process() -> int | None:
    """Return the free bytes in this process's limited address space; None if it has no limit."""
    if sys.platform == "win32":
        return None
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    held = _lines("/proc/self/statm")
    if most == resource.RLIM_INFINITY or not held:
        return None
    return max(0, most - int(held[0].split()[0]) * os.sysconf("SC_PAGE_SIZE"))


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
