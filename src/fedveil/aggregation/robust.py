"""Rules that resist a few bad updates: FedMedian, TrimmedMean, Krum, MultiKrum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.aggregation.base import Aggregator
from fedveil.aggregation.ranks import middle_mean
from fedveil.calibration.pairs import squared_distances
from fedveil.errors import FieldError, require_count, require_non_negative


@dataclass(frozen=True)
class FedMedian(Aggregator):
    """Coordinate-wise median (Yin et al. 2018, arXiv 1803.01498); an even number of updates takes the middle mean.

    One client moves each coordinate by at most its own change, so the sensitivity is C whatever n (C/2 for even n under
    zero-out: the two middle values together move by at most the change).
    """

    columnwise: ClassVar[bool] = True

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Median of each coordinate; the weights only say how many updates there are."""
        return middle_mean(updates, (len(updates) - 1) // 2)

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """C (odd) or C/2 (even), twice that for replace-one; C for add/remove, which changes the parity."""
        if relation == "add/remove":
            return clip
        base = clip if len(weights) % 2 else clip / 2
        return base * (2.0 if relation == "replace-one" else 1.0)

    def lipschitz(self, weights: Tensor) -> float:
        """1 (odd) or 1/2 (even)."""
        return self.sensitivity(1.0, weights, "zero-out")


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Coordinate-wise mean without the b smallest and b largest values (Yin et al. 2018), b = floor(fraction * n).

    Parameters
    ----------
    fraction : float
        Share cut off at each end, in [0, 0.5).
    """

    fraction: float = 0.2

    columnwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the share."""
        if require_non_negative("fraction", self.fraction) >= 0.5:
            raise FieldError("fraction", self.fraction, "must be in [0, 0.5): something has to be left")

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Mean of what is left of each coordinate; the weights only say how many updates there are."""
        return middle_mean(updates, int(self.fraction * len(updates)))

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float | None:
        """C / (n - 2b), twice that for replace-one; none for add/remove, which changes b."""
        if relation == "add/remove":
            return None
        n = len(weights)
        bound = clip / (n - 2 * int(self.fraction * n))
        return bound * (2.0 if relation == "replace-one" else 1.0)

    def lipschitz(self, weights: Tensor) -> float | None:
        """1 / (n - 2b)."""
        return self.sensitivity(1.0, weights, "zero-out")


@dataclass(frozen=True)
class MultiKrum(Aggregator):
    """Mean of the updates closest to their neighbours (Blanchard et al. 2017).

    An update's score is the sum of squared distances to its n - malicious - 2 nearest others; the lowest win.

    Parameters
    ----------
    malicious : int
        Bad clients to withstand.
    selected : int
        Updates averaged.
    """

    malicious: int = 0
    selected: int = 1

    def __post_init__(self) -> None:
        """Check both."""
        require_count("malicious", self.malicious, least=0)
        require_count("selected", self.selected)

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Mean of the selected updates, unweighted. Ties go to the lower index, as far as rounding leaves them ties."""
        n = len(updates)
        if self.selected > n:
            raise FieldError("selected", self.selected, f"only {n} updates arrived")
        near = squared_distances(updates).sort(dim=1).values  # column 0 is the update itself
        scores = near[:, 1 : 1 + max(1, n - self.malicious - 2)].sum(1)
        best = torch.sort(scores, stable=True).indices[: self.selected]
        total = torch.zeros_like(updates[0])
        for i in best.tolist():  # an absent client's zero update has weight 0, and may be selected all the same
            total += updates[i]
        return total.div_(self.selected)

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """2C: another selection moves the result from anywhere within C to anywhere within C."""
        return 2 * clip


@dataclass(frozen=True)
class Krum(MultiKrum):
    """The one update that is closest to its neighbours."""

    def __post_init__(self) -> None:
        """Refuse to select more than one."""
        super().__post_init__()
        if self.selected != 1:
            raise FieldError("selected", self.selected, "Krum selects one update; use MultiKrum for more")
