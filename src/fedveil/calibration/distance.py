"""Scale of metric privacy's noise (metric-privacy paper, section 6, Algorithm 1), and distances between rows.

Squared distances between the rows of [n, d] come from a centred Gram matrix in float32, block by block of columns.

Without centring, a Gram matrix loses all digits for close models, so every block is centred first. Its products are in
float32, 128 columns at a time, and are summed in float64. The error is about 1e-7 of the largest distance. It stays
below 3e-6 even if all columns hold the same number and a processor adds them one by one. (A processor adds a float32
product in chains of some length up to its columns; 128 columns are one chain on all processors.) The scratch memory is
one block of columns and the matrix itself, never a second [n, d].
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
import torch
from torch import Tensor

from fedveil.checks import Parameters, Positive
from fedveil.clipping import norms
from fedveil.errors import FieldError, require_choice, require_count, require_non_negative
from fedveil.layout import Grouping, Layout
from fedveil.registry import Registry

Direction = Literal["less", "more"]
Groups = list[list[slice]]


def _layers(layout: Layout, grouping: Grouping) -> Groups:
    return list(layout.groups(grouping).values())


def _whole(layout: Layout, grouping: Grouping) -> Groups:
    return [[slice(0, layout.size)]]


COSINE = "cosine"
DISTANCES: Registry[Callable[[Layout, Grouping], Groups]] = Registry(
    "privacy.distance", {"layer_frobenius": _layers, "euclidean": _whole, COSINE: _whole}
)
"""Metrics by name, each as groups of coordinates: the metric is the mean of the Euclidean norms over the groups.

`COSINE` is half the square of this between updates of length 1.
"""

_HEIGHT = (
    1 << 10
)  # number of models whose pairs are in memory at a time; the matrix of all pairs never is
# pairs within this share of the largest distance are measured again in float64, the largest ones if there are more
_NEARLY_LARGEST, _MOST_AGAIN = 1 - 1e-5, 8


def max_pairwise_distance(
    models: Tensor,
    layout: Layout,
    grouping: Grouping = "array",
    metric: str = "layer_frobenius",
) -> float:
    """Compute the largest distance between two models of a round.

    Parameters
    ----------
    models : Tensor
        [n, d], models of the clients, or their updates (the common start cancels). A cosine needs updates.
    layout : Layout
        Layout of the models.
    grouping : {"array", "module"}
        ``"array"`` counts weight and bias as two layers, as the authors' code does.
    metric : str
        Name in `DISTANCES`. ``"layer_frobenius"``: the mean over layers of the Frobenius norm of the difference.
        ``"euclidean"``: the norm of the whole difference. ``"cosine"``: one less the cosine; an update of length 0 has
        distance .5 from all others.

    Returns
    -------
    float
        d_r with a relative error below 1e-6 (for a cosine, an absolute error); 0 for a single model or identical ones.

    Raises
    ------
    FieldError
        For an unknown metric, a wrong shape, NaN or infinity.

    Notes
    -----
    It takes n^2 d / 2 multiplications in float32, on centred blocks. The largest distances are then computed again in
    float64. So the result is the exact distance of two of the models, and never above the largest one.
    """
    layout.check(models, "models")
    if models.dim() != 2:
        raise FieldError("models", tuple(models.shape), "must be [n, d]")
    for row in models:  # one at a time: a mask of all of them would be as large as the models
        ends = torch.stack(torch.aminmax(row))
        if not torch.isfinite(ends).all():
            raise FieldError(
                "models", "NaN or infinity", "must be finite: drop damaged replies first"
            )
    groups = DISTANCES[require_choice("metric", metric, DISTANCES)](layout, grouping)
    if metric == COSINE:
        lengths = norms(models)
        models = models / torch.where(lengths > 0, lengths, 1.0)[:, None]
    largest = 0.0
    for pair in _farthest(models, groups):
        distance = _strip(models, groups, torch.tensor(pair), 1, torch.float64)[0, 1]
        largest = max(largest, float(distance))
    return largest**2 / 2 if metric == COSINE else largest


def _farthest(models: Tensor, groups: Groups) -> list[tuple[int, int]]:
    """Find the pairs of models with the largest distances in float32."""
    n = len(models)
    pairs: list[tuple[float, int, int]] = []
    for first in range(0, n - 1, _HEIGHT):
        members, height = torch.arange(first, n), min(_HEIGHT, n - first)
        distances = _strip(models, groups, members, height).triu_(1)
        longest, places = distances.flatten().topk(min(_MOST_AGAIN, distances.numel()))
        for distance, place in zip(longest.tolist(), places.tolist(), strict=True):
            i, j = divmod(place, n - first)
            if i < j:
                pairs.append((distance, first + i, first + j))
    pairs.sort(reverse=True)
    largest = pairs[0][0] if pairs else 0.0
    return [
        (i, j) for distance, i, j in pairs[:_MOST_AGAIN] if distance >= _NEARLY_LARGEST * largest
    ]


def _strip(
    models: Tensor,
    groups: Groups,
    members: Tensor,
    height: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute the metric between the first `height` members and all of them, [h, m]; see `strip`."""
    total = torch.zeros(height, len(members), dtype=torch.float64)
    for columns in groups:
        total += strip((models,), columns, members, height, dtype)[0].sqrt_()
    return total.div_(len(groups))


@dataclass(frozen=True)
class MetricCalibrator(Parameters):
    """Scale of metric privacy: sigma = z * C / (n * d). It is a heuristic, as sigma depends on private models.

    Parameters
    ----------
    noise_multiplier, clip : float
        z and C, positive.
    direction : {"less", "more"}
        ``"less"``: a larger distance gives less noise (the paper's formula and budget). ``"more"``: it gives more (the
        paper's text), sigma = z * C * d / n.
    """

    noise_multiplier: Positive
    clip: Positive
    direction: Direction = "less"

    def sigma(self, n: int, distance: float) -> float:
        """Return the deviation per coordinate of the noise on a mean of n updates; at distance 0 it is global DP's."""
        base = self.noise_multiplier * self.clip / require_count("n", n)
        d = require_non_negative("distance", distance)
        if d == 0:
            return base
        return base / d if self.direction == "less" else base * d


DIRECT = 8  # up to this many rows, pairs are subtracted: faster than a product
_ELEMENTS = 1 << 18  # size of a column block, which then stays in the cache
_COLUMNS = (1 << 11, 1 << 15)  # least and most columns of a block, whatever the number of rows
_TILE = 128  # rows of a product at a time: nothing is computed below the diagonal's tiles
_DEPTH = (
    1 << 7
)  # columns of a float32 product: equal numbers are rounded the same way, and longer sums would drift
_PLAIN = (1e-24, 1e24)  # squared lengths whose terms neither vanish nor overflow in float32

Stacks = tuple[Tensor, ...]


def squared_distances(*stacks: Tensor, close: float = 0.25) -> Tensor:
    """Compute the squared Euclidean distances between all rows, each with a small relative error.

    Parameters
    ----------
    *stacks : Tensor
        [n_1, d], [n_2, d], ...; all their rows in order are the n rows.
    close : float
        A pair is computed again if its squared distance is below this fraction of the sum of both squared lengths, as
        digits were lost. The relative error is about 1e-7 / close, or 1e-6 / close if thousands of columns hold the
        same number.

    Returns
    -------
    Tensor
        [n, n] float64, symmetric, with zeros on the diagonal.

    Notes
    -----
    Rows that are close to each other and far from the mean (beside one huge outlier, or in clusters) lose digits to
    centring. They are found, and computed again among themselves, around a mean of their own.
    """
    n, d = sum(map(len, stacks)), stacks[0].shape[1]
    return _accurate(stacks, [slice(0, d)], torch.arange(n), close)


def _accurate(
    stacks: Stacks,
    columns: list[slice],
    members: Tensor,
    close: float,
) -> Tensor:
    """Compute the squared distances among some of the rows, [m, m]."""
    upper, lengths = strip(stacks, columns, members, len(members))
    squared = _mirrored(upper)
    if len(members) <= DIRECT:
        return squared
    lost = (squared < close * (lengths[:, None] + lengths)).fill_diagonal_(False)
    if not lost.any():
        return squared
    graph = scipy.sparse.csr_array(lost.numpy())
    count, labels = scipy.sparse.csgraph.connected_components(graph, directed=False)
    if count == 1:  # nothing to set apart: as in few dimensions, where float64 is cheap
        return _mirrored(
            strip(
                stacks,
                columns,
                members,
                len(members),
                torch.float64,
            )[0]
        )
    for label in np.flatnonzero(np.bincount(labels) > 1):
        near = torch.from_numpy(np.flatnonzero(labels == label))
        squared[near[:, None], near] = _accurate(stacks, columns, members[near], close)
    return squared


def _mirrored(upper: Tensor) -> Tensor:
    upper = upper.triu_(1)
    return upper + upper.T


def strip(
    stacks: Stacks,
    columns: list[slice],
    members: Tensor,
    height: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Compute the squared distances of the first `height` members to all of them, over some columns.

    Parameters
    ----------
    stacks : tuple of Tensor
        [n_1, d], [n_2, d], ...
    columns : list of slice
        Columns over which distances are computed.
    members : Tensor
        [m] int64, increasing indices of rows.
    height : int
        h, number of members whose distances to all members are computed.
    dtype : torch.dtype
        Number type of the products. Up to `DIRECT` members differences are computed directly, in at least this type.

    Returns
    -------
    squared : Tensor
        [h, m] float64, accurate in proportion to the largest; only entries above the diagonal are guaranteed.
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
                differences = wide[i + 1 :] - wide[i]
                squared[i, i + 1 :] += differences.square_().sum(1)
        above = squared[torch.ones_like(squared, dtype=torch.bool).triu_(1)]
        plain = (above > _PLAIN[0]) & (above < _PLAIN[1])
        if dtype == torch.float32 and not plain.all():
            return strip(stacks, columns, members, height, torch.float64)
        return squared, lengths
    for block in column_blocks(stacks, columns, members):
        part, squares, unit = centred(block, dtype)
        lengths.add_(squares, alpha=unit**2)
        for i in range(0, height, _TILE):
            tile = squared[i : i + _TILE, i:]
            products = _product(part[i : i + len(tile)], part[i:])
            tile.add_(products, alpha=-2 * unit**2)
    for i in range(0, height, _TILE):
        tile = squared[i : i + _TILE, i:]
        of_rows = lengths[i : i + len(tile), None]
        tile.add_(lengths[i:]).add_(of_rows).clamp_(min=0.0)
    squared.diagonal().zero_()
    return squared, lengths


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Compute left @ right.T of [h, c] and [m, c], summed in float64."""
    deep = left.shape[1] // _DEPTH
    whole = deep * _DEPTH
    a = left[:, :whole].reshape(len(left), deep, _DEPTH).transpose(0, 1)
    b = right[:, :whole].reshape(len(right), deep, _DEPTH).transpose(0, 1)
    chains = torch.bmm(a, b.mT).sum(0, dtype=torch.float64)
    rest = left[:, whole:] @ right[:, whole:].T
    return chains + rest


def column_blocks(stacks: Stacks, columns: list[slice], members: Tensor) -> Iterator[Tensor]:
    """Yield the rows `members` of the stacks in blocks [m, c], through `columns` from left to right."""
    width = min(max(_ELEMENTS // len(members), _COLUMNS[0]), _COLUMNS[1])
    picked, first = [], 0
    for stack in stacks:
        rows = members[(members >= first) & (members < first + len(stack))] - first
        if len(rows):
            low, high = int(rows[0]), int(rows[-1]) + 1
            dense = high - low == len(rows)
            picked.append((stack, slice(low, high) if dense else rows))
        first += len(stack)
    for part in columns:
        for start in range(part.start, part.stop, width):
            block = slice(start, min(start + width, part.stop))
            blocks = [stack[:, block][rows] for stack, rows in picked]
            yield blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def centred(block: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, float]:
    """Return the deviations [m, c] from the mean row, their squared lengths [m], and the unit of both."""
    part = (block - block.mean(0)).to(
        dtype
    )  # any row would do as well as the mean: its own rounding cancels
    squares = part.square().sum(1)
    if _PLAIN[0] < float(squares.max()) < _PLAIN[1]:
        return part, squares, 1.0
    wide = block.to(torch.float64)
    wide = wide - wide.mean(0)
    unit = float(wide.abs().max()) or 1.0
    part = wide.div_(unit).to(dtype)
    return part, part.square().sum(1), unit
