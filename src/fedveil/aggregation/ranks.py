"""Medians and trimmed means: the mean of the middle values of each coordinate, by blocks of columns.

Few rows go through a sorting network (Batcher's odd-even merge sort, 1968). Its comparators compute minima and maxima
of whole rows; those without influence on the result are left out. Many rows are transposed and then sorted, so that the
values of a coordinate lie side by side in memory.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

NETWORK = 32  # up to this many rows a network is faster than a sort
_ELEMENTS = 1 << 17  # of a column block, which then stays in the cache
_COLUMNS = (1 << 10, 1 << 14)  # the least and the most columns of a block

Array = np.ndarray[Any, np.dtype[Any]]


class Comparator(NamedTuple):
    """Comparator of a sorting network for two rows; `lower` and `upper` say whether minimum and maximum are needed."""

    first: int
    second: int
    lower: bool
    upper: bool


def middle_mean(updates: Tensor, cut: int) -> Tensor:
    """Compute the mean of each coordinate without its `cut` smallest and `cut` largest values.

    Parameters
    ----------
    updates : Tensor
        [n, d], finite; not changed.
    cut : int
        At least 0 and less than n / 2.

    Returns
    -------
    Tensor
        [d], float64, because noise is added before the result is rounded to the updates' type.
    """
    n, d = updates.shape
    rows, result = updates.detach().numpy(), np.empty(d)
    width = min(max(_ELEMENTS // n, _COLUMNS[0]), _COLUMNS[1])
    merge = _Network(n, cut, width, rows.dtype) if n <= NETWORK else None
    for start in range(0, d, width):
        block = rows[:, start : start + width]
        if merge is not None:
            kept = merge(block)
        else:
            ordered = np.array(block.T, order="C")
            ordered.sort(axis=1)
            kept = list(ordered[:, cut : n - cut].T)
        total = kept[0].astype(np.float64)
        for row in kept[1:]:
            total += row
        np.divide(total, len(kept), out=result[start : start + width])
    return torch.from_numpy(result)


@lru_cache(maxsize=64)
def network(n: int, cut: int) -> tuple[Comparator, ...]:
    """Make a sorting network that moves the values of ranks cut, ..., n - cut - 1 into these rows, in any order.

    Parameters
    ----------
    n, cut : int
        Number of rows; number of lowest and of highest ranks that are not needed.

    Returns
    -------
    tuple of Comparator
        Comparators in the order in which they are applied.
    """
    kept = set(range(cut, n - cut))
    needed, touched = set(kept), set[int]()
    result = []
    for first, second in reversed(_batcher(n)):
        lower, upper = first in needed, second in needed
        exchange = {first, second} <= kept and not touched & {
            first,
            second,
        }  # the sum does not see it
        if exchange or not (lower or upper):
            continue
        result.append(Comparator(first, second, lower, upper))
        needed |= {first, second}
        touched |= {first, second}
    return tuple(reversed(result))


def _batcher(n: int) -> list[tuple[int, int]]:
    """Return the pairs of the odd-even merge sort of n rows: those of the next power of two, without rows from n on."""
    power = 1 << (n - 1).bit_length()
    pairs = []
    p = 1
    while p < power:  # sorted runs of p are merged
        k = p
        while k >= 1:
            for j in range(k % p, power - k, 2 * k):
                for i in range(j, min(j + k, power - k)):
                    if i // (2 * p) == (i + k) // (2 * p) and i + k < n:
                        pairs.append((i, i + k))
            k //= 2
        p *= 2
    return pairs


class _Network:
    """Sorting network for blocks of at most `width` columns, with n + 1 rows of scratch memory; inputs are not changed."""

    def __init__(self, n: int, cut: int, width: int, dtype: np.dtype[Any]) -> None:
        self._cut, self._comparators = cut, network(n, cut)
        self._scratch = np.empty((n + 1, width), dtype=dtype)

    def __call__(self, block: Array) -> list[Array]:
        """Return the rows with the needed ranks; the next call overwrites them."""
        n, width = block.shape
        free = list(self._scratch[:, :width])
        rows, own = list(block), [False] * n
        for first, second, lower, upper in self._comparators:
            a, b = rows[first], rows[second]
            spare = []
            if lower:
                rows[first] = np.minimum(a, b, out=free.pop())
                if own[first]:
                    spare.append(a)
                own[first] = True
            if upper:
                rows[second] = np.maximum(a, b, out=b if own[second] else free.pop())
                own[second] = True
            elif own[second]:
                spare.append(b)
            free += spare
        return rows[self._cut : n - self._cut]
