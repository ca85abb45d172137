"""What a study of a paper is, and how its cells are run: once each, however many tables and figures share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from fedveil.errors import FieldError, NoReplyError, nearest
from fedveil.experiments import Progress
from fedveil.reproduce.cells import Cell, Outcome, Runs, distinct
from fedveil.reproduce.measure import Entry, Replicate
from fedveil.reproduce.parallel import Jobs
from fedveil.reproduce.progress import Overall

PATIENCE = 60.0  # seconds between two lines on runs that go on in other processes


@dataclass(frozen=True)
class Curve:
    """Points of one line, and the area under it where it is a ROC curve."""

    x: Sequence[float]
    y: Sequence[float]
    area: float | None = None


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a figure; with several replicates their mean and range, over the same x.

    Attributes
    ----------
    panel, label : str
        Where it is drawn, and its name.
    replicates : tuple of Replicate
        What it is measured on.
    curve : callable
        ``outcomes of a replicate -> Curve``.
    printed : float or None
        A level that the paper printed for it.
    """

    panel: str
    label: str
    replicates: tuple[Replicate, ...]
    curve: Callable[[Sequence[Outcome]], Curve]
    printed: float | None = None


@dataclass(frozen=True, eq=False)
class Plot:
    """A figure: its lines, panel by panel, and its words."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    diagonal: bool = False
    printed: str = ""


class Study(Protocol):
    """A paper's experiments: which tables and figures there are, and what each needs."""

    @property
    def name(self) -> str:
        """Of the study."""

    @property
    def tables(self) -> Mapping[str, str]:
        """Tables by number, with their titles."""

    @property
    def figures(self) -> Mapping[str, str]:
        """Figures by number, with their titles."""

    @property
    def choices(self) -> Mapping[str, Any]:
        """What decides its figures, for the files that hold them."""

    def with_stored(self, values: Mapping[str, Any]) -> Study:
        """The same, and what a table file that it once wrote holds beyond it."""

    def entries(self, table: str) -> list[Entry]:
        """What a table is made of."""

    def plot(self, figure: str) -> Plot:
        """What a figure is made of."""

    def notes(self, names: Sequence[str]) -> list[str]:
        """What has to be said beside these tables and figures: what was shrunk, what was guessed."""


@dataclass(frozen=True)
class Selection:
    """Tables and figures to reproduce, each known to the study."""

    tables: tuple[str, ...]
    figures: tuple[str, ...]

    @classmethod
    def of(cls, study: Study, tables: Iterable[str] = (), figures: Iterable[str] = ()) -> Selection:
        """Check names; nothing chosen is everything.

        Raises
        ------
        FieldError
            Naming what exists.
        """
        chosen_tables, chosen_figures = list(tables), list(figures)
        if not chosen_tables and not chosen_figures:
            return cls(tuple(study.tables), tuple(study.figures))
        asked = (("--table", chosen_tables, study.tables), ("--figure", chosen_figures, study.figures))
        found = []
        for option, names, known in asked:
            by_name = {_plain(name): name for name in known}
            for name in names:
                other = next((o for o, _, those in asked if o != option and _plain(name) in map(_plain, those)), None)
                if _plain(name) not in by_name and other is not None:
                    raise FieldError(option, name, f"{study.name} has it under {other} {name}")
                if _plain(name) not in by_name:
                    raise FieldError(option, name, f"{study.name} has no such one; {nearest(name, known)}")
            found.append(tuple(dict.fromkeys(by_name[_plain(name)] for name in names)))
        return cls(*found)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return self.tables + self.figures


@dataclass
class Progressed:
    """What is finished after a call: outcomes by key of the cell, and why others failed."""

    finished: dict[str, Outcome] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def cells_of(study: Study, selection: Selection) -> list[Cell]:
    """Every cell that a selection needs, once, in order."""
    replicates = [r for table in selection.tables for entry in study.entries(table) for r in entry.replicates]
    replicates += [r for figure in selection.figures for line in study.plot(figure).lines for r in line.replicates]
    return distinct([cell for r in replicates for cell in r.cells])


def run_cells(cells: Sequence[Cell], runs: Runs, progress: Progress | None, done: Progressed, jobs: int = 1) -> None:
    """Run what is not finished; `done` holds what is, also after an interruption.

    Parameters
    ----------
    cells : sequence of Cell
        In the order in which they are run.
    runs : Runs
        The folder.
    progress : Progress or None
        Is told how it goes; None runs nothing, and only collects what is finished.
    done : Progressed
        Is filled.
    jobs : int
        Cells at once, each in a process of its own; with more than one, `progress` is told of whole cells, and now and
        then in which round the others are.
    """
    for cell in cells:
        outcome = runs.finished(cell)
        if outcome is not None:
            done.finished[cell.key] = outcome
    if progress is None:
        return
    left = {cell: runs.share_left(cell) for cell in cells if cell.key not in done.finished}
    overall = Overall(progress, cells, left, list(done.finished.values()), min(jobs, max(1, len(left))))
    if overall.jobs > 1:
        _at_once(list(left), runs, overall, done)
        return
    for cell in left:
        overall.begins(cell)
        began, why = perf_counter(), ""
        try:
            done.finished[cell.key] = runs.run(cell, overall)
        except NoReplyError as error:  # a model that diverged: the other cells still say something
            done.failed[cell.key] = why = str(error)
        overall.ended(cell, perf_counter() - began, why)


def _at_once(left: Sequence[Cell], runs: Runs, overall: Overall, done: Progressed) -> None:
    with Jobs(runs, overall.jobs, left) as going:
        while (ended := going.next(PATIENCE)) is not None:
            if not ended:
                overall.stands({cell: runs.rounds_done(cell) for cell in going.cells})
            for one in ended:
                outcome = None if one.why else runs.finished(one.cell)
                if outcome is None:
                    done.failed[one.cell.key] = one.why
                else:
                    done.finished[one.cell.key] = outcome
                overall.ended(one.cell, one.seconds, one.why, one.share)


def _plain(name: str) -> str:
    return name.replace(".", "").replace(" ", "").upper()
