"""Errors of sites in a simulation; in a deployment each site has them only in its own log."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SEEN: ContextVar[list[Exception] | None] = ContextVar("failures", default=None)


@contextmanager
def witnessed() -> Iterator[list[Exception]]:
    """Collect the errors given to `note_failure` in this context, as a list; for simulations only.

    Only a process that plays all sites may see them.
    """
    seen: list[Exception] = []
    before = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(before)


def note_failure(error: Exception) -> None:
    """Record the error that made a client's answer noise alone; outside `witnessed` it is dropped."""
    seen = _SEEN.get()
    if seen is not None:
        seen.append(error)
