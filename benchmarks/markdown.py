"""Tables and numbers of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Markdown; None is an empty cell."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [
        "| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in rows
    ]
    return "\n".join(lines)


def figure(value: float | None, unit: str = "") -> str | None:
    """Three digits, no exponent."""
    if value is None:
        return None
    return (f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}") + unit


def seconds(name: str, row: dict[str, Any]) -> tuple[str | None, ...]:
    """A line of minimum and median seconds."""
    return name, figure(row["minimum_s"]), figure(row["median_s"])


def milliseconds(name: str, row: dict[str, Any]) -> tuple[str | None, ...]:
    """A line of minimum and median milliseconds."""
    return name, figure(row["minimum_ms"]), figure(row["median_ms"])


def compared(name: str, row: dict[str, Any], times: dict[str, Any]) -> tuple[str | None, ...]:
    """The same, with how many times as long as ours it is."""
    both = times[name]
    return (*milliseconds(name, row), figure(both["of_minimums"]), figure(both["of_medians"]))
