"""A figure of a table: what was printed, what was measured, and how both stand in a file."""

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
        by_seed: dict[int, dict[int, float]] = {}
        for seed, draw, value in zip(self.seeds, self.draws, self.values, strict=True):
            by_seed.setdefault(seed, {})[draw] = value
        return by_seed

    @property
    def mean(self) -> float:
        """Over all repetitions."""
        return fmean(self.values)

    @property
    def between_draws(self) -> float | None:
        """Standard deviation over noise draws on one training, mean over seeds; None where each has one draw."""
        deviations = [stdev(values.values()) for values in self.by_seed.values() if len(values) > 1]
        return fmean(deviations) if deviations else None

    @property
    def difference(self) -> float | None:
        """Ours less the published figure."""
        return (
            None
            if self.value is None or self.published is None
            else self.value - self.published.value
        )


def interval_of(values: Sequence[float], tests: int = 1) -> tuple[float, float]:
    """Student's 95% interval for the mean of at least two independent values; `tests` share the 5% between them."""
    tail = (1 - CONFIDENCE) / 2 / tests
    half = float(stdtrit(len(values) - 1, 1 - tail)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def to_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Plain values for a file; what does not exist is left out."""
    rows = []
    for r in results:
        printed = (
            {}
            if r.published is None
            else {k: v for k, v in vars(r.published).items() if v is not None}
        )
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
    results = []
    for row in rows:
        known: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k != "difference"
        }
        printed = known.pop("published", None)
        one = Result(**known, published=Published(**printed) if printed else None)
        if not len(one.values) == len(one.seeds) == len(one.draws):
            raise ValueError(f"{one.row}, {one.setting}: not as many values as seeds")
        results.append(one)
    return results
