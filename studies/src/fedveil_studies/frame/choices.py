"""What a user may choose of a study, and how keys are put into the configurations of its runs."""

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
    """What a user may choose.

    Parameters
    ----------
    scale : str
        Of the study; default: its first.
    seeds : int
        Repetitions: seeds `seed`, `seed` + 1, ...; data, first model, training and noise change.
    seed : int
        The first.
    more_seeds : tuple of int
        Others beside them.
    draws : int
        Noise draws on one training, where a table looks at a single round.
    rows : tuple of str
        Rows of the tables; empty: all but the extra ones.
    readings : tuple of str
        Other readings of the paper, in any order.
    workers : int
        Clients trained side by side.
    device : str
        Where to train.
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
        """Refuse what no study has."""
        require_count("--seeds", self.seeds)
        if require_count("--draws", self.draws) > MOST_DRAWS:
            raise FieldError(
                "--draws", self.draws, f"must be at most {MOST_DRAWS}: each is a run of its own"
            )
        require_count("--workers", self.workers)


def put(values: dict[str, Any], changes: Mapping[str, Any], present: bool = False) -> None:
    """Set dotted keys, in place; with `present`, only those that are there."""
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
    """What scenarios begin with."""
    return load(preset)
