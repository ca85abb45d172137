"""Planned figures, their measurement on finished cells, and the paper's printed figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, stdev
from typing import Any, Self

from fedveil.evidence import LAST
from fedveil_lab.config import Config
from fedveil_lab.grid import Cell, Outcome
from fedveil_lab.runs.prepare import Setup
from fedveil_lab.runs.summary import Summary
from fedveil_studies.frame.result import Published, Result, Value, interval_of

Runs = Mapping[tuple[int, int], tuple[Cell, ...]]
"""The cells that one measurement needs, by seed and draw of the noise."""


@dataclass(frozen=True, eq=False)
class PlannedFigure:
    """One figure of a table, or one line of a plot: where it stands, its runs, and how it is measured.

    Attributes
    ----------
    row, setting, figure : str
        Place of the figure; for a line of a plot, `row` is its label.
    runs : Runs
        Runs from which it is measured.
    measure : callable
        ``outcomes of a repetition -> Value``, of a line ``-> Curve``.
    published : Published or None
        Figure that the paper printed.
    panel : str
        Panel of a plot.
    """

    row: str
    setting: str
    figure: str
    runs: Runs
    measure: Callable[[Sequence[Outcome]], Any]
    published: Published | None = None
    panel: str = ""

    @property
    def cells(self) -> list[Cell]:
        """Cells of all repetitions."""
        return list(chain.from_iterable(self.runs.values()))

    def done(self, finished: Mapping[str, Outcome]) -> dict[tuple[int, int], list[Outcome]]:
        """Outcomes by seed and draw, where all cells are finished, by key."""
        done = {}
        for repetition, cells in self.runs.items():
            outcomes = [finished[cell.key] for cell in cells if cell.key in finished]
            if len(outcomes) == len(cells):
                done[repetition] = outcomes
        return done


def measured(one: PlannedFigure, finished: Mapping[str, Outcome]) -> Result:
    """Measure a figure on its finished cells, given by key."""
    whole = one.done(finished)
    finite: dict[tuple[int, int], Value] = {}
    values, seeds, draws = list[float](), list[int](), list[int]()
    firsts, folders, numerics, guarantee = list[Summary](), list[str](), set[str](), ""
    for repetition, outcomes in whole.items():
        figure = one.measure(outcomes)
        if math.isfinite(figure.value):
            finite[repetition] = figure
            values.append(figure.value)
            seeds.append(repetition[0])
            draws.append(repetition[1])
        firsts.append(outcomes[0].summary)
        for outcome in outcomes:
            numerics.add(str(outcome.summary.values.get("numerics", 1)))
            folders.append(outcome.folder_name)
    value, deviation, (low, high), over = _summed_up(finite)
    if firsts:
        guarantee = str(firsts[0].values["guarantee"])
    missing = [cell.label for cell in one.cells if cell.key not in finished]
    return Result(
        row=one.row,
        setting=one.setting,
        figure=one.figure,
        published=one.published,
        values=tuple(values),
        seeds=tuple(seeds),
        draws=tuple(draws),
        value=value,
        deviation=deviation,
        low=low,
        high=high,
        over=over,
        missing=tuple(dict.fromkeys(missing)),
        undefined=len(whole) - len(finite),
        noise=_noise(firsts),
        chance=_chance(firsts),
        guarantee=guarantee,
        cells=tuple(dict.fromkeys(folders)),
        numerics=tuple(sorted(numerics)),
    )


def _noise(summaries: Sequence[Summary]) -> dict[str, float]:
    """Means over the runs that had noise."""
    means = {}
    for name in ("sigma", "distance", "noise_to_clip"):
        values = []
        for summary in summaries:
            value = summary.noise(name)
            if value is not None:
                values.append(value)
        if values:
            means[name] = fmean(values)
    return means


def _chance(summaries: Sequence[Summary]) -> float | None:
    shares = list[float]()
    for summary in summaries:
        share = summary.values["data"].get("largest_class")
        if share is not None:
            shares.append(share)
    return max(shares, default=None)


def _summed_up(
    repetitions: Mapping[tuple[int, int], Value],
) -> tuple[float | None, float | None, tuple[float | None, float | None], str]:
    """Mean, deviation, interval and what they are over: seeds, else noise draws, else what one run brings."""
    if not repetitions:
        return None, None, (None, None), ""
    seeds: dict[int, list[float]] = {}
    for (seed, _), value in repetitions.items():
        seeds.setdefault(seed, []).append(value.value)
    if len(seeds) > 1:
        values, over = list(map(fmean, seeds.values())), f"{len(seeds)} seeds"
    elif len(repetitions) > 1:
        [values] = seeds.values()
        over = f"{len(values)} noise draws on one training"
    else:
        [only] = repetitions.values()
        if only.deviation is not None:
            return only.value, only.deviation, (None, None), f"the last {LAST} rounds of one run"
        return only.value, None, only.interval or (None, None), only.unit or "one run"
    return fmean(values), stdev(values), interval_of(values), over


class WholeRun:
    """Base class of probes that judge single runs; it keeps at most one model."""

    def __init__(self, _config: Config | None = None) -> None:
        """Everything is taken from the run."""

    def load(self, setup: Setup) -> int:
        """Return the number of vectors that the probe keeps: one model."""
        return 1

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Return the result of `concluded` for each run."""
        return [judge.concluded() for judge in judges]

    def concluded(self) -> dict[str, Any]:
        """Return the conclusions on a run; empty here, as figures are in the rounds."""
        return {}
