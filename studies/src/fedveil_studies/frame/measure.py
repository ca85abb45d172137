"""What is planned, measured on cells repetition by repetition, and set beside what a paper printed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedveil.grid import Cell, Outcome
from fedveil.runs.summary import LAST, Summary
from fedveil_studies.frame.result import Published, Result, Value, interval_of


@dataclass(frozen=True, eq=False)
class Repetition:
    """The cells that one measurement needs, under one seed and one draw of the noise."""

    seed: int
    cells: tuple[Cell, ...]
    draw: int = 0

    def outcomes(self, finished: Mapping[str, Outcome]) -> list[Outcome]:
        """Of its cells, by key; empty unless all are finished."""
        found = [finished[cell.key] for cell in self.cells if cell.key in finished]
        return found if len(found) == len(self.cells) else []


@dataclass(frozen=True, eq=False)
class Measurement:
    """One figure of a table, or one line of a plot: where it stands, its runs, and how it is measured.

    Attributes
    ----------
    row, setting, figure : str
        Where it stands; of a line, `row` is its label.
    repetitions : tuple of Repetition
        Its runs.
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
    repetitions: tuple[Repetition, ...]
    measure: Callable[[Sequence[Outcome]], Any]
    published: Published | None = None
    panel: str = ""


def measured(one: Measurement, finished: Mapping[str, Outcome]) -> Result:
    """Measure a figure on the cells that are finished, by key."""
    whole = [r for r in one.repetitions if all(cell.key in finished for cell in r.cells)]
    absent = (cell for r in one.repetitions for cell in r.cells if cell.key not in finished)
    figures = [(r, one.measure([finished[cell.key] for cell in r.cells])) for r in whole]
    counted = [r for r, figure in figures if math.isfinite(figure.value)]
    found = [figure for _, figure in figures if math.isfinite(figure.value)]
    value, deviation, interval, over = _summed_up(counted, found)
    outcomes = [finished[cell.key] for r in whole for cell in r.cells]
    firsts = [finished[r.cells[0].key].summary for r in whole]
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
        values=tuple(v.value for v in found),
        seeds=tuple(r.seed for r in counted),
        draws=tuple(r.draw for r in counted),
        value=value,
        deviation=deviation,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        over=over,
        missing=tuple(dict.fromkeys(cell.label for cell in absent)),
        undefined=len(whole) - len(counted),
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
    repetitions: Sequence[Repetition], found: Sequence[Value]
) -> tuple[float | None, float | None, tuple[float, float] | None, str]:
    """Mean, deviation, interval and what they are over: seeds, else noise draws, else what one run brings."""
    if not found:
        return None, None, None, ""
    seeds: dict[int, list[float]] = {}
    for one, value in zip(repetitions, found, strict=True):
        seeds.setdefault(one.seed, []).append(value.value)
    if len(seeds) > 1:
        values, over = [fmean(v) for v in seeds.values()], f"{len(seeds)} seeds"
    elif len(found) > 1:
        values, over = [v.value for v in found], f"{len(found)} noise draws on one training"
    else:
        [only] = found
        if only.deviation is not None:
            return only.value, only.deviation, None, f"the last {LAST} rounds of one run"
        return only.value, None, only.interval, only.unit or "one run"
    return fmean(values), stdev(values), interval_of(values), over
