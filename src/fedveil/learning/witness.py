"""Failures of sites in a simulation; in a deployment each site keeps its own in its log."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SEEN: ContextVar[list[Exception] | None] = ContextVar("failures", default=None)


@contextmanager
def witnessed() -> Iterator[list[Exception]]:
    """Collect the errors given to `note_failure` within this context; only a process that plays all sites may see them."""
    seen: list[Exception] = []
    before = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(before)


def note_failure(error: Exception) -> None:
    """Record why a client's answer is noise alone; outside a simulation the error goes nowhere."""
    seen = _SEEN.get()
    if seen is not None:
        seen.append(error)
