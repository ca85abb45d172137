"""Rules that withstand some malicious updates: FedMedian, TrimmedMean, Krum, MultiKrum, Bulyan."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.accounting.events import FACTOR
from fedveil.aggregation.base import Aggregator, even, rounding, weighted_sum
from fedveil.aggregation.ranks import middle_mean
from fedveil.calibration.distance import squared_distances
from fedveil.checks import Count, Natural
from fedveil.clipping import blocks_of
from fedveil.errors import FieldError, require_non_negative


@dataclass(frozen=True)
class FedMedian(Aggregator):
    """Coordinate-wise median (Yin et al. 2018, arXiv 1803.01498); with an even number of updates, the mean of the middle two.

    One client moves each coordinate by at most its own change, so the sensitivity is C for any n. (For even n it is C/2
    under zero-out, as the sum of the middle two values moves by at most the change.)

    Examples
    --------
    >>> fv.FedMedian().reduce(updates, equal)
    tensor([1., 0.], dtype=torch.float64)
    >>> fv.FedMedian().withstands(5)  # number of malicious clients among five
    2
    """

    columnwise: ClassVar[bool] = True

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the median of each coordinate; the values of `weights` do not matter."""
        return middle_mean(updates, (len(updates) - 1) // 2)

    def withstands(self, n: int) -> int:
        return (n - 1) // 2

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """Return C (odd n) or C/2 (even n), twice that for replace-one; C for add/remove, as n changes between odd and even."""
        if relation == "add/remove":
            return clip
        base = clip if len(weights) % 2 else clip / 2
        return base * FACTOR[relation]

    def lipschitz(self, weights: Tensor) -> float:
        """Return 1 (odd n) or 1/2 (even n)."""
        return self.sensitivity(1.0, weights, "zero-out")


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Coordinate-wise mean without the b smallest and b largest values (Yin et al. 2018), b = floor(fraction * n).

    Parameters
    ----------
    fraction : float
        Share cut off at each end, in [0, 0.5).

    Examples
    --------
    >>> fv.TrimmedMean(fraction=0.25).reduce(updates, equal)
    tensor([1.0667, 0.0333], dtype=torch.float64)
    """

    fraction: float = 0.2

    columnwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if require_non_negative("fraction", self.fraction) >= 0.5:
            raise FieldError(
                "fraction", self.fraction, "must be in [0, 0.5): something has to be left"
            )

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the mean of the middle values of each coordinate; the values of `weights` do not matter."""
        return middle_mean(updates, self.withstands(len(updates)))

    def withstands(self, n: int) -> int:
        """Return b, the number of values cut off at each end."""
        return int(self.fraction * n)

    def cuts_nobody(self, n: int) -> bool:
        """Whether it is the plain mean among n updates, as its fraction is less than one of them."""
        return self.fraction > 0 and self.withstands(n) == 0

    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Return C / (n - 2b) with rounding, twice that for replace-one; None for add/remove, which changes b."""
        if relation == "add/remove":
            return None
        n = len(weights)
        bound = clip / (n - 2 * int(self.fraction * n)) * (1 + rounding(n))
        return bound * FACTOR[relation]

    def lipschitz(self, weights: Tensor) -> float | None:
        """Return 1 / (n - 2b)."""
        return self.sensitivity(1.0, weights, "zero-out")


def krum_order(squared: Tensor, malicious: int) -> Tensor:
    """Sort updates by Krum's score, from squared distances [n, n]; return indices [n], the most central first.

    The score is the sum of squared distances to the n - malicious - 2 nearest others (at least one). Of equal scores
    the lower index comes first.
    """
    near = squared.sort(dim=1).values  # column 0 is the update itself
    counted = max(1, len(squared) - malicious - 2)
    scores = near[:, 1 : 1 + counted].sum(1)
    return torch.sort(scores, stable=True).indices


@dataclass(frozen=True)
class MultiKrum(Aggregator):
    """Mean of the updates closest to their neighbours (Blanchard et al. 2017).

    An update's score is the sum of squared distances to its n - malicious - 2 nearest others; those with the lowest
    scores are averaged.

    Parameters
    ----------
    malicious : int
        f, the number of malicious clients to withstand; the rule needs n >= 2 f + 3.
    selected : int
        Number of updates that are averaged.

    Examples
    --------
    >>> fv.MultiKrum(malicious=1).reduce(updates, equal).round(decimals=1)
    tensor([1., 0.], dtype=torch.float64)
    """

    malicious: Natural = 0
    selected: Count = 1

    @property
    def least(self) -> int:
        """Least number of updates: 2 f + 3, or the number of selected ones if that is larger."""
        needed = 2 * self.malicious + 3 if self.malicious else 1
        return max(self.selected, needed)

    def withstands(self, n: int) -> int:
        """Return (n - 3) / 2, rounded down."""
        return max(0, (n - 3) // 2)

    def effective_weights(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return equal weights for the selected updates, and 0 for the others."""
        n = len(updates)
        self.admit(self.malicious, n)
        if self.selected > n:
            raise FieldError("selected", self.selected, f"only {n} updates arrived")
        best = krum_order(squared_distances(updates), self.malicious)[: self.selected]
        return torch.zeros(n, dtype=torch.float64).index_fill_(0, best, 1 / self.selected)

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the unweighted mean of the selected updates; a zero update of an absent client may be selected."""
        chosen = self.effective_weights(updates, weights).nonzero().flatten()
        return weighted_sum(updates[chosen], even(len(chosen)))

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """Return 2C: one update can change the selection, and so move the result between any two points within C."""
        return 2 * clip


@dataclass(frozen=True)
class Krum(MultiKrum):
    """Krum: the single update that is closest to its neighbours (Blanchard et al. 2017).

    Examples
    --------
    >>> fv.Krum(malicious=1).reduce(updates, equal)
    tensor([1., 0.], dtype=torch.float64)
    """

    def __post_init__(self) -> None:
        """Refuse to select more than one update."""
        super().__post_init__()
        if self.selected != 1:
            raise FieldError(
                "selected", self.selected, "Krum selects one update; use MultiKrum for more"
            )


@dataclass(frozen=True)
class Bulyan(Aggregator):
    """Bulyan of Krum (El Mhamdi, Guerraoui and Rouault 2018, arXiv 1802.07927, section 4).

    Of n updates, theta = n - 2 f are selected one at a time, each by Krum among the remaining ones. In every
    coordinate, the beta = theta - 2 f values closest to the median of the selected ones are averaged.

    Parameters
    ----------
    malicious : int
        f, the number of malicious clients to withstand; the rule needs n >= 4 f + 3.

    Examples
    --------
    >>> seven = torch.cat([updates, updates[:2]])
    >>> fv.Bulyan(malicious=1).reduce(seven, torch.full((7,), 1 / 7, dtype=torch.float64)).round(
    ...     decimals=1
    ... )
    tensor([1., 0.], dtype=torch.float64)
    """

    malicious: Natural = 0

    @property
    def least(self) -> int:
        """Least number of updates: 4 f + 3."""
        return 4 * self.malicious + 3 if self.malicious else 1

    def withstands(self, n: int) -> int:
        """Return (n - 3) / 4, rounded down."""
        return max(0, (n - 3) // 4)

    def effective_weights(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return equal weights for the selected updates, before single coordinates are left out."""
        n, f = len(updates), self.malicious
        self.admit(f, n)
        others, squared = torch.arange(n), squared_distances(updates)
        chosen: list[int] = []
        while len(chosen) < n - 2 * f:
            best = 0
            if len(others) > 1:
                best = int(krum_order(squared[others[:, None], others], f)[0])
            chosen.append(int(others[best]))
            others = torch.cat([others[:best], others[best + 1 :]])
        shares = torch.zeros(n, dtype=torch.float64)
        return shares.index_fill_(0, torch.tensor(chosen), 1 / len(chosen))

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the trimmed mean around the median, in each coordinate of the selected updates, in float64."""
        rows = self.effective_weights(updates, weights).nonzero().flatten()
        kept = len(rows) - 2 * self.malicious
        result = torch.empty(updates.shape[1], dtype=torch.float64)
        for columns in blocks_of(*updates.shape):
            block = updates[rows, columns].to(torch.float64).sort(dim=0).values
            lower, upper = block[(len(rows) - 1) // 2], block[len(rows) // 2]
            middle = (lower + upper) / 2
            nearest = (block - middle).abs().sort(dim=0, stable=True).indices[:kept]
            result[columns] = block.gather(0, nearest).mean(0)
        return result

    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Return 2 C sqrt(theta / beta); None for add/remove, which changes theta and beta.

        By Cauchy and Schwarz the square of a coordinate is at most the mean of the beta squared values in it. So the
        squared length of the result is at most the sum of the theta squared norms, divided by beta. The result has
        length at most C sqrt(theta / beta), before and after. The bound does not fall with n, as one update can change
        Krum's selection.
        """
        if relation == "add/remove":
            return None
        n, f = max(len(weights), self.least), self.malicious  # fewer updates give no result
        return 2 * clip * math.pow((n - 2 * f) / (n - 4 * f), 0.5)
