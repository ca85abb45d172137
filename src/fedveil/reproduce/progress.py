"""How a study goes: which cell, and the time that all of them together still need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedveil.experiments import Progress
from fedveil.experiments.summary import Row
from fedveil.reproduce.cells import Cell, Outcome


class Overall:
    """Passes on what a run says of itself, and adds where in the study it stands.

    Parameters
    ----------
    inner : Progress
        Is told.
    cells : sequence of Cell
        All.
    left : mapping from Cell to float
        Those that are not finished, in their order, and the share of its rounds that each still has to do.
    finished : sequence of Outcome
        Say how long a cell takes, until one is finished in this call.
    jobs : int
        How many are run at once; with several, a cell is spoken of when it has ended, else when it begins.
    """

    def __init__(
        self,
        inner: Progress,
        cells: Sequence[Cell],
        left: Mapping[Cell, float],
        finished: Sequence[Outcome],
        jobs: int = 1,
    ) -> None:
        self.jobs, self._share = jobs, 1.0
        self._inner, self._cells, self._left = inner, list(cells), dict(left)
        self._pace = Pace()
        self._earlier = Pace()
        for outcome in finished:
            self._earlier.add(outcome.cell, float(outcome.summary.values["seconds"]["rounds"]))
        if len(cells) > len(left):
            self.say(f"{len(cells) - len(left)} of {len(cells)} runs are finished already")
        if jobs > 1:
            self.say(f"{len(left)} runs, {jobs} at once{self._remaining()}")

    def begins(self, cell: Cell) -> None:
        """Say which one, and how long all of them still take."""
        self._share = 1.0
        number = len(self._cells) - len(self._left) + 1
        self.say(f"run {number} of {len(self._cells)}: {cell.label}{self._remaining()}")

    def ended(self, cell: Cell, seconds: float, why: str, share: float | None = None) -> None:
        """Count it, whatever happened; `why` says why it has no model, or is empty.

        A run that went on in the middle did a `share` of its rounds; by default the one that it said when it began.
        """
        if not why:  # one that diverged says nothing of how long a whole run takes
            self._pace.add(cell, seconds, self._share if share is None else share)
        self._left = {other: left for other, left in self._left.items() if other.key != cell.key}
        if why:
            self.say(f"{cell.label}: {why}")
        elif self.jobs > 1:
            number = len(self._cells) - len(self._left)
            self.say(f"{number} of {len(self._cells)}: {cell.label} ({duration(seconds)}){self._remaining()}")

    def stands(self, rounds: Mapping[Cell, int]) -> None:
        """Say how many rounds of several runs are finished."""
        each = (f"{cell.label}: {done} of {cell.config.rounds} rounds" for cell, done in rounds.items())
        self.say(f"so far: {', '.join(each)}")

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Pass it on."""
        self._share = 1 - done / rounds
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
        return "" if not seconds else f"; about {duration(seconds / self.jobs)} left for all"


class Pace:
    """Seconds for a unit of work, apart for runs of one round: those that begin alike are trained only once."""

    def __init__(self) -> None:
        self._seen: dict[bool, tuple[float, float]] = {}
        self._trained: set[str] = set()

    def add(self, cell: Cell, seconds: float, share: float = 1.0) -> None:
        """A cell, or the last share of its rounds, that took so long."""
        if not share or cell.training in self._trained:
            return
        if cell.single:
            self._trained.add(cell.training)
        work, spent = self._seen.get(cell.single, (0.0, 0.0))
        self._seen[cell.single] = (work + share * cell.work, spent + seconds)

    def seconds(self, cells: Mapping[Cell, float]) -> float | None:
        """How long these shares of their rounds will take; None before anything was seen."""
        if not self._seen:
            return None
        total, trained = 0.0, set(self._trained)
        for cell, left in cells.items():
            if cell.training in trained:
                continue
            if cell.single:
                trained.add(cell.training)
            work, spent = self._seen.get(cell.single) or next(iter(self._seen.values()))
            total += left * cell.work * spent / work
        return total


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
