"""A cell is one run; its key holds everything that decides its figures. An outcome is what a finished cell leaves."""

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
    """One run.

    Parameters
    ----------
    label : str
        Name for people; the folder's name begins with it.
    config : Config
        Resolved configuration.
    probes : tuple of Probe
        Further measurements after each round.
    sigma_of : Cell or tuple of Cell, optional
        Other cells of central noise, whose average sigma sets this cell's noise multiplier.
    make : callable, optional
        Makes a federation that no configuration describes; the configuration then gives only rounds, seed and delta
        (see `fedveil_lab.grid.cell.stated`). Or it plays something else, and returns a summary. Such a run has no
        folder, and is equal to no other.
    """

    label: str
    config: Config
    probes: tuple[Probe, ...] = ()
    sigma_of: "Cell | tuple[Cell, ...] | None" = None
    make: Callable[[], Federation | Summary] | None = None

    @property
    def sources(self) -> tuple["Cell", ...]:
        """The cells whose sigma this one takes."""
        if isinstance(self.sigma_of, Cell):
            return (self.sigma_of,)
        return self.sigma_of or ()

    @cached_property
    def key(self) -> str:
        """Shortened SHA-256 of everything that decides the figures, and of the data.

        It covers the configuration's keys that are not at their defaults, the probes, the cells whose sigma it takes,
        and the `NUMERICS` of its paths. A later version's new option changes no key. A changed default or arithmetic
        raises its path's number, and so changes the keys of cells on that path. The last six characters are the data's
        own; ``??????`` where these are not here.
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
        """The numbers of the cell's paths."""
        needs = getattr_static(METHODS[self.config.privacy.method].client, "needs", None)
        record = (
            isinstance(needs, frozenset) and "noisy_steps" in needs
        )  # where parameters decide, it is a property
        unit = self.config.privacy.options.get("unit")
        person = record and unit in ("person", "person region")
        return numerics_of(record, self.config.trainer, person=person)

    @cached_property
    def kind(self) -> str:
        """Digest shared by cells that differ only in seeds and in the clients that take part, and can be played together."""
        if self.make is not None:
            return self.key
        values = {k: v for k, v in self.config.common().items() if k not in ELSEWHERE}
        names = [probe.name for probe in self.probes]
        return json.dumps([values, names, [cell.key for cell in self.sources]], sort_keys=True)

    @property
    def folder(self) -> str:
        """The name of the cell's folder."""
        return f"{slug(self.label)}-{self.key}"


def require_data(cells: Iterable[Cell]) -> None:
    """Refuse all cells, before any runs, if one needs files that are not on this machine.

    Files of another version are refused sooner: a cell's key is made of its data.

    Raises
    ------
    MissingDataError
        If a file is missing; the text names the first one, and its source.
    """
    for cell in cells:
        if cell.make is None and cell.key.endswith(ABSENT):
            data_digest(cell.config.data)


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """List every cell once, in order, each after those whose sigma it takes."""
    cells_by_key: dict[str, Cell] = {}
    for cell in cells:
        for one in (*cell.sources, cell):
            cells_by_key.setdefault(one.key, one)
    return list(cells_by_key.values())


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished cell.

    Attributes
    ----------
    cell : Cell
        The cell that was run.
    summary : Summary
        Figures of the whole run.
    folder : Path or None
        Where its files lie; None for a run that was kept in memory alone.
    """

    cell: Cell
    summary: Summary
    folder: Path | None

    @property
    def folder_name(self) -> str:
        """Name of its folder, or of the one that it would have."""
        if self.folder is None:
            return self.cell.folder
        return self.folder.name

    @property
    def rows(self) -> Sequence[Row]:
        """Rows, one for each round; a probe's figures are under "figures"."""
        return self.summary.rows

    def series(self, name: str) -> list[float]:
        """Return a figure round by round: a probe's, else of the noise, else of the pooled metrics; [] if there is none."""
        for kind in ("figures", "noise", "metrics"):
            values = [float(row[kind][name]) for row in self.rows if name in row.get(kind, {})]
            if values:
                return values
        return []


@dataclass(frozen=True)
class Finished:
    """Results of the finished cells among some cells.

    Attributes
    ----------
    outcomes : dict of str to Outcome
        Outcomes, by key of the cell.
    failed : dict of str to str
        Reason why a cell has no model, by its key.
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
        If one of them added no noise on the server, or sigma follows a clipping norm that adapts.
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
    """Describe a run without a configuration; it has no data and no model, and asking for them is an error."""
    privacy = Privacy.model_construct(budget=Budget(delta=delta))
    return Config.model_construct(name="made", rounds=rounds, seed=seed, privacy=privacy)


def play_made(cell: Cell, advance: Callable[[Row], None] = lambda row: None) -> Summary:
    """Run a cell that a function makes, and summarise it like a configured run.

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
