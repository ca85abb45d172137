"""What is measured on cells, repetition by repetition, and set beside what a paper printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

from fedveil.grid import Cell, Outcome
from fedveil.runs.summary import LAST, Summary

CONFIDENCE = 0.95
Place = tuple[str, str, str, str]
"""Table, row, setting, figure."""


@dataclass(frozen=True)
class Published:
    """A figure as printed.

    Attributes
    ----------
    value : float
        The figure.
    deviation : float or None
        Standard deviation, where one is printed.
    low, high : float or None
        Interval, where one is printed.
    """

    value: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Value:
    """What one repetition measured.

    Attributes
    ----------
    value : float
        The figure.
    deviation : float or None
        Over the last rounds, where the figure is their mean.
    interval : tuple of float or None
        Where the figure brings one of its own, and what it is called.
    unit : str
        What `interval` is over.
    """

    value: float
    deviation: float | None = None
    interval: tuple[float, float] | None = None
    unit: str = ""


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
    """One figure of a table: where it stands, what was printed there, and how it is measured."""

    row: str
    setting: str
    figure: str
    repetitions: tuple[Repetition, ...]
    measure: Callable[[Sequence[Outcome]], Value]
    published: Published | None = None


@dataclass(frozen=True)
class Result:
    """A figure of a table, measured.

    Attributes
    ----------
    row, setting, figure : str
        Where it stands.
    published : Published or None
        What the paper printed.
    values : tuple of float
        One a repetition that is finished.
    seeds, draws : tuple of int
        Of those repetitions.
    value : float or None
        Their mean; None where none is finished.
    deviation : float or None
        Standard deviation over `over`.
    low, high : float or None
        A 95% interval: Student's over seeds or noise draws, or the figure's own; None where there is none.
    over : str
        What deviation and interval are over.
    missing : tuple of str
        Cells that are not finished.
    undefined : int
        Finished repetitions whose figure is no finite number (a loss that overflowed, say); they are left out.
    noise : dict of str to float
        sigma, distance and noise_to_clip of the first cell, mean over rounds and repetitions.
    chance : float or None
        Accuracy of always saying the largest class, over the clients' examples: the highest of the repetitions.
    guarantee : str
        Of the first finished cell.
    cells : tuple of str
        Folders of the finished cells.
    numerics : tuple of str
        Versions of the arithmetic that ran them, where they say it.
    """

    row: str
    setting: str
    figure: str
    published: Published | None = None
    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    draws: tuple[int, ...] = ()
    value: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    over: str = ""
    missing: tuple[str, ...] = ()
    undefined: int = 0
    noise: Mapping[str, float] = field(default_factory=dict)
    chance: float | None = None
    guarantee: str = ""
    cells: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()

    @property
    def by_seed(self) -> dict[int, dict[int, float]]:
        """Values by draw, by seed."""
        found: dict[int, dict[int, float]] = {}
        for seed, draw, value in zip(self.seeds, self.draws, self.values, strict=True):
            found.setdefault(seed, {})[draw] = value
        return found

    @property
    def mean(self) -> float:
        """Over all repetitions."""
        return fmean(self.values)

    @property
    def between_draws(self) -> float | None:
        """Standard deviation over noise draws on one training, mean over seeds; None where each has one draw."""
        found = [stdev(values.values()) for values in self.by_seed.values() if len(values) > 1]
        return fmean(found) if found else None

    @property
    def difference(self) -> float | None:
        """Ours less the published figure."""
        return None if self.value is None or self.published is None else self.value - self.published.value


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


def interval_of(values: Sequence[float], tests: int = 1) -> tuple[float, float]:
    """Student's 95% interval for the mean of at least two independent values; `tests` share the 5% between them."""
    tail = (1 - CONFIDENCE) / 2 / tests
    half = float(stdtrit(len(values) - 1, 1 - tail)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def to_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Plain values for a file; what does not exist is left out."""
    rows = []
    for r in results:
        printed = {} if r.published is None else {k: v for k, v in vars(r.published).items() if v is not None}
        plain = {
            k: v
            for k, v in vars(r).items()
            if k != "published" and v not in (None, "", (), {}) and (k, v) != ("undefined", 0)
        }
        extra: dict[str, Any] = {"published": printed} if printed else {}
        extra |= {} if r.difference is None else {"difference": r.difference}
        rows.append({k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()} | extra)
    return rows


def from_json(rows: Iterable[Mapping[str, Any]]) -> list[Result]:
    """What `to_json` wrote.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a row is damaged.
    """
    found = []
    for row in rows:
        known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k != "difference"}
        printed = known.pop("published", None)
        one = Result(**known, published=Published(**printed) if printed else None)
        if not len(one.values) == len(one.seeds) == len(one.draws):
            raise ValueError(f"{one.row}, {one.setting}: not as many values as seeds")
        found.append(one)
    return found
