"""Rules that use a centre or the length of updates: GeometricMedian, CentredClipping, NormBounding, FLTrust.

The geometric median is a weighted mean of the updates, so its weights follow from squared distances D [n, n] alone: for
weights w that sum to 1, |x_i - sum_j w_j x_j|^2 = (D w)_i - w.D w / 2.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.accounting.events import FACTOR
from fedveil.aggregation.base import Aggregator, WeightedMean, even, rounding, weighted_sum
from fedveil.calibration.distance import squared_distances
from fedveil.checks import Clip, Count, Positive, Radius
from fedveil.clipping import SHRINK, blocks_of, norms
from fedveil.errors import FieldError
from fedveil.mechanisms import Source


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """Geometric median: the point with the least sum of distances to the updates (smoothed Weiszfeld iteration).

    Source: RFA (Pillutla, Kakade and Harchaoui 2022, arXiv 1912.13445, algorithm 2). It starts at the mean and is
    unweighted.

    Parameters
    ----------
    smoothing : float
        Distances below this (in the updates' units) count as this distance.
    iterations : int
        Most iterations; it stops when no weight changes by more than 1e-9.

    Examples
    --------
    >>> fv.GeometricMedian().reduce(updates, equal).round(decimals=1)
    tensor([1., 0.], dtype=torch.float64)
    """

    smoothing: Positive = 1e-6
    iterations: Count = 200

    def withstands(self, n: int) -> int:
        return (n - 1) // 2

    def effective_weights(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the final weights, proportional to 1 / (distance from the median)."""
        squared = squared_distances(updates)
        shares = even(len(updates))
        for _ in range(self.iterations):
            mixed = squared @ shares
            distances = (mixed - shares @ mixed / 2).clamp_(min=0.0).sqrt()
            near = 1 / distances.clamp_(min=self.smoothing)
            before, shares = shares, near / near.sum()
            if float((shares - before).abs().max()) < 1e-9:
                break
        return shares

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the geometric median; the values of `weights` do not matter."""
        return weighted_sum(updates, self.effective_weights(updates, weights))

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """Return 2C: the result is a mean of updates within C, before and after.

        It does not fall with n: with k updates at -C and k + 1 at C, one update that changes sides moves the result to
        the other side.
        """
        return 2 * clip


@dataclass(frozen=True)
class Centre:
    """State of centred clipping: the last reduced update [d], with its noise; zeros before the first round."""

    update: Tensor


@dataclass(frozen=True)
class CentredClipping(Aggregator):
    """Centred clipping: a centre moves by the mean of the updates' clipped deviations from it.

    Parameters
    ----------
    radius : float
        tau, the length to which each deviation is clipped.
    iterations : int
        L, the number of moves of the centre in a round.
    remember : bool
        Whether the centre starts at the last round's result (as published), or at 0.

    Examples
    --------
    >>> rule = fv.CentredClipping(radius=1.0)
    >>> rule.reduce(updates, equal).norm() < 2
    tensor(True)
    """

    radius: Radius = 1.0
    iterations: Count = 3
    remember: bool = True
    centre: Tensor | None = field(default=None, init=False, compare=False, repr=False)

    def init(self, dimension: int, dtype: torch.dtype) -> Centre:
        return Centre(torch.zeros(dimension, dtype=dtype))

    def for_round(
        self,
        state: Centre,
        source: Source,
        public_update: Tensor | None = None,
    ) -> "CentredClipping":
        """Return the rule with the last round's result as its start."""
        return self._filled(centre=state.update) if self.remember else self

    def step(
        self,
        model: Tensor,
        update: Tensor,
        state: Centre,
    ) -> tuple[Tensor, Centre]:
        """Add the update to the model, and store it for the next round."""
        return model + update, Centre(update.clone())

    def withstands(self, n: int) -> int:
        """Return less than half of n; a malicious client moves the result by at most L tau / n."""
        return (n - 1) // 2

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the last centre; the values of `weights` do not matter.

        Distances are computed in float64 from the updates, not from a Gram matrix: there one changed update changes the
        rounding of all distances, and could move the result by more than the update itself.
        """
        n, d = updates.shape
        start = torch.zeros(d) if self.centre is None else self.centre
        centre = start.to(torch.float64)
        for _ in range(self.iterations):
            squares = torch.zeros(n, dtype=torch.float64)
            for columns in blocks_of(n, d):
                squares += (updates[:, columns] - centre[columns]).square().sum(1)
            pull = (self.radius * (1 - SHRINK) / squares.sqrt()).clamp_(
                max=1.0
            ) / n  # 1 / n at distance 0
            centre = weighted_sum(updates, pull).add_(centre, alpha=1 - float(pull.sum()))
        return centre

    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Return L min(2 tau, C) / n for zero-out, L min(2 tau, 2C) / n for replace-one, None for add/remove.

        The first centre is public: 0, or released before. One iteration takes v to the mean of x_i - r(x_i - v), with
        r(u) = u - clip(u). As r is 1-Lipschitz, a centre that has moved by s moves the next one by at most s. The
        changed update adds |clip(x - v) - clip(x' - v)| / n, which is at most 2 tau / n and at most |x - x'| / n.
        """
        if relation == "add/remove":
            return None
        change = clip * FACTOR[relation]
        n = len(weights)
        return self.iterations * min(2 * self.radius, change) / n * (1 + rounding(n))

    def lipschitz(self, weights: Tensor) -> float:
        """Return L / n."""
        return self.iterations / len(weights)


@dataclass(frozen=True)
class NormBounding(Aggregator):
    """Mean of the updates, each scaled down to a norm (Sun et al. 2019, arXiv 1911.07963, section 5).

    It limits the influence of each malicious client to bound / n. Unlike the other rules it withstands no number of
    them: enough of them move the mean anywhere within the bound.

    Parameters
    ----------
    bound : float
        M, the largest norm.

    Examples
    --------
    >>> fv.NormBounding(bound=1.0).reduce(updates, equal).norm() <= 1
    tensor(True)
    """

    bound: Clip = 1.0

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean of the scaled updates."""
        factors = (self.bound * (1 - SHRINK) / norms(updates)).clamp_(max=1.0)
        return weighted_sum(updates, weights * factors)

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """Return min(C, M) times the largest weight, twice that for replace-one."""
        return WeightedMean().sensitivity(min(clip, self.bound), weights, relation)

    def lipschitz(self, weights: Tensor) -> float:
        """Return the largest weight, as scaling down to a ball moves no two updates further apart."""
        return float(weights.max())


@dataclass(frozen=True)
class FLTrust(Aggregator):
    """Mean of the updates, weighted by their agreement with an update that the server trains on public data.

    Source: Cao, Fang, Liu and Gong 2021 (arXiv 2012.13995, equations 2 to 4). Let g0 be the server's own update. The
    trust scores are ``TS_i = max(0, cos(x_i, g0))``. The result is the mean of ``x_i |g0| / |x_i|``, weighted by TS.
    The server needs public data like the clients', and trains on them as a client does. Engines pass g0 to `for_round`
    as ``public_update``. If no update is trusted, the model does not change.

    Examples
    --------
    >>> rule = fv.FLTrust()
    >>> sorted(rule.needs)
    ['public_update']
    """

    reference: Tensor | None = field(
        default=None,
        init=False,
        compare=False,
        repr=False,
    )

    @property
    def needs(self) -> frozenset[str]:
        """Name of the fact that the rule needs: the server's own update."""
        return frozenset({"public_update"})

    def for_round(
        self,
        state: Any,
        source: Source,
        public_update: Tensor | None = None,
    ) -> "FLTrust":
        """Return the rule with the server's update of this round."""
        return self._filled(reference=public_update)

    def withstands(self, n: int) -> int:
        """Return n: no client can move the server's own update, if the public data are like the clients'."""
        return n

    def effective_weights(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the trust scores, scaled to sum to 1; all 0 if no update is trusted."""
        if self.reference is None or self.reference.shape != updates.shape[1:]:
            given = None if self.reference is None else tuple(self.reference.shape)
            accepted = f"FLTrust needs the server's own update [{updates.shape[1]}]: give the federation public data"
            raise FieldError("public_update", given, accepted)
        dots = torch.zeros(len(updates), dtype=torch.float64)
        for columns in blocks_of(*updates.shape):
            block = updates[:, columns].to(torch.float64)
            dots += block @ self.reference[columns].to(torch.float64)
        lengths = norms(updates) * norms(self.reference)
        trust = torch.where(lengths > 0, dots / lengths, torch.zeros_like(dots)).clamp_(min=0.0)
        total = float(trust.sum())
        return trust / total if total > 0 else trust

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the mean of the trusted updates, scaled to the server's length; the values of `weights` do not matter."""
        shares = self.effective_weights(updates, weights)
        assert self.reference is not None
        scale = norms(self.reference) / norms(updates)
        return weighted_sum(updates, torch.where(shares > 0, shares * scale, shares))

    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Return 2 |g0| in a round; None before it, so noise cannot be calibrated to it in advance.

        The result is a mean of vectors of length |g0|, so it moves by at most 2 |g0|. This is public, but changes from
        round to round. It does not fall with n: if only one client is trusted, the result has length |g0| with it and 0
        without it.
        """
        if self.reference is None:
            return None
        return 2 * float(norms(self.reference))
