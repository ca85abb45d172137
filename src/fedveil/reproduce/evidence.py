"""What table files hold, read back: figures by seed, and how two settings differ under the same seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedveil.errors import damaged
from fedveil.reproduce.measure import interval_of

SEEDS, DRAWS, ONE_RUN = "seeds", "noise draws on one training", "one run"
WRITTEN_AGAIN = "restore it, or delete it and ask for this table again with --no-run: finished runs are kept"
Place = tuple[str, str, str, str]
"""Table, row, setting, figure."""


@dataclass(frozen=True)
class Figure:
    """One figure of a table.

    Attributes
    ----------
    values : dict of (int, int) to float
        By seed and draw of the noise.
    chance : float or None
        Accuracy of always saying the largest class.
    published : float or None
        What the paper printed.
    interval : tuple of float or None
        The figure's own, where one run brings one.
    sigma, distance : float or None
        Averages of the runs, where there was noise, and where it was scaled by a distance.
    """

    values: Mapping[tuple[int, int], float]
    chance: float | None = None
    published: float | None = None
    interval: tuple[float, float] | None = None
    sigma: float | None = None
    distance: float | None = None

    @property
    def mean(self) -> float:
        """Over all replicates."""
        return fmean(self.values.values())


@dataclass(frozen=True)
class Source:
    """All tables that were made at one scale under one reading of the paper.

    Attributes
    ----------
    study, scale : str
        Which.
    readings : tuple of str
        Other readings of the paper.
    figures : dict of Place to Figure
        What was measured; a figure without a finished run is absent.
    missing : dict of str to tuple of str
        By table, the runs that are not finished.
    """

    study: str
    scale: str
    readings: tuple[str, ...] = ()
    figures: Mapping[Place, Figure] = field(default_factory=dict)
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """For people."""
        return self.scale + "".join(f", {name}" for name in self.readings)

    def command(self, tables: Iterable[str], seeds: int) -> str:
        """What makes these tables."""
        parts = [f"fedveil reproduce {self.study}", *(f"--table {table}" for table in tables), f"--scale {self.scale}"]
        return " ".join([*parts, *(f"--reading {name}" for name in self.readings), f"--seeds {seeds}"])

    def at(self, table: str, row: str, setting: str, figure: str) -> Figure | None:
        """A figure, or None."""
        return self.figures.get((table, row, setting, figure))


@dataclass(frozen=True)
class Difference:
    """One setting less another under the same seeds, or under the same draws of the noise.

    Attributes
    ----------
    mean, low, high : float
        With Student's 95% interval; infinite for a single pair.
    count : int
        Pairs.
    over : str
        What they are.
    values : tuple of float
        Of each pair.
    seeds : tuple of int
        Of each pair, where pairs are seeds.
    """

    mean: float
    low: float
    high: float
    count: int
    over: str
    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()

    def __str__(self) -> str:
        spread = f" ({_signed(self.low)} to {_signed(self.high)})" if self.count > 1 else ""
        return f"{_signed(self.mean)}{spread}"

    def shared(self, tests: int) -> Difference:
        """With the interval of one of several tests that share the 5%; one that has no values stays as it is."""
        if len(self.values) < 2:
            return self
        low, high = interval_of(self.values, tests)
        return replace(self, low=low, high=high)


def differ(first: Figure, second: Figure) -> Difference | None:
    """Pair two figures: by seed if they share several, else by draw; None without a pair.

    A setting without noise has one draw, which stands beside every draw of the other.
    """
    seeds = sorted({s for s, _ in first.values} & {s for s, _ in second.values})
    if not seeds:
        return None
    if len(seeds) > 1:
        return difference([_of_seed(first, s) - _of_seed(second, s) for s in seeds], SEEDS, seeds)
    [seed] = seeds
    draws = sorted({d for figure in (first, second) for s, d in figure.values if s == seed})
    pairs = [(_of_draw(first, seed, d), _of_draw(second, seed, d)) for d in draws]
    values = [a - b for a, b in pairs if a is not None and b is not None]
    return difference(values, DRAWS if len(values) > 1 else ONE_RUN) if values else None


def against(figure: Figure, level: float) -> Difference:
    """A figure less a fixed level."""
    seeds = sorted({s for s, _ in figure.values})
    if len(seeds) > 1:
        return difference([_of_seed(figure, s) - level for s in seeds], SEEDS, seeds)
    values = [v - level for v in figure.values.values()]
    return difference(values, DRAWS if len(values) > 1 else ONE_RUN)


def read_sources(folder: Path) -> list[Source]:
    """The table files below a folder, together by scale and reading.

    Raises
    ------
    FieldError
        If one cannot be read.
    """
    found: dict[tuple[str, str, tuple[str, ...]], Source] = {}
    for path in sorted(folder.rglob("table-*.json")):
        try:
            values = json.loads(path.read_bytes())
            key = (str(values["study"]), str(values["scale"]), tuple(values["readings"]))
            figures, missing = _figures(values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged("table", path, error, WRITTEN_AGAIN) from error
        known = found.get(key, Source(*key))
        found[key] = Source(*key, {**known.figures, **figures}, {**known.missing, str(values["table"]): missing})
    return list(found.values())


def _figures(values: Mapping[str, Any]) -> tuple[dict[Place, Figure], list[str]]:
    found: dict[Place, Figure] = {}
    missing: dict[str, None] = {}
    for row in values["rows"]:
        missing |= dict.fromkeys(row.get("missing", ()))
        if not row.get("values"):
            continue
        keys = zip(row["seeds"], row["draws"], strict=True)
        own = (row["low"], row["high"]) if len(row["values"]) == 1 and "low" in row else None
        found[str(values["table"]), row["row"], row["setting"], row["figure"]] = Figure(
            values=dict(zip(keys, map(float, row["values"]), strict=True)),
            chance=row.get("chance"),
            published=row.get("published", {}).get("value"),
            interval=own,
            sigma=row.get("noise", {}).get("sigma"),
            distance=row.get("noise", {}).get("distance"),
        )
    return found, list(missing)


def _of_seed(figure: Figure, seed: int) -> float:
    return fmean(v for (s, _), v in figure.values.items() if s == seed)


def _of_draw(figure: Figure, seed: int, draw: int) -> float | None:
    own = {d: v for (s, d), v in figure.values.items() if s == seed}
    return next(iter(own.values())) if len(own) == 1 else own.get(draw)


def difference(values: Sequence[float], over: str, seeds: Sequence[int] = ()) -> Difference:
    """Of paired values, and their seeds."""
    low, high = interval_of(values) if len(values) > 1 else (float("-inf"), float("inf"))
    return Difference(fmean(values), low, high, len(values), over, tuple(values), tuple(seeds))


def mean_of(differences: Sequence[Difference]) -> Difference | None:
    """Their mean seed by seed, over the seeds that all of them have; None without two of these."""
    common = sorted(set.intersection(*(set(one.seeds) for one in differences))) if differences else []
    if len(common) < 2:
        return None
    by_seed = [dict(zip(one.seeds, one.values, strict=True)) for one in differences]
    return difference([fmean(one[seed] for one in by_seed) for seed in common], SEEDS, common)


def _signed(value: float) -> str:
    return f"{value:+.3f}" if abs(value) < 10 else f"{value:+.3g}"
