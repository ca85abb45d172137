"""What is planned, measured on cells repetition by repetition, and set beside what a paper printed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
        Where it stands; of a line, `row` is its label.
    runs : Runs
        Those behind it.
    measure : callable
        ``outcomes of a repetition -> Value``, of a line ``-> Curve``.
    published : Published or None
        What was printed there.
    panel : str
        Of a plot.
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
        """Of all repetitions."""
        return [cell for cells in self.runs.values() for cell in cells]

    def done(self, finished: Mapping[str, Outcome]) -> dict[tuple[int, int], list[Outcome]]:
        """Outcomes by seed and draw, where all cells are finished, by key."""
        whole = {
            k: cells
            for k, cells in self.runs.items()
            if all(cell.key in finished for cell in cells)
        }
        return {k: [finished[cell.key] for cell in cells] for k, cells in whole.items()}


def measured(one: PlannedFigure, finished: Mapping[str, Outcome]) -> Result:
    """Measure a figure on the cells that are finished, by key."""
    whole = one.done(finished)
    every = {k: one.measure(outcomes) for k, outcomes in whole.items()}
    finite = {k: figure for k, figure in every.items() if math.isfinite(figure.value)}
    value, deviation, interval, over = _summed_up(finite)
    outcomes = [outcome for outcomes in whole.values() for outcome in outcomes]
    firsts = [outcomes[0].summary for outcomes in whole.values()]
    noise = {}
    for name in ("sigma", "distance", "noise_to_clip"):
        means = [v for v in (s.noise(name) for s in firsts) if v is not None]
        if means:
            noise[name] = fmean(means)
    return Result(
        row=one.row,
        setting=one.setting,
        figure=one.figure,
        published=one.published,
        values=tuple(v.value for v in finite.values()),
        seeds=tuple(seed for seed, _ in finite),
        draws=tuple(draw for _, draw in finite),
        value=value,
        deviation=deviation,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        over=over,
        missing=tuple(dict.fromkeys(cell.label for cell in one.cells if cell.key not in finished)),
        undefined=len(whole) - len(finite),
        noise=noise,
        chance=_chance(firsts),
        guarantee=str(firsts[0].values["guarantee"]) if firsts else "",
        cells=tuple(dict.fromkeys(o.folder.name if o.folder else o.cell.folder for o in outcomes)),
        numerics=tuple(sorted({str(o.summary.values.get("numerics", 1)) for o in outcomes})),
    )


def _chance(summaries: Sequence[Summary]) -> float | None:
    known = [s.values["data"].get("largest_class") for s in summaries]
    return max((share for share in known if share is not None), default=None)


def _summed_up(
    repetitions: Mapping[tuple[int, int], Value],
) -> tuple[float | None, float | None, tuple[float, float] | None, str]:
    """Mean, deviation, interval and what they are over: seeds, else noise draws, else what one run brings."""
    if not repetitions:
        return None, None, None, ""
    seeds: dict[int, list[float]] = {}
    for (seed, _), value in repetitions.items():
        seeds.setdefault(seed, []).append(value.value)
    if len(seeds) > 1:
        values, over = [fmean(v) for v in seeds.values()], f"{len(seeds)} seeds"
    elif len(repetitions) > 1:
        values, over = (
            [v.value for v in repetitions.values()],
            f"{len(repetitions)} noise draws on one training",
        )
    else:
        [only] = repetitions.values()
        if only.deviation is not None:
            return only.value, only.deviation, None, f"the last {LAST} rounds of one run"
        return only.value, None, only.interval, only.unit or "one run"
    return fmean(values), stdev(values), interval_of(values), over


class WholeRun:
    """Base of a `fedveil_lab.runs.runner.Judge` that concludes of one run after another; it keeps a model at most."""

    def __init__(self, _config: Config | None = None) -> None:
        """Everything is taken from the run."""

    def load(self, setup: Setup) -> int:
        """As much as a model."""
        return 1

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Of each run what `concluded` says."""
        return [judge.concluded() for judge in judges]

    def concluded(self) -> dict[str, Any]:
        """Nothing, where the figures stand in the rounds."""
        return {}
