"""The cells of a study: one ordinary run folder each, found again by the fingerprint of its configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from fedveil.engines import Federation
from fedveil.experiments import Config, Progress, Summary, load, run
from fedveil.experiments.ledgers import make_folder
from fedveil.experiments.lock import FolderLock
from fedveil.experiments.settings import slug


class Watcher(Protocol):
    """Measures more after each round of a run; `name` says what, completely, and is part of the cell's key."""

    @property
    def name(self) -> str:
        """What is measured."""

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
    """

    label: str
    config: Config
    watcher: Watcher | None = None

    @cached_property
    def key(self) -> str:
        """The fingerprint of the configuration; the number of worker threads does not matter."""
        print_ = self.config.model_copy(update={"workers": 1}).fingerprint()
        if self.watcher is None:
            return print_[:12]
        return hashlib.sha256(f"{print_} {self.watcher.name}".encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{slug(self.label)}-{self.key}"

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
        """The folder of a cell."""
        return self.folder / "cells" / cell.folder

    def state(self, cell: Cell) -> str:
        """``"done"``, ``"begun"`` or ``"to run"``."""
        path = self.path(cell)
        if (path / "summary.json").is_file():
            return "done"
        return "begun" if (path / "config.toml").is_file() else "to run"

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
        path, config = self.path(cell), cell.config
        begun = self.state(cell) == "begun"
        if begun:  # with the worker threads it was begun with: the bits are the same
            config = config.model_copy(update={"workers": load(path).workers})
        make_folder(path)
        memo = self.folder / "begun"
        summary = run(config, path, resume=begun, progress=progress, setting=cell.label, memo=memo, watch=cell.watcher)
        return Outcome(cell, summary, path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second process out of the folder.

        Raises
        ------
        FieldError
            If there is one already.
        """
        make_folder(self.folder)
        lock = FolderLock(self.folder)
        lock.take()
        try:
            yield
        finally:
            lock.release()


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Every cell once, in order."""
    return list({cell.key: cell for cell in cells}.values())
