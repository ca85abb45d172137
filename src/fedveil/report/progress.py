"""How a run goes, live on a terminal, or in plain lines where there is none."""

from __future__ import annotations

import math

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from fedveil.experiments.summary import Row
from fedveil.report.display import Bar, Lines

LINES = 20  # plain lines a run, about


def progress_for(console: Console) -> PlainProgress | LiveProgress:
    """The right one for a console."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


def describe(row: Row) -> str:
    """The figures of a round that matter most."""
    metrics, noise = row["metrics"], row["noise"]
    parts = [f"{name} {metrics[name]:.3f}" for name in ("accuracy", "rmse") if name in metrics]
    parts += [f"{short} {noise[name]:.3g}" for name, short in (("sigma", "sigma"), ("distance", "d")) if name in noise]
    parts += [f"{len(row[kind])} {kind}" for kind in ("failed", "invalid", "refused") if row[kind]]
    return "  ".join(parts)


class PlainProgress(Lines):
    """A line for a round, or for some."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._label, self._rounds = "", 0

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Name the run."""
        self._label, self._rounds = label, rounds
        if done:
            self.say(f"{label}: going on after round {done} of {rounds}")

    def advance(self, row: Row) -> None:
        """One line; long runs print only some."""
        number = row["round"]
        if number in (1, self._rounds) or number % math.ceil(self._rounds / LINES) == 0:
            self.say(f"{self._label}  round {number}/{self._rounds}  {describe(row)}  {row['seconds']:.2f} s")


class LiveProgress(Bar):
    """A bar a run."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Start the bar."""
        name, text = (
            TextColumn(f"{{{field}}}", markup=False) for field in ("task.description:<22", "task.fields[text]")
        )
        self.start((name, BarColumn(24), MofNCompleteColumn(), text, TimeElapsedColumn()), label, done, rounds)

    def advance(self, row: Row) -> None:
        """Move the bar."""
        self.move(row["round"], describe(row))
