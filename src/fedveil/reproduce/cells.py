"""The cells of a study: one ordinary run folder each, found again by the fingerprint of its configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fedveil.engines import Federation
from fedveil.errors import FedVeilError, FieldError
from fedveil.experiments import Config, Progress, Summary, load, parse, run
from fedveil.experiments.compare import matching_multiplier
from fedveil.experiments.folders import CELLS, CONFIG, STUDY, kind_of, refuse_others
from fedveil.experiments.ledgers import make_folder
from fedveil.experiments.lock import FolderLock
from fedveil.experiments.settings import slug
from fedveil.experiments.setup import resolve_device
from fedveil.experiments.summary import METRICS

KEY = 12  # characters of a key
NOISE = ("name", "privacy", "publish", "source")  # parts of a configuration that only later rounds notice
ELSEWHERE = {"workers": 1, "device": "cpu"}


class Watcher(Protocol):
    """Measures more after each round of a run; `name` says what, completely, and is part of the cell's key."""

    @property
    def name(self) -> str:
        """What is measured."""

    @property
    def figures(self) -> Collection[str]:
        """Names of what it returns."""

    def __call__(self, federation: Federation) -> Mapping[str, float]:
        """The figures after the last finished round."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run.

    Parameters
    ----------
    label : str
        For people; begins the folder's name.
    config : Config
        Resolved.
    watcher : Watcher, optional
        Measures more after each round.
    sigma_of : Cell, optional
        Another cell of central noise: this one's noise multiplier is set so that its sigma is the average sigma of
        that run.
    """

    label: str
    config: Config
    watcher: Watcher | None = None
    sigma_of: Cell | None = None

    @cached_property
    def key(self) -> str:
        """The fingerprint of the configuration; where it is run does not matter."""
        parts = [self.config.model_copy(update=ELSEWHERE).fingerprint()]
        if self.watcher is not None:
            parts.append(self.watcher.name)
        if self.sigma_of is not None:
            parts.append(f"sigma of {self.sigma_of.key}")
        return parts[0][:KEY] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()[:KEY]

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{slug(self.label)}-{self.key}"

    @property
    def single(self) -> bool:
        """Whether it is one round, whose training other cells may share."""
        return self.config.rounds == 1

    @cached_property
    def training(self) -> str:
        """What decides the training of its first round, so that it is done once for all that agree in it."""
        values = self.config.to_dict()
        return json.dumps({k: v for k, v in values.items() if k not in NOISE}, sort_keys=True)

    @property
    def work(self) -> float:
        """How much there is to train, in examples times epochs; only ratios mean anything."""
        data = self.config.data
        examples = sum(map(sum, data.counts)) if data.counts else 1000
        return float(examples * (1 - data.holdout) * self.config.local.epochs * self.config.rounds)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished cell: its summary, and the folder that holds its model."""

    cell: Cell
    summary: Summary
    folder: Path


class Runs:
    """The runs below a folder: each cell is run once, and an interrupted one goes on where it stopped.

    Parameters
    ----------
    folder : Path
        Made when the first cell is run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """The folder of a cell.

        Keys follow from whole configurations, so they change when FedVeil learns an option, whatever its default. A
        finished run that an earlier version left under another key is found by its configuration, read by this one; for
        a cell that matches another's sigma that has the multiplier that follows from that one's run.
        """
        exact = self.folder / CELLS / cell.folder
        if (exact / CONFIG).is_file():
            return exact
        others = sorted((self.folder / CELLS).glob(f"{slug(cell.label)}-{'?' * KEY}"))
        if not others:
            return exact
        earlier = None if cell.sigma_of is None else self.finished(cell.sigma_of)
        if cell.sigma_of is not None and earlier is None:
            return exact
        wanted = _matched(cell, earlier)
        return next((other for other in others if _holds(other, wanted, cell.watcher)), exact)

    def state(self, cell: Cell) -> str:
        """``"done"``, ``"begun"`` or ``"to run"``."""
        path = self.path(cell)
        if (path / "summary.json").is_file():
            return "done"
        return "begun" if (path / CONFIG).is_file() else "to run"

    def rounds_done(self, cell: Cell) -> int:
        """The rounds of a cell that are finished."""
        metrics = self.path(cell) / METRICS
        return len(metrics.read_bytes().splitlines()) if metrics.is_file() else 0

    def share_left(self, cell: Cell) -> float:
        """The share of a cell's rounds that is still to be run."""
        return max(0.0, 1 - self.rounds_done(cell) / cell.config.rounds)

    def finished(self, cell: Cell) -> Outcome | None:
        """What a finished cell holds, or None.

        Raises
        ------
        FieldError
            If its files are damaged.
        """
        path = self.path(cell)
        return Outcome(cell, Summary.read(path), path) if self.state(cell) == "done" else None

    def run(self, cell: Cell, progress: Progress) -> Outcome:
        """Run a cell, or what is left of it, unless it is finished.

        Raises
        ------
        NoReplyError
            If a round has no usable reply.
        """
        done = self.finished(cell)
        if done is not None:
            return done
        path, config = self.path(cell), self._resolved(cell, progress)
        begun = self.state(cell) == "begun"
        if begun:
            config = config.model_copy(update={"device": _begun_on(path, config.device, progress)})
        make_folder(path)
        memo = self.folder / "begun"
        summary = run(config, path, resume=begun, progress=progress, setting=cell.label, memo=memo, watch=cell.watcher)
        return Outcome(cell, summary, path)

    def _resolved(self, cell: Cell, progress: Progress) -> Config:
        """The configuration to run: of a cell that matches another's sigma once that one is finished."""
        return _matched(cell, None if cell.sigma_of is None else self.run(cell.sigma_of, progress))

    def refuse_others(self) -> None:
        """Refuse a folder that holds something else.

        Raises
        ------
        FieldError
            If it holds something else, or the tables of a study that has lost its runs: they would be replaced.
        """
        if any(self.folder.glob("table-*.json")) and not (self.folder / CELLS).is_dir():
            lost = f"holds tables of a study, and not its runs ({CELLS}/); restore them, or give another --out"
            raise FieldError("--out", str(self.folder), lost)
        refuse_others(self.folder, STUDY)

    @contextmanager
    def alone(self, *, shared: bool = False) -> Iterator[None]:
        """Keep a second process that runs cells out of the folder.

        Parameters
        ----------
        shared : bool
            Whether only finished runs are read: that disturbs nobody, so nobody is kept out.

        Raises
        ------
        FieldError
            If there is one already, the folder holds something else than a study, or there is none to read.
        """
        self.refuse_others()
        if shared:
            if kind_of(self.folder) != STUDY:
                raise FieldError("--out", str(self.folder), "holds no runs yet: leave --no-run out")
            yield
            return
        make_folder(self.folder / CELLS)
        lock = FolderLock(self.folder)
        lock.take()
        try:
            yield
        finally:
            lock.release()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Every cell once, in order, behind the one whose sigma it matches."""
    found: dict[str, Cell] = {}
    for cell in cells:
        for one in (cell.sigma_of, cell):
            if one is not None:
                found.setdefault(one.key, one)
    return list(found.values())


def _begun_on(path: Path, wanted: str, progress: Progress) -> str:
    """The device on which a run was begun: another one would give other bits."""
    device = load(path).device
    if device != wanted:
        try:
            resolve_device(device)
        except FieldError as error:
            lacks = f"{path} was begun on {device!r}, which this machine lacks; delete it to begin anew"
            raise FieldError("--device", wanted, lacks) from error
        progress.say(f"{path.name} was begun on {device!r} and goes on there, not on {wanted!r}")
    return device


def _matched(cell: Cell, earlier: Outcome | None) -> Config:
    """The configuration of a cell, with the noise multiplier that gives it the sigma of an earlier run."""
    if earlier is None:
        return cell.config
    values = cell.config.to_dict()
    values["privacy"]["noise_multiplier"] = matching_multiplier(cell.config, earlier.summary)
    return parse(values)


def _holds(folder: Path, config: Config, watcher: Watcher | None) -> bool:
    """Whether a folder holds a finished run of a configuration, measured as well."""
    try:
        stored, summary = load(folder), Summary.read(folder)
    except FedVeilError:  # damaged, or of a version that this one cannot read: it is run again
        return False
    watched = set(summary.rows[0].get("watched", ()))
    return _plain(stored) == _plain(config) and watched.issuperset(watcher.figures if watcher else ())


def _plain(config: Config) -> dict[str, Any]:
    return config.model_copy(update=ELSEWHERE).to_dict()
