"""How an audit goes: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from fedveil.report.display import Bar, Lines, Steps
from fedveil.reproduce.progress import duration

LINES = 10  # plain lines an audit, about


def audit_progress_for(console: Console) -> PlainAuditProgress | LiveAuditProgress:
    """The right one for a console."""
    return LiveAuditProgress(console) if console.is_terminal else PlainAuditProgress(console)


class PlainAuditProgress(Lines):
    """A line now and then."""

    def begin(self, steps: int) -> None:
        """Remember how much lies ahead."""
        self._steps = Steps(steps)

    def advance(self, text: str) -> None:
        """A line now and then."""
        steps = self._steps
        steps.advance()
        if steps.done % max(1, steps.total // LINES) == 0 or steps.done == steps.total:
            self.say(f"{steps.done}/{steps.total} rounds  {duration(steps.left)} left  {text}")


class LiveAuditProgress(Bar):
    """One bar."""

    def begin(self, steps: int) -> None:
        """Start the bar."""
        self._steps = Steps(steps)
        text = TextColumn("{task.fields[text]}", markup=False)
        self.start((BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), text), "", 0, steps)

    def advance(self, text: str) -> None:
        """Move the bar."""
        self._steps.advance()
        self.move(self._steps.done, f"{duration(self._steps.left)} left  {text}")
