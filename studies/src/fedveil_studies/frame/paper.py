"""A paper as its files tell it: what is compared, and what was printed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from importlib.resources.abc import Traversable
from typing import Any

from fedveil.registry import Registry
from fedveil_studies.frame.described import Described
from fedveil_studies.frame.result import Place, Published


class Paper:
    """What study.toml and published.csv say, and how claims are judged.

    Parameters
    ----------
    name : str
        For the command line.
    described : Described
        What study.toml says.
    published : mapping
        The paper's figures.
    judges : mapping
        ``(claim, evidence) -> rows`` by name.
    """

    def __init__(
        self,
        name: str,
        described: Described,
        published: Mapping[Place, Published],
        judges: Mapping[str, Callable[..., Iterable[Any]]],
    ) -> None:
        self.name, self.described, self.published = name, described, published
        self.judges = Registry(f"{name}, judge", judges)

    def label(self, row: str) -> str:
        """A row's name in the tables."""
        return self.described.rows[row].label

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the paper's own rows."""
        return tuple(row.label for row in self.described.rows.values() if not row.extra)

    @property
    def settings(self) -> Mapping[str, str]:
        """Labels of the settings by name."""
        return {name: setting.label for name, setting in self.described.settings.items()}


def read_published(file: Traversable) -> dict[Place, Published]:
    """The printed figures, by (table, row, setting, figure)."""
    found = {}
    for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        place = (line["table"], line["row"], line["setting"], line["figure"])
        numbers = {k: float(line[k]) for k in ("deviation", "low", "high") if line.get(k)}
        found[place] = Published(float(line["value"]), **numbers)
    return found
