"""What is measured on cells, replicate by replicate, and set beside what a paper printed."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

from fedveil.experiments.summary import LAST
from fedveil.reproduce.cells import Cell, Outcome

CONFIDENCE = 0.95


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
    """What one replicate measured.

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
class Replicate:
    """The cells that one measurement needs, under one seed and one draw of the noise."""

    seed: int
    cells: tuple[Cell, ...]
    draw: int = 0


@dataclass(frozen=True, eq=False)
class Entry:
    """One figure of a table: where it stands, what was printed there, and how it is measured."""

    row: str
    setting: str
    figure: str
    replicates: tuple[Replicate, ...]
    measure: Callable[[Sequence[Outcome]], Value]
    published: Published | None = None


@dataclass(frozen=True)
class Result:
    """An entry, measured.

    Attributes
    ----------
    row, setting, figure : str
        Where it stands.
    published : Published or None
        What the paper printed.
    values : tuple of float
        One a replicate that is finished.
    seeds, draws : tuple of int
        Of those replicates.
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
        Finished replicates whose figure is no finite number (a loss that overflowed, say); they are left out.
    noise : dict of str to float
        sigma, distance and noise_to_clip of the first cell, mean over rounds and replicates.
    chance : float or None
        Accuracy of always saying the largest class, over the clients' examples, where class counts are known.
    guarantee : str
        Of the first finished cell.
    cells : tuple of str
        Folders of the finished cells.
    """

    row: str
    setting: str
    figure: str
    published: Published | None
    values: tuple[float, ...]
    seeds: tuple[int, ...]
    draws: tuple[int, ...]
    value: float | None
    deviation: float | None
    low: float | None
    high: float | None
    over: str
    missing: tuple[str, ...]
    undefined: int
    noise: Mapping[str, float]
    chance: float | None
    guarantee: str
    cells: tuple[str, ...]

    @property
    def between_draws(self) -> float | None:
        """Standard deviation over noise draws on one training, mean over seeds; None where each has one draw."""
        by_seed: dict[int, list[float]] = {}
        for seed, value in zip(self.seeds, self.values, strict=True):
            by_seed.setdefault(seed, []).append(value)
        found = [stdev(values) for values in by_seed.values() if len(values) > 1]
        return fmean(found) if found else None

    @property
    def difference(self) -> float | None:
        """Ours less the published figure."""
        return None if self.value is None or self.published is None else self.value - self.published.value


def measured(entry: Entry, finished: Mapping[str, Outcome]) -> Result:
    """Measure an entry on the cells that are finished, by key."""
    whole = [r for r in entry.replicates if all(cell.key in finished for cell in r.cells)]
    absent = (cell for r in entry.replicates for cell in r.cells if cell.key not in finished)
    figures = [(r, entry.measure([finished[cell.key] for cell in r.cells])) for r in whole]
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
        row=entry.row,
        setting=entry.setting,
        figure=entry.figure,
        published=entry.published,
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
        chance=_chance(whole[0].cells[0]) if whole else None,
        guarantee=str(firsts[0].values["guarantee"]) if firsts else "",
        cells=tuple(dict.fromkeys(o.folder.name for o in outcomes)),
    )


def _chance(cell: Cell) -> float | None:
    counts = cell.config.data.counts
    if not counts:
        return None
    classes = [float(sum(column)) for column in zip(*counts, strict=True)]
    return max(classes) / sum(classes)


def _summed_up(
    replicates: Sequence[Replicate], found: Sequence[Value]
) -> tuple[float | None, float | None, tuple[float, float] | None, str]:
    """Mean, deviation, interval and what they are over: seeds, else noise draws, else what one run brings."""
    if not found:
        return None, None, None, ""
    seeds: dict[int, list[float]] = {}
    for replicate, value in zip(replicates, found, strict=True):
        seeds.setdefault(replicate.seed, []).append(value.value)
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


def read_published(file: Traversable) -> dict[tuple[str, str, str, str], Published]:
    """The printed figures, by (table, row, setting, figure)."""
    found = {}
    for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        place = (line["table"], line["row"], line["setting"], line["figure"])
        numbers = {k: float(line[k]) for k in ("deviation", "low", "high") if line[k]}
        found[place] = Published(float(line["value"]), **numbers)
    return found


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
        extra = {"published": printed, "difference": r.difference} if printed and r.difference is not None else {}
        rows.append({k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()} | extra)
    return rows
