"""Read a study's files back: figures by seed, rounds of runs, and differences between settings at equal seeds."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedveil.errors import damaged
from fedveil_studies.frame.result import Place, Result, from_json, interval_of
from fedveil_studies.frame.study import Study

SEEDS, DRAWS, ONE_RUN = "seeds", "noise draws on one training", "one run"
WRITTEN_AGAIN = (
    "restore it, or move it away and ask for this table again with --no-run: finished runs are kept"
)


@dataclass(frozen=True)
class RunSeries:
    """One run of cells.json.

    Attributes
    ----------
    scenario, row, setting : str
        Names; a changed scenario (``cia-fedavg-out``) has its change in the row.
    seed : int
        Seed of the run.
    folder : str
        Name of the run's folder, which tables use.
    guarantee : str
        Promise of the run in words.
    rounds : dict of str to list of float
        Figures of every round.
    """

    scenario: str
    row: str
    setting: str
    seed: int
    folder: str
    guarantee: str
    rounds: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Evidence:
    """All tables and runs that were made at one scale under one reading of the paper.

    Attributes
    ----------
    study : Study
        The study.
    scale : str
        Scale of the study.
    readings : tuple of str
        Other readings of the paper.
    results : dict of Place to Result
        Measured figures; without a finished run a figure has no values.
    runs : tuple of RunSeries
        Runs with their figures round by round.
    """

    study: Study
    scale: str
    readings: tuple[str, ...] = ()
    results: Mapping[Place, Result] = field(default_factory=dict)
    runs: tuple[RunSeries, ...] = ()

    @property
    def title(self) -> str:
        """Readable title of the scale and readings."""
        return ", ".join([self.scale, *self.readings])

    def command(self, tables: Iterable[str], seeds: int) -> str:
        """Return the command that makes these tables."""
        parts = [f"fedveil reproduce {self.study.name}", *(f"--table {table}" for table in tables)]
        readings = (f"--reading {name}" for name in self.readings)
        return " ".join([*parts, f"--scale {self.scale}", *readings, f"--seeds {seeds}"])

    def of_figure(self, table: str, figure: str) -> dict[tuple[str, str], Result]:
        """Results of one figure of a table, by row and setting."""
        asked = {}
        for (its_table, row, setting, its_figure), result in self.results.items():
            if (its_table, its_figure) == (table, figure):
                asked[row, setting] = result
        return asked

    def at(self, table: str, row: str, setting: str, figure: str) -> Result | None:
        """Return a figure if one of its runs is finished, else None."""
        result = self.results.get((table, row, setting, figure))
        if result is None or not result.values:
            return None
        return result


@dataclass(frozen=True)
class Difference:
    """Difference of two settings, paired by seed or by noise draw.

    Attributes
    ----------
    mean, low, high : float
        Mean and Student's 95% interval; infinite for a single pair.
    count : int
        Number of pairs.
    over : str
        What the pairs are: seeds or draws.
    values : tuple of float
        Difference of each pair.
    seeds : tuple of int
        Seed of each pair, if pairs are seeds.
    """

    mean: float
    low: float
    high: float
    count: int
    over: str
    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()

    def __str__(self) -> str:
        mean = _signed(self.mean)
        if self.count < 2:
            return mean
        return f"{mean} ({_signed(self.low)} to {_signed(self.high)})"

    def beside(self, level: float) -> str:
        """The figure itself, where the difference is one to a fixed level."""
        mean = f"{level + self.mean:.3g}"
        if self.count < 2:
            return mean
        return f"{mean} ({level + self.low:.3g} to {level + self.high:.3g})"

    def shared(self, tests: int) -> "Difference":
        """With the interval of one of several tests that share the 5%; one that has no values stays as it is."""
        if len(self.values) < 2:
            return self
        low, high = interval_of(self.values, tests)
        return replace(self, low=low, high=high)


def differ(first: Result, second: Result) -> Difference | None:
    """Pair two figures: by seed if they share several, else by draw; None without a pair.

    A setting without noise has one draw, which stands beside every draw of the other.
    """
    ours, other = first.by_seed, second.by_seed
    seeds = sorted(ours.keys() & other.keys())
    if len(seeds) > 1:
        by_seed = [fmean(ours[s].values()) - fmean(other[s].values()) for s in seeds]
        return difference(by_seed, SEEDS, seeds)
    for seed in seeds:
        values = []
        for draw in sorted({*ours[seed], *other[seed]}):
            one, two = _of_draw(ours[seed], draw), _of_draw(other[seed], draw)
            if one is not None and two is not None:
                values.append(one - two)
        if len(values) > 1:
            return difference(values, DRAWS)
        if values:
            return difference(values, ONE_RUN)
    return None


def against(by_seed: Mapping[int, float], level: float) -> Difference:
    """Difference of values by seed from a fixed level."""
    seeds, over = sorted(by_seed), ONE_RUN
    if len(seeds) > 1:
        over = SEEDS
    return difference([by_seed[s] - level for s in seeds], over, seeds)


def difference(values: Sequence[float], over: str, seeds: Sequence[int] = ()) -> Difference:
    """Make a `Difference` from paired differences and their seeds."""
    low, high = float("-inf"), float("inf")
    if len(values) > 1:
        low, high = interval_of(values)
    return Difference(fmean(values), low, high, len(values), over, tuple(values), tuple(seeds))


def mean_of(differences: Sequence[Difference]) -> Difference | None:
    """Average several differences seed by seed, over their common seeds; None if there are fewer than two."""
    by_seed = [dict(zip(one.seeds, one.values, strict=True)) for one in differences]
    if not by_seed:
        return None
    common = sorted(set.intersection(*map(set, by_seed)))
    if len(common) < 2:
        return None
    means = [fmean(one[seed] for one in by_seed) for seed in common]
    return difference(means, SEEDS, common)


@contextmanager
def reading(kind: str, path: Path, remedy: str = WRITTEN_AGAIN) -> Iterator[None]:
    """Refuse a file of a study that cannot be read, or holds something else."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(kind, path, error, remedy) from error


def read_evidence(folder: Path, study: Study) -> list[Evidence]:
    """The table files and cells of a study below a folder, together by scale and reading.

    Raises
    ------
    FieldError
        If one cannot be read.
    """
    groups: dict[tuple[str, tuple[str, ...]], Evidence] = {}
    for path in sorted(folder.rglob("table-*.json")):
        with reading("table", path):
            values = json.loads(path.read_bytes())
            if values["study"] != study.name:
                continue
            key = (str(values["scale"]), tuple(values["readings"]))
            table = str(values["table"])
            results = {(table, r.row, r.setting, r.figure): r for r in from_json(values["rows"])}
        known = groups.get(key, Evidence(study, *key))
        runs = known.runs or _runs(path.parent / "cells.json", study)
        groups[key] = replace(known, results={**known.results, **results}, runs=runs)
    return list(groups.values())


def _runs(path: Path, study: Study) -> tuple[RunSeries, ...]:
    """The runs of cells.json; none where there is no such file."""
    if not path.is_file():
        return ()
    scenarios = "|".join(map(re.escape, study.described.scenarios))
    name = re.compile(rf"({scenarios})-(\S+) (\S+) seed (\d+)")
    with reading("cells", path, "restore it, or export the runs again"):
        cells: list[dict[str, Any]] = json.loads(path.read_bytes())["cells"]
        runs = []
        for cell in cells:
            place = name.fullmatch(str(cell["run"]))
            if place is None:
                continue
            one = RunSeries(
                scenario=place[1],
                row=place[2],
                setting=place[3],
                seed=int(place[4]),
                folder=str(cell["folder"]),
                guarantee=str(cell["guarantee"]),
                rounds=cell["rounds"],
            )
            runs.append(one)
    return tuple(runs)


def _of_draw(values: Mapping[int, float], draw: int) -> float | None:
    if len(values) == 1:
        return next(iter(values.values()))
    return values.get(draw)


def _signed(value: float) -> str:
    if abs(value) < 10:
        return f"{value:+.3f}"
    return f"{value:+.3g}"
