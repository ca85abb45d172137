"""Figures of tables: as printed, as measured, and as stored in a file."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

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
    """Figure that one repetition measured.

    Attributes
    ----------
    value : float
        The figure.
    deviation : float or None
        Standard deviation over the last rounds, if the figure is their mean.
    interval : tuple of float or None
        The figure's own interval, if it has one.
    unit : str
        What the interval is taken over.
    """

    value: float
    deviation: float | None = None
    interval: tuple[float, float] | None = None
    unit: str = ""


@dataclass(frozen=True)
class Result:
    """A figure of a table, measured.

    Attributes
    ----------
    row, setting, figure : str
        Place of the figure in the table.
    published : Published or None
        What the paper printed.
    values : tuple of float
        Value of each finished repetition.
    seeds, draws : tuple of int
        Seed and draw of each finished repetition.
    value : float or None
        Mean of the values; None if no repetition is finished.
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
        Guarantee of the first finished cell.
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
        """Values by seed, and for each seed by draw."""
        by_seed: dict[int, dict[int, float]] = {}
        for seed, draw, value in zip(self.seeds, self.draws, self.values, strict=True):
            by_seed.setdefault(seed, {})[draw] = value
        return by_seed

    @property
    def mean(self) -> float:
        """Mean over all repetitions."""
        return fmean(self.values)

    @property
    def between_draws(self) -> float | None:
        """Standard deviation over noise draws on one training, mean over seeds; None where each has one draw."""
        deviations = [stdev(values.values()) for values in self.by_seed.values() if len(values) > 1]
        if not deviations:
            return None
        return fmean(deviations)

    @property
    def difference(self) -> float | None:
        """Our figure minus the published one."""
        if self.value is None or self.published is None:
            return None
        return self.value - self.published.value


def interval_of(values: Sequence[float], tests: int = 1) -> tuple[float, float]:
    """Student's 95% interval for the mean of at least two independent values; `tests` share the 5% between them."""
    tail = (1 - CONFIDENCE) / 2 / tests
    half = float(stdtrit(len(values) - 1, 1 - tail)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def to_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Plain values for a file; what does not exist is left out."""
    rows = []
    for r in results:
        row: dict[str, Any] = {}
        for name, value in vars(r).items():
            nothing_undefined = name == "undefined" and value == 0
            if name == "published" or value in (None, "", (), {}) or nothing_undefined:
                continue
            row[name] = value
            if isinstance(value, tuple):
                row[name] = list(value)
        if r.published is not None:
            printed = vars(r.published).items()
            row["published"] = {name: value for name, value in printed if value is not None}
        if r.difference is not None:
            row["difference"] = r.difference
        rows.append(row)
    return rows


def from_json(rows: Iterable[Mapping[str, Any]]) -> list[Result]:
    """Read results that `to_json` wrote.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a row is damaged.
    """
    results = []
    for row in rows:
        known: dict[str, Any] = dict(row)
        known.pop("difference", None)
        for name, value in row.items():
            if isinstance(value, list):
                known[name] = tuple(value)
        printed = known.pop("published", None)
        if printed:
            known["published"] = Published(**printed)
        one = Result(**known)
        if not len(one.values) == len(one.seeds) == len(one.draws):
            raise ValueError(f"{one.row}, {one.setting}: not as many values as seeds")
        results.append(one)
    return results
