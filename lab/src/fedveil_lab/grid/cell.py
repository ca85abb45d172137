"""Cells: single runs, each with a key made from everything that determines its figures; and their outcomes."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import getattr_static
from pathlib import Path
from statistics import fmean, median
from typing import Any, cast
from warnings import catch_warnings, simplefilter

from fedveil.data import MissingDataError
from fedveil.engines import Federation, Probe, RoundRecord, RunWarning
from fedveil.errors import FieldError
from fedveil.evidence import REPRODUCIBLE, Row, core_of, numerics_of, row_of
from fedveil.methods import METHODS, GlobalDP, Publishing
from fedveil_lab.config import Config, parse
from fedveil_lab.config.sections import Budget, Privacy
from fedveil_lab.config.variants import slug
from fedveil_lab.runs.deal import data_digest
from fedveil_lab.runs.promised import guarantees_of
from fedveil_lab.runs.summary import Summary

ELSEWHERE = (
    "name",
    "device",
)  # what a run is called, and where it is done, changes none of its figures
ABSENT = "?" * 6


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a study: its configuration, probes and key.

    Parameters
    ----------
    label : str
        Readable name; the folder's name begins with it.
    config : Config
        Resolved configuration.
    probes : tuple of Probe
        Further measurements after each round.
    sigma_of : Cell or tuple of Cell, optional
        Other cells of central noise, whose average sigma sets this cell's noise multiplier.
    make : callable, optional
        Function that makes a federation which no configuration describes. The configuration then gives only rounds,
        seed and delta (see `fedveil_lab.grid.cell.stated`). It may also run something else and return a summary. Such a
        run has no folder, and equals no other.
    """

    label: str
    config: Config
    probes: tuple[Probe, ...] = ()
    sigma_of: "Cell | tuple[Cell, ...] | None" = None
    make: Callable[[], Federation | Summary] | None = None

    @property
    def sources(self) -> tuple["Cell", ...]:
        """Cells whose average sigma this cell uses."""
        if isinstance(self.sigma_of, Cell):
            return (self.sigma_of,)
        return self.sigma_of or ()

    @cached_property
    def key(self) -> str:
        """Shortened SHA-256 of everything that determines the figures, and of the data.

        It covers the configuration's keys that differ from their defaults, the probes, the cells whose sigma is used,
        and the `NUMERICS` of its code paths. A new option of a later version does not change it. A changed default or
        arithmetic raises the number of its path, and so changes the keys of cells on this path. The last six characters
        are a digest of the data, or ``??????`` if the data are not on this machine.
        """
        if self.make is not None:
            return f"made-{id(self):x}"  # nobody can say what decides the figures of a function
        values = {k: v for k, v in self.config.differing().items() if k not in ELSEWHERE}
        parts: dict[str, Any] = {"config": values, "numerics": self.numerics}
        parts["probes"] = sorted(probe.name for probe in self.probes)
        parts["sigma of"] = [cell.key for cell in self.sources]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
        try:
            return f"{digest}-{data_digest(self.config.data)[: len(ABSENT)]}"
        except MissingDataError:
            return f"{digest}-{ABSENT}"

    @property
    def numerics(self) -> int | str:
        """Version numbers of the arithmetic on the cell's code paths."""
        needs = getattr_static(METHODS[self.config.privacy.method].client, "needs", None)
        record = (
            isinstance(needs, frozenset) and "noisy_steps" in needs
        )  # where parameters decide, it is a property
        options = self.config.privacy.options
        person = record and options.get("unit") in ("person", "person region")
        grid = options.get("sum") == "secure" or options.get("noise") == "discrete"
        return numerics_of(record, self.config.trainer, person=person, grid=grid)

    @cached_property
    def kind(self) -> str:
        """Digest that is equal for cells which differ only in seeds and participating clients, so that they can run together."""
        if self.make is not None:
            return self.key
        values = {k: v for k, v in self.config.common().items() if k not in ELSEWHERE}
        names = [probe.name for probe in self.probes]
        return json.dumps([values, names, [cell.key for cell in self.sources]], sort_keys=True)

    @property
    def folder(self) -> str:
        """Name of the cell's folder."""
        return f"{slug(self.label)}-{self.key}"


def require_data(cells: Iterable[Cell]) -> None:
    """Refuse all cells before any run if one needs data files that are not on this machine.

    Files of another version are refused sooner: a cell's key is made of its data.

    Raises
    ------
    MissingDataError
        If a file is missing; the message names the first one, and its source.
    """
    for cell in cells:
        if cell.make is None and cell.key.endswith(ABSENT):
            data_digest(cell.config.data)


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """List every cell once, each after the cells whose sigma it uses."""
    cells_by_key: dict[str, Cell] = {}
    for cell in cells:
        for one in (*cell.sources, cell):
            cells_by_key.setdefault(one.key, one)
    return list(cells_by_key.values())


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of a finished cell.

    Attributes
    ----------
    cell : Cell
        The cell that was run.
    summary : Summary
        Figures of the whole run.
    folder : Path or None
        Folder of its files; None for a run kept in memory.
    """

    cell: Cell
    summary: Summary
    folder: Path | None

    @property
    def folder_name(self) -> str:
        """Name of the cell's folder, also if it has none."""
        if self.folder is None:
            return self.cell.folder
        return self.folder.name

    @property
    def rows(self) -> Sequence[Row]:
        """Metrics, one row per round; figures of probes are under "figures"."""
        return self.summary.rows

    def series(self, name: str) -> list[float]:
        """Return a figure round by round, from a probe, the noise or the pooled metrics; [] if there is none."""
        for kind in ("figures", "noise", "metrics"):
            values = [float(row[kind][name]) for row in self.rows if name in row.get(kind, {})]
            if values:
                return values
        return []


@dataclass(frozen=True)
class Finished:
    """Outcomes of finished cells, and reasons of failed ones.

    Attributes
    ----------
    outcomes : dict of str to Outcome
        Outcomes by the cell's key.
    failed : dict of str to str
        Reasons why cells have no model, by the cell's key.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def matched(config: Config, earlier: Sequence[Summary]) -> Config:
    """Set global DP's noise multiplier so that its sigma is the average of earlier runs.

    Parameters
    ----------
    config : Config
        Configuration of global DP; its own noise multiplier is ignored.
    earlier : sequence of Summary
        Finished runs of the same federation.

    Raises
    ------
    FieldError
        If a run added no noise on the server, or its sigma depends on an adaptive clip.
    """
    sigmas = [summary.noise("sigma") for summary in earlier]
    known = [sigma for sigma in sigmas if sigma is not None]
    if len(known) < len(earlier) or not earlier:
        raise FieldError(
            "match_sigma_of", earlier[0].setting if earlier else "", "added no noise on the server"
        )
    if config.privacy.method != "global":
        raise FieldError(
            "privacy.method",
            config.privacy.method,
            "must be 'global' to take the sigma of another run",
        )
    server = cast(GlobalDP, config.privacy.build(config.aggregator).server)
    cohort = config.clients_per_round or int(earlier[0].values["clients"])
    values = config.to_dict()
    values["privacy"]["noise_multiplier"] = server.multiplier_for(fmean(known), cohort)
    return parse(values)


def stated(rounds: int, seed: int = 0, delta: float = 1e-5) -> Config:
    """Make a configuration for a run that a function makes; it has no data and no model, and reading them is an error."""
    privacy = Privacy.model_construct(budget=Budget(delta=delta))
    return Config.model_construct(name="made", rounds=rounds, seed=seed, privacy=privacy)


def play_made(cell: Cell, advance: Callable[[Row], None] = lambda row: None) -> Summary:
    """Run a cell whose federation a function makes, and summarise it like a configured run.

    Parameters
    ----------
    cell : Cell
        Cell with `make`; its probes see every round, after the federation's own.
    advance : callable
        Called after each round.

    Raises
    ------
    NoReplyError
        If a round has no usable reply.
    """
    with catch_warnings():
        simplefilter(
            "ignore", RunWarning
        )  # its lines are in the summary; a game leaves clients empty by itself
        return _play_made(cell, advance)


def _play_made(cell: Cell, advance: Callable[[Row], None]) -> Summary:
    assert cell.make is not None
    rows: list[Row] = []
    delta, federation = cell.config.privacy.budget.delta, cell.make()
    if isinstance(federation, Summary):
        advance(dict(federation.values))
        return federation
    federation.probes += cell.probes

    def on_round(record: RoundRecord) -> None:
        rows.append(row_of(record, federation.method, federation.layout, federation.client_sides))
        advance(rows[-1])

    history = federation.run(cell.config.rounds, on_round)
    guarantee, parties = guarantees_of(federation.method, federation.books(), delta)
    values = {
        **core_of(cell.label, federation.method, federation.layout, rows, guarantee, delta),
        "task": "regression" if federation.task == "values" else "classification",
        "guarantees": parties,
        "rounds_planned": cell.config.rounds,
        "stopped": history.stopped,
        "clients": len(federation.clients),
        "examples": int(median(c.examples for c in federation.clients)),
        "published_metrics": {"text": Publishing().describe()},
        "derived_from": "",
        "data": {
            "name": "your clients",
            "note": "",
            "warnings": list(federation.warnings.said.values()),
        },
        "seed": cell.config.seed,
        "source": "secure" if federation.source.deployable else REPRODUCIBLE,
    }
    return Summary(values, rows)
