"""How a run goes, live on a terminal, or in plain lines where there is none."""

from __future__ import annotations

import math

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedveil.experiments.summary import Row

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


class PlainProgress:
    """Whole lines without control characters: for pipes and log files."""

    def __init__(self, console: Console) -> None:
        self._console, self._label, self._rounds = console, "", 0

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

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Nothing to clean up."""


class LiveProgress:
    """A bar a run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Start the bar."""
        text = TextColumn("{task.fields[figures]}", markup=False)
        columns = (TextColumn("{task.description:<22}", markup=False), BarColumn(24), MofNCompleteColumn(), text)
        self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console)
        self._task = self._progress.add_task(label, total=rounds, completed=done, figures="")
        self._progress.start()

    def advance(self, row: Row) -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.update(self._task, completed=row["round"], figures=describe(row))

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, markup=False, highlight=False)

    def end(self) -> None:
        """Leave the finished bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
