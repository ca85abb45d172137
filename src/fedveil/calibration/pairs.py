"""Squared distances between the rows of [n, d]: a centred Gram matrix in float32, column block by column block.

A raw Gram matrix cancels for close models, so every block is centred first. Its product is in float32, 128 columns at
a time, and products are added up in float64: next to the largest distance the error is about 1e-7, and below 3e-6 even
where all columns hold the same number and a processor adds them one by one. (A float32 product adds up to as many
numbers in one chain as it has columns, how many depends on the processor; 128 are a chain on all of them.) Scratch is
one block of columns and the matrix itself, never a second [n, d].
"""

from collections.abc import Iterator

import numpy as np
import scipy
import torch
from torch import Tensor

DIRECT = 8  # up to this many rows, pairs are subtracted: faster than a product
_ELEMENTS = 1 << 18  # of a column block, which then stays in the cache
_COLUMNS = (1 << 11, 1 << 15)  # the least and the most columns of a block, whatever the number of rows
_TILE = 128  # rows of a product at a time: nothing is computed below the diagonal's tiles
_DEPTH = 1 << 7  # columns of a float32 product: like numbers are all rounded alike, and their longer sums drift off
_PLAIN = (1e-24, 1e24)  # squared lengths whose terms neither vanish nor overflow in float32

Stacks = tuple[Tensor, ...]


def squared_distances(*stacks: Tensor, close: float = 0.25) -> Tensor:
    """Squared Euclidean distances between all rows, each of them accurate.

    Parameters
    ----------
    *stacks : Tensor
        [n_1, d], [n_2, d], ...: their rows, one after the other, are the n rows.
    close : float
        A pair whose square is less than this share of what the lengths of both make of it (it would be all of it, were
        they at right angles) has lost digits, and is done again. The relative error is about 1e-7 / close; 1e-6 / close
        where thousands of columns hold the same number.

    Returns
    -------
    Tensor
        [n, n] float64, symmetric, with zeros on the diagonal.

    Notes
    -----
    Rows that are close to each other and far from the mean (beside one huge outlier, or in clusters) lose digits to
    centring. They are found, and done again among themselves, around a mean of their own.
    """
    n, d = sum(map(len, stacks)), stacks[0].shape[1]
    return _accurate(stacks, [slice(0, d)], torch.arange(n), close)


def _accurate(stacks: Stacks, columns: list[slice], members: Tensor, close: float) -> Tensor:
    """Distances among some of the rows, [m, m]."""
    upper, lengths = strip(stacks, columns, members, len(members))
    squared = _mirrored(upper)
    if len(members) <= DIRECT:
        return squared
    lost = (squared < close * (lengths[:, None] + lengths)).fill_diagonal_(False)
    if not lost.any():
        return squared
    count, labels = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_array(lost.numpy()), directed=False)
    if count == 1:  # nothing to set apart: as in few dimensions, where float64 is cheap
        return _mirrored(strip(stacks, columns, members, len(members), torch.float64)[0])
    for label in np.flatnonzero(np.bincount(labels) > 1):
        near = torch.from_numpy(np.flatnonzero(labels == label))
        squared[near[:, None], near] = _accurate(stacks, columns, members[near], close)
    return squared


def _mirrored(upper: Tensor) -> Tensor:
    upper = upper.triu_(1)
    return upper + upper.T


def strip(
    stacks: Stacks, columns: list[slice], members: Tensor, height: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Squared distances of the first few members to all of them, over some columns.

    Parameters
    ----------
    stacks : tuple of Tensor
        [n_1, d], [n_2, d], ...
    columns : list of slice
        Coordinates that count.
    members : Tensor
        [m] int64, increasing: which rows.
    height : int
        The first h of them.
    dtype : torch.dtype
        Of the products; up to `DIRECT` members, the least type of the differences.

    Returns
    -------
    squared : Tensor
        [h, m] float64, accurate in proportion to the largest; only what is above the diagonal is filled for sure.
    lengths : Tensor
        [m] float64, squared lengths of the centred rows (zeros for up to `DIRECT` members).
    """
    m = len(members)
    squared = torch.zeros(height, m, dtype=torch.float64)
    lengths = torch.zeros(m, dtype=torch.float64)
    if m <= DIRECT:
        for block in column_blocks(stacks, columns, members):
            wide = block.to(torch.promote_types(block.dtype, dtype))
            for i in range(min(height, m - 1)):
                squared[i, i + 1 :] += (wide[i + 1 :] - wide[i]).square_().sum(1)
        found = squared[torch.ones_like(squared, dtype=torch.bool).triu_(1)]
        if dtype == torch.float32 and not ((found > _PLAIN[0]) & (found < _PLAIN[1])).all():
            return strip(stacks, columns, members, height, torch.float64)
        return squared, lengths
    for block in column_blocks(stacks, columns, members):
        part, squares, unit = centred(block, dtype)
        lengths.add_(squares, alpha=unit**2)
        for i in range(0, height, _TILE):
            tile = squared[i : i + _TILE, i:]
            tile.add_(_product(part[i : i + len(tile)], part[i:]), alpha=-2 * unit**2)
    for i in range(0, height, _TILE):
        tile = squared[i : i + _TILE, i:]
        tile.add_(lengths[i:]).add_(lengths[i : i + len(tile), None]).clamp_(min=0.0)
    squared.diagonal().zero_()
    return squared, lengths


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right.T of [h, c] and [m, c], added up in float64."""
    deep = left.shape[1] // _DEPTH
    whole = deep * _DEPTH
    a, b = (part[:, :whole].reshape(len(part), deep, _DEPTH).transpose(0, 1) for part in (left, right))
    return torch.bmm(a, b.mT).sum(0, dtype=torch.float64) + left[:, whole:] @ right[:, whole:].T


def column_blocks(stacks: Stacks, columns: list[slice], members: Tensor) -> Iterator[Tensor]:
    """Blocks [m, c] of some rows, over some columns, from left to right."""
    width = min(max(_ELEMENTS // len(members), _COLUMNS[0]), _COLUMNS[1])
    picked, first = [], 0
    for stack in stacks:
        rows = members[(members >= first) & (members < first + len(stack))] - first
        if len(rows):
            low, high = int(rows[0]), int(rows[-1]) + 1
            picked.append((stack, slice(low, high) if high - low == len(rows) else rows))
        first += len(stack)
    for part in columns:
        for start in range(part.start, part.stop, width):
            blocks = [stack[:, start : min(start + width, part.stop)][rows] for stack, rows in picked]
            yield blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def centred(block: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, float]:
    """Deviations [m, c] from the mean row, their squared lengths [m], and the unit that both are in."""
    part = (block - block.mean(0)).to(dtype)  # any row would do as well as the mean: its own rounding cancels
    squares = part.square().sum(1)
    if _PLAIN[0] < float(squares.max()) < _PLAIN[1]:
        return part, squares, 1.0
    wide = block.to(torch.float64)
    wide = wide - wide.mean(0)
    unit = float(wide.abs().max()) or 1.0
    part = wide.div_(unit).to(dtype)
    return part, part.square().sum(1), unit
