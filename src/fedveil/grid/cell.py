"""A cell: one run, known by a key that says everything that decides its figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from inspect import getattr_static
from typing import Any

from fedveil.config import Config
from fedveil.config.variants import slug
from fedveil.data import MissingDataError
from fedveil.engines.probe import Probe
from fedveil.methods import METHODS
from fedveil.runs.deal import data_digest
from fedveil.runs.summary import numerics_of

ELSEWHERE = ("name", "device")  # what a run is called, and where it is done, changes none of its figures
ABSENT = "?" * 6


@dataclass(frozen=True, eq=False)
class Cell:
    """One run.

    Parameters
    ----------
    label : str
        For people; begins the folder's name.
    config : Config
        Resolved.
    probes : tuple of Probe
        Measure more after each round.
    sigma_of : Cell or tuple of Cell, optional
        Other cells of central noise: this one's noise multiplier is set so that its sigma is the average of theirs.
    """

    label: str
    config: Config
    probes: tuple[Probe, ...] = ()
    sigma_of: Cell | tuple[Cell, ...] | None = None

    @property
    def sources(self) -> tuple[Cell, ...]:
        """The cells whose sigma it takes."""
        return (self.sigma_of,) if isinstance(self.sigma_of, Cell) else self.sigma_of or ()

    @cached_property
    def key(self) -> str:
        """SHA-256, shortened, of what decides the figures, and of the data.

        Into it go the configuration without what is at its default, the probes, the cells whose sigma it takes and the
        `NUMERICS` of its paths. An option that FedVeil learns later changes no key; a default or an arithmetic that
        changes raises the number of its path, and the keys of the cells that take it. The last six characters are the
        data's own; ``??????`` where these are not here.
        """
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
        """The numbers of its paths."""
        needs = getattr_static(METHODS[self.config.privacy.method].client, "needs", None)
        record = isinstance(needs, frozenset) and "noisy_steps" in needs  # where parameters decide, it is a property
        return numerics_of(record, self.config.trainer)

    @cached_property
    def kind(self) -> str:
        """Equal for cells that differ in seeds and in who takes part alone, so that they can be played together."""
        values = {k: v for k, v in self.config.differing().items() if k not in (*ELSEWHERE, "seed", "source")}
        values["world"] = {k: v for k, v in values.get("world", {}).items() if k != "inside"}
        names = [probe.name for probe in self.probes]
        return json.dumps([values, names, [cell.key for cell in self.sources]], sort_keys=True)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{slug(self.label)}-{self.key}"


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Every cell once, in order, behind those whose sigma it takes."""
    found: dict[str, Cell] = {}
    for cell in cells:
        for one in (*cell.sources, cell):
            found.setdefault(one.key, one)
    return list(found.values())
