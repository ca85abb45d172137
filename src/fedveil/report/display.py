"""What every display of progress shares: plain lines for pipes and log files, a bar on a terminal."""

from __future__ import annotations

from time import perf_counter

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID


class Lines:
    """Whole lines without control characters.

    Parameters
    ----------
    console : Console
        Gets them.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Nothing to clean up."""


class Bar:
    """One bar at a time.

    Parameters
    ----------
    console : Console
        A terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def start(self, columns: tuple[ProgressColumn, ...], label: str, done: int, total: int) -> None:
        """Show it; columns may use ``task.fields["text"]``."""
        self._progress = Progress(*columns, console=self._console)
        self._task = self._progress.add_task(label, total=total, completed=done, text="")
        self._progress.start()

    def move(self, done: int, text: str) -> None:
        """Draw it anew."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, text=text)

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, markup=False, highlight=False)

    def end(self) -> None:
        """Leave the bar where it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class Steps:
    """How many of so many steps are done, and how long the others take at that pace."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self._began = total, 0, perf_counter()

    def advance(self) -> None:
        """One more."""
        self.done += 1

    @property
    def left(self) -> float:
        """Seconds; at least one step must be done."""
        return (perf_counter() - self._began) / self.done * (self.total - self.done)
