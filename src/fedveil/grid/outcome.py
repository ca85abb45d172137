"""What a finished cell leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedveil.grid.cell import Cell
from fedveil.runs.summary import Row, Summary


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished cell.

    Attributes
    ----------
    cell : Cell
        What was run.
    summary : Summary
        Figures of the whole run.
    folder : Path or None
        Where its files lie; None for a run that was kept in memory alone.
    """

    cell: Cell
    summary: Summary
    folder: Path | None

    @property
    def rows(self) -> Sequence[Row]:
        """One a round; a probe's figures are under "figures"."""
        return self.summary.rows

    def series(self, name: str) -> list[float]:
        """A figure round by round: a probe's, else of the noise, else of the pooled metrics; [] if there is none."""
        for kind in ("figures", "noise", "metrics"):
            found = [float(row[kind][name]) for row in self.rows if name in row.get(kind, {})]
            if found:
                return found
        return []


@dataclass(frozen=True)
class Finished:
    """What is finished of some cells.

    Attributes
    ----------
    outcomes : dict of str to Outcome
        By key of the cell.
    failed : dict of str to str
        By key, why a cell has no model.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
