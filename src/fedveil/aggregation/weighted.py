"""Robust rules with declared weights of the sites.

A weight is declared and public, such as a hospital's size by agreement, not a count of its data. No weight exceeds a
public cap, so that no site decides alone. Proofs, coordinate by coordinate, for an update that moves by v:

- The weighted median is monotone, and moves by a if all values move by a. So it moves by at most |v|.
- The split trimmed mean is the mean of the weighted quantile function between b and 1 - b. Moving one update of weight
  w changes that function by w |v| in all, so the mean by at most w |v| / (1 - 2b).
- The weighted geometric median is a weighted mean of the updates, before and after. So it moves by at most 2C.

The first two hold for each coordinate, and so for the length of the change: C zero-out, 2C for any two updates.
Weights are counted in whole parts of 2^-40, so that rounding decides no tie.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.accounting.events import FACTOR
from fedveil.aggregation.base import Aggregator, WeightedMean, even, rounding, weighted_sum
from fedveil.aggregation.centres import GeometricMedian, NormBounding
from fedveil.aggregation.robust import FedMedian, TrimmedMean
from fedveil.calibration.distance import squared_distances
from fedveil.clipping import blocks_of
from fedveil.errors import FieldError, kind_of, require_positive

PARTS = 1 << 40  # of all weights together
ALMOST = 1e-9


def capped_weights(declared: Sequence[float], cap: float) -> Tensor:
    """Compute weights [n] (float64, sum 1) in proportion to declared sizes, none above a cap.

    A large site's weight above the cap is divided among the others, in proportion to their sizes.

    Parameters
    ----------
    declared : sequence of float
        Public sizes, above 0.
    cap : float
        Largest weight, from 1 / n to 1.

    Raises
    ------
    FieldError
        For a size that is not positive, or a cap below 1 / n or above 1.

    Examples
    --------
    >>> fv.aggregation.capped_weights([700, 100, 100, 100], cap=0.4)
    tensor([0.4000, 0.2000, 0.2000, 0.2000], dtype=torch.float64)
    """
    checked = [require_positive("weights", size) for size in declared]
    sizes = torch.tensor(checked, dtype=torch.float64)
    n = len(sizes)
    if not n:
        raise FieldError("weights", 0, "name no site")
    if not 1 / n <= require_positive("cap", cap) <= 1:
        raise FieldError(
            "cap", cap, f"must be at least 1 / {n} = {1 / n:.3g} of {n} sites, and at most 1"
        )
    weights, held = sizes / sizes.sum(), torch.zeros(n, dtype=torch.bool)
    while bool((weights > cap + ALMOST).any()):
        held |= weights > cap
        free = 1 - cap * int(held.sum())
        weights = torch.where(held, torch.tensor(cap, dtype=torch.float64), weights)
        rest = weights[~held].sum()
        if not float(rest):
            return even(n)  # all are at the cap, which is then 1 / n
        weights[~held] *= free / rest
    return weights


def withstands_weight(weights: Tensor) -> int:
    """Return the largest number of sites such that any so many together weigh less than half."""
    heaviest = torch.round(weights * PARTS).to(torch.int64).sort(descending=True).values
    together = 2 * heaviest.cumsum(0)
    return int((together < int(heaviest.sum())).sum())


@dataclass(frozen=True)
class WeightedMedian(Aggregator):
    """Weighted median of each coordinate; if exactly half of the weight lies on either side, the mean of the middle two values.

    Examples
    --------
    >>> rule = fv.aggregation.WeightedMedian()
    >>> rule.reduce(updates[:3], fv.aggregation.capped_weights([6, 3, 3], cap=0.5)).shape
    torch.Size([2])
    """

    columnwise: ClassVar[bool] = True

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted median of each coordinate."""
        result = torch.empty(updates.shape[1], dtype=torch.float64)
        for columns in blocks_of(*updates.shape):
            values, below = _ordered(updates[:, columns], weights)
            twice, whole = 2 * below, below[-1:]
            lower = (twice < whole).sum(0, keepdim=True)
            upper = (twice <= whole).sum(0, keepdim=True)
            both = values.gather(0, lower)[0] + values.gather(0, upper)[0]
            result[columns] = both / 2
        return result

    def withstands(self, n: int) -> int:
        """Return less than half of n, for equal weights; for other weights see `withstands_weight`."""
        return (n - 1) // 2

    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Return C for zero-out and 2C for replace-one, for any weights; None for add/remove."""
        if relation == "add/remove":
            return None
        return clip * FACTOR[relation]

    def lipschitz(self, weights: Tensor) -> float:
        """Return 1, as the median moves by at most as much as one value."""
        return 1.0


@dataclass(frozen=True)
class SplitTrimmedMean(TrimmedMean):
    """Weighted trimmed mean: the mean of each coordinate between two weighted quantiles.

    A value across a quantile counts in part. If whole updates were cut off, there would be no bound, as one update more
    or less would move all others.

    Examples
    --------
    >>> rule = fv.aggregation.SplitTrimmedMean(fraction=0.25)
    >>> rule.sensitivity(1.0, fv.aggregation.capped_weights([2, 1, 1], cap=0.5), "zero-out")
    1.0
    """

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the mean of the weighted quantile function between b and 1 - b."""
        result = torch.empty(updates.shape[1], dtype=torch.float64)
        for columns in blocks_of(*updates.shape):
            values, below = _ordered(updates[:, columns], weights)
            whole = below[-1:].to(torch.float64)
            ends = below.to(torch.float64) / whole
            starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
            kept = ends.clamp(max=1 - self.fraction) - starts.clamp(min=self.fraction)
            total = (kept.clamp_(min=0.0) * values).sum(0)
            result[columns] = total / (1 - 2 * self.fraction)
        return result

    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Return C w_max / (1 - 2b) with rounding, twice that for replace-one; None for add/remove."""
        if relation == "add/remove":
            return None
        largest = float(weights.max()) / (1 - 2 * self.fraction)
        return largest * clip * FACTOR[relation] * (1 + rounding(len(weights)))


@dataclass(frozen=True)
class WeightedGeometricMedian(GeometricMedian):
    """Weighted geometric median: the point with the least weighted sum of distances to the updates.

    Examples
    --------
    >>> rule = fv.aggregation.WeightedGeometricMedian()
    >>> rule.sensitivity(1.0, fv.aggregation.capped_weights([2, 1, 1], cap=0.5), "zero-out")
    2.0
    """

    def effective_weights(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the final weights, proportional to a site's weight divided by its distance from the median."""
        squared = squared_distances(updates)
        shares = weights / weights.sum()
        for _ in range(self.iterations):
            mixed = squared @ shares
            distances = (mixed - shares @ mixed / 2).clamp_(min=0.0).sqrt()
            near = weights / distances.clamp_(min=self.smoothing)
            before, shares = shares, near / near.sum()
            if float((shares - before).abs().max()) < ALMOST:
                break
        return shares

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted geometric median."""
        return weighted_sum(updates, self.effective_weights(updates, weights))


WEIGHTED: dict[type[Aggregator], type[Aggregator]] = {
    FedMedian: WeightedMedian,
    TrimmedMean: SplitTrimmedMean,
    GeometricMedian: WeightedGeometricMedian,
}


def by_weight(rule: Aggregator) -> Aggregator:
    """Return the version of a rule that uses declared weights.

    Raises
    ------
    FieldError
        For a rule that ignores weights and counts updates.
    """
    if isinstance(rule, WeightedMean | NormBounding) or type(rule) in WEIGHTED.values():
        return rule
    kind = WEIGHTED.get(type(rule))
    if kind is None:
        accepted = "counts updates and not weights: use fedmedian, trimmed-mean, geometric-median, norm-bounding or a "
        raise FieldError("weights", kind_of(rule), accepted + "mean, or leave the weights out")
    values = {}
    for name in inspect.signature(kind).parameters:
        values[name] = getattr(rule, name)
    return kind(**values)


def _ordered(block: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sort the values [n, w] of each coordinate (float64), and cumulate their weights in integer parts (int64)."""
    values, places = block.to(torch.float64).sort(dim=0, stable=True)
    parts = torch.round(weights / weights.sum() * PARTS).to(torch.int64)
    return values, parts[places].cumsum(0)
