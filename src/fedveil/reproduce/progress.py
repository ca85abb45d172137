"""How a study goes: which cell, and the time that all of them together still need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from fedveil.experiments import Progress
from fedveil.experiments.summary import Row
from fedveil.reproduce.cells import Cell, Outcome


class Overall:
    """Passes on what a run says of itself, and adds where in the study it stands.

    Parameters
    ----------
    inner : Progress
        Is told.
    cells, left : sequence of Cell
        All, and those that are not finished.
    finished : sequence of Outcome
        Say how long a cell takes, until one is finished in this call.
    """

    def __init__(
        self, inner: Progress, cells: Sequence[Cell], left: Sequence[Cell], finished: Sequence[Outcome]
    ) -> None:
        self._inner, self._cells, self._left = inner, list(cells), list(left)
        self._pace = Pace()
        self._earlier = Pace()
        for outcome in finished:
            self._earlier.add(outcome.cell, float(outcome.summary.values["seconds"]["rounds"]))
        self._began = 0.0
        if len(cells) > len(left):
            self.say(f"{len(cells) - len(left)} of {len(cells)} runs are finished already")

    @contextmanager
    def cell(self, cell: Cell) -> Iterator[None]:
        """One cell: counted when it is over, whatever happened."""
        self._began = perf_counter()
        number = len(self._cells) - len(self._left) + 1
        self.say(f"run {number} of {len(self._cells)}: {cell.label}{self._remaining()}")
        yield
        self._pace.add(cell, perf_counter() - self._began)
        self._left = [other for other in self._left if other.key != cell.key]

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Pass it on."""
        self._inner.begin(label, done, rounds)

    def advance(self, row: Row) -> None:
        """Pass it on."""
        self._inner.advance(row)

    def say(self, text: str) -> None:
        """Pass it on."""
        self._inner.say(text)

    def end(self) -> None:
        """Pass it on."""
        self._inner.end()

    def _remaining(self) -> str:
        seconds = self._pace.seconds(self._left) or self._earlier.seconds(self._left)
        return "" if seconds is None else f"; about {duration(seconds)} left for all"


class Pace:
    """Seconds for a unit of work, apart for runs of one round: those that begin alike are trained only once."""

    def __init__(self) -> None:
        self._seen: dict[bool, tuple[float, float]] = {}

    def add(self, cell: Cell, seconds: float) -> None:
        """A cell that took so long."""
        work, spent = self._seen.get(_single(cell), (0.0, 0.0))
        self._seen[_single(cell)] = (work + cell.work, spent + seconds)

    def seconds(self, cells: Sequence[Cell]) -> float | None:
        """How long these will take; None before anything was seen."""
        if not self._seen:
            return None
        total = 0.0
        for cell in cells:
            work, spent = self._seen.get(_single(cell)) or next(iter(self._seen.values()))
            total += cell.work * spent / work
        return total


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _single(cell: Cell) -> bool:
    return cell.config.rounds == 1
