"""Choices of a user for a study, and how keys are set in the configurations of its runs."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedveil.errors import FieldError, require_count
from fedveil_lab.config import Config, load

MOST_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Choices of a user for a study: scale, seeds, rows, readings and machine.

    Parameters
    ----------
    scale : str
        Scale of the study. Default: its first.
    seeds : int
        Number of repetitions, with seeds `seed`, `seed` + 1, ...; data, first model, training and noise change.
    seed : int
        First seed.
    more_seeds : tuple of int
        Further seeds.
    draws : int
        Number of noise draws per training, for tables of a single round.
    rows : tuple of str
        Rows of the tables; empty: all except extra ones.
    readings : tuple of str
        Other readings of the paper, in any order.
    workers : int
        Number of clients that train in parallel.
    device : str
        Device on which clients train.
    """

    scale: str = ""
    seeds: int = 1
    seed: int = 0
    more_seeds: tuple[int, ...] = ()
    draws: int = 10
    rows: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()
    workers: int = 2
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse choices that no study has."""
        require_count("--seeds", self.seeds)
        if require_count("--draws", self.draws) > MOST_DRAWS:
            raise FieldError(
                "--draws", self.draws, f"must be at most {MOST_DRAWS}: each is a run of its own"
            )
        require_count("--workers", self.workers)


def put(values: dict[str, Any], changes: Mapping[str, Any], present: bool = False) -> None:
    """Set dotted keys in place; with `present`, only keys that exist."""
    for key, value in changes.items():
        *tables, last = key.split(".")
        inner: Any = values
        for name in tables:
            if not isinstance(inner.get(name), dict):
                if present:
                    break
                inner[name] = {}
            inner = inner[name]
        else:
            if not present or last in inner:
                inner[last] = deepcopy(value)


@cache
def loaded(preset: str) -> Config:
    """Load the configuration with which scenarios begin."""
    return load(preset)
