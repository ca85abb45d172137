"""Pool of examples that no client holds; each is given out at most once."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data import DataSet, own_scale
from fedveil.learning import ClientData

Proportions = NDArray[np.float64]


class Pool:
    """Pool of examples that no client holds; each is given out at most once.

    Parameters
    ----------
    x, y : Tensor
        Inputs [N, ...] and targets [N, ...].
    dataset : DataSet
        Data set of the examples.
    """

    def __init__(self, x: Tensor, y: Tensor, dataset: DataSet) -> None:
        self._x, self._y, self._columns = x, y, dataset.local_columns
        self._strata = strata_of(y, dataset)
        self._left = np.ones(len(self._strata), dtype=bool)

    @property
    def left(self) -> int:
        """Number of examples that are not given out yet."""
        return int(self._left.sum())

    def short_of(self, size: int, share: Proportions) -> tuple[int, ...]:
        """List the classes with too few examples for `size` examples in the shares `share`."""
        free = np.bincount(self._strata[self._left], minlength=len(share))
        return tuple(c for c, wanted in enumerate(apportion(size, share)) if wanted > free[c])

    def take(self, size: int, share: Proportions, rng: np.random.Generator) -> Tensor:
        """Take rows for `size` examples, in the class shares `share` as far as possible."""
        chosen: list[int] = []
        for c, wanted in enumerate(apportion(size, share)):
            free = rng.permutation(np.flatnonzero(self._left & (self._strata == c)))
            chosen += free[:wanted].tolist()
        self._left[chosen] = False
        short = rng.permutation(np.flatnonzero(self._left))[: size - len(chosen)].tolist()
        self._left[short] = False
        return torch.from_numpy(rng.permutation(np.array(chosen + short, dtype=np.int64)))

    def client(self, rows: Tensor, name: str, held_out: int = 0) -> ClientData:
        """Make one client's data from rows, the last `held_out` of them held out."""
        train, test = rows[: len(rows) - held_out], rows[len(rows) - held_out :]
        own = self._x[train]
        x = own_scale(own, self._columns, own)
        if not held_out:
            return ClientData(x, self._y[train], name=name)
        return ClientData(
            x,
            self._y[train],
            own_scale(self._x[test], self._columns, own),
            self._y[test],
            name=name,
        )


def strata_of(y: Tensor, dataset: DataSet) -> NDArray[np.int64]:
    """Return classes [N], or a single stratum 0 for data without classes."""
    if dataset.task == "classification":
        return y.numpy().astype(np.int64)
    return np.zeros(len(y), dtype=np.int64)


def proportions_of(y: Tensor, dataset: DataSet) -> Proportions:
    """Return the share of each class."""
    strata = strata_of(y, dataset)
    counts = np.bincount(
        strata, minlength=dataset.classes if dataset.task == "classification" else 1
    )
    proportions: Proportions = counts / max(1, len(strata))
    return proportions


def apportion(size: int, share: Proportions) -> Sequence[int]:
    """Divide `size` examples in the shares `share`, by largest remainders."""
    exact = size * share
    quota = np.floor(exact).astype(np.int64)
    for c in np.argsort(-(exact - quota), kind="stable")[: size - int(quota.sum())]:
        quota[c] += 1
    return [int(q) for q in quota]
