"""How an audit goes: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINES = 10  # plain lines an audit, about


def audit_progress_for(console: Console) -> PlainAuditProgress | LiveAuditProgress:
    """The right one for a console."""
    return LiveAuditProgress(console) if console.is_terminal else PlainAuditProgress(console)


class PlainAuditProgress:
    """Whole lines without control characters: for pipes and log files."""

    def __init__(self, console: Console) -> None:
        self._console, self._steps, self._done, self._began = console, 0, 0, 0.0

    def begin(self, steps: int) -> None:
        """Remember how much lies ahead."""
        self._steps, self._done, self._began = steps, 0, perf_counter()

    def advance(self, text: str) -> None:
        """A line now and then."""
        self._done += 1
        every = max(1, self._steps // LINES)
        if self._done % every == 0 or self._done == self._steps:
            self.say(f"{self._done}/{self._steps} rounds  {left(self._began, self._done, self._steps)}  {text}")

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Nothing to clean up."""


class LiveAuditProgress:
    """One bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task, self._steps, self._done, self._began = TaskID(0), 0, 0, 0.0

    def begin(self, steps: int) -> None:
        """Start the bar."""
        self._steps, self._done, self._began = steps, 0, perf_counter()
        text = TextColumn("{task.fields[left]}  {task.description}", markup=False)
        self._progress = Progress(BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), text, console=self._console)
        self._task = self._progress.add_task("", total=steps, left="")
        self._progress.start()

    def advance(self, text: str) -> None:
        """Move the bar."""
        self._done += 1
        if self._progress is not None:
            remaining = left(self._began, self._done, self._steps)
            self._progress.update(self._task, completed=self._done, description=text, left=remaining)

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, markup=False, highlight=False)

    def end(self) -> None:
        """Leave the bar where it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def left(began: float, done: int, steps: int) -> str:
    """The time that the rest takes at the pace so far."""
    seconds = (perf_counter() - began) / done * (steps - done)
    return f"{seconds:.0f} s left" if seconds < 120 else f"{seconds / 60:.0f} min left"
