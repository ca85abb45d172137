"""In a simulation, the failures that each site of a deployment keeps to its own log."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SEEN: ContextVar[list[Exception] | None] = ContextVar("failures", default=None)


@contextmanager
def witnessed() -> Iterator[list[Exception]]:
    """Collect what `note_failure` is told within; whoever plays all sites in one process may see it."""
    seen: list[Exception] = []
    before = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(before)


def note_failure(error: Exception) -> None:
    """Say why a client's answer holds noise alone; outside a simulation nobody is told."""
    seen = _SEEN.get()
    if seen is not None:
        seen.append(error)
