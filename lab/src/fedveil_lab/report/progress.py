"""Progress display of a run or an audit: a bar on a terminal, plain lines elsewhere."""

import math
from time import perf_counter

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fedveil.errors import cleaned
from fedveil.evidence import Row

LINES = 20  # plain lines a run or audit, about
ROOM = 80  # columns of a terminal that has room for a bar


def describe(row: Row) -> str:
    """Write the most important figures of a round in one line."""
    metrics, noise = row["metrics"], row["noise"]
    if "text" in row:  # no round: a step of something else
        return str(row["text"])
    parts = [f"{name} {metrics[name]:.3f}" for name in ("accuracy", "rmse") if name in metrics]
    parts += [
        f"{short} {noise[name]:.3g}"
        for name, short in (("sigma", "sigma"), ("distance", "d"))
        if name in noise
    ]
    parts += [f"{len(row[kind])} {kind}" for kind in ("failed", "invalid", "refused") if row[kind]]
    return "  ".join(parts)


class Display:
    """Display that shows the progress of one task after another.

    Parameters
    ----------
    console : Console
        Output; a terminal shows a bar, any other output a line now and then.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._label, self._done, self._first, self._total, self._began = "", 0, 0, 0, 0.0

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Begin a task of `rounds` steps, of which `done` are done."""
        self._label, self._done, self._first, self._total, self._began = (
            label,
            done,
            done,
            rounds,
            perf_counter(),
        )
        if self._console.is_terminal:
            name, text = (
                TextColumn(f"{{task.{one}}}", markup=False)
                for one in ("description", "fields[text]")
            )
            bar = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
            columns = (name, *(bar if self._console.width >= ROOM else bar[1:2]), text)
            self._bar = Progress(*columns, console=self._console)
            self._bar.add_task(label, total=rounds, completed=done, text="")
            self._bar.start()
        elif done:
            self.say(f"{label}: going on after round {done} of {rounds}")

    def advance(self, what: Row | str) -> None:
        """Show one more step: the row of a round, or a text."""
        self._done += 1
        if isinstance(what, str):
            text = what
        else:
            text = describe(what)
        left = (
            (perf_counter() - self._began) / (self._done - self._first) * (self._total - self._done)
        )
        text = f"{text}  {duration(left)} left" if left > 1 else text
        if self._bar is not None:
            self._bar.update(TaskID(0), completed=self._done, text=text)
        elif self._done in (1, self._total) or self._done % math.ceil(self._total / LINES) == 0:
            step = "round"
            if isinstance(what, dict) and "text" in what:
                step = "step"
            self.say(f"{self._label}  {step} {self._done}/{self._total}  {text}".strip())

    def say(self, text: str) -> None:
        """Show a text on a line of its own."""
        line = cleaned(text, len(text), keep="\n")
        self._console.print(
            line, markup=False, highlight=False, soft_wrap=not self._console.is_terminal
        )

    def end(self) -> None:
        """End the task; its bar stays on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def duration(seconds: float) -> str:
    """Write a time span in readable units."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h"
