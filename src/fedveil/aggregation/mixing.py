"""Mixing before a rule: nearest-neighbour mixing and bucketing replace updates by means of several updates."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.accounting.events import FACTOR
from fedveil.aggregation.base import Aggregator, even
from fedveil.aggregation.clusters import member_weights
from fedveil.aggregation.robust import FedMedian
from fedveil.calibration.distance import squared_distances
from fedveil.checks import Count, Natural
from fedveil.clipping import blocks_of
from fedveil.errors import FieldError
from fedveil.mechanisms import Source


@dataclass(frozen=True)
class Mixing(Aggregator):
    """Rule that applies an inner rule to mixtures (weighted means) of updates; base class of `NNM` and `Bucketing`.

    Parameters
    ----------
    inner : Aggregator
        Rule for the mixtures. Its server optimiser, if it has one, works as without mixing.
    """

    inner: Aggregator = field(default_factory=FedMedian)

    @property
    def identity_step(self) -> bool:  # type: ignore[override]
        return self.inner.identity_step

    @property
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    @property
    def least(self) -> int:
        return self.inner.least

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """Return the inner rule's state before the first round."""
        return self.inner.init(dimension, dtype)

    def for_round(
        self,
        state: Any,
        source: Source,
        public_update: Tensor | None = None,
    ) -> Self:
        """Return the rule with its inner rule for this round."""
        return self._filled(inner=self.inner.for_round(state, source, public_update))

    def step(self, model: Tensor, update: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.inner.step(model, update, state)

    @abstractmethod
    def mixture(self, updates: Tensor) -> Tensor:
        """Return the weights [m, n] (float64, rows sum to 1) of the n updates in m mixtures."""

    def effective_weights(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the updates' weights in the result, from the mixtures' weights (equal, unless the inner rule has others)."""
        mixture = self.mixture(updates)
        equal = even(len(mixture))
        inner = self.inner.effective_weights(self._mixed(updates, mixture), equal)
        return (equal if inner is None else inner) @ mixture

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Apply the inner rule to the mixtures; the values of `weights` do not matter."""
        mixture = self.mixture(updates)
        return self.inner.reduce(self._mixed(updates, mixture), even(len(mixture)))

    def _mixed(self, updates: Tensor, mixture: Tensor) -> Tensor:
        mixed = []
        for columns in blocks_of(*updates.shape):
            mixed.append(mixture @ updates[:, columns].to(torch.float64))
        return torch.cat(mixed, 1)


@dataclass(frozen=True)
class NNM(Mixing):
    """Nearest-neighbour mixing (Allouah et al. 2023, arXiv 2302.01772, algorithm 2).

    Every update is replaced by the mean of the n - f updates nearest to it, which include itself.

    Parameters
    ----------
    malicious : int
        f, the number of malicious clients to withstand, less than half.

    Examples
    --------
    >>> fv.NNM(fv.FedMedian(), malicious=1).reduce(updates, equal).round(decimals=1)
    tensor([1., 0.], dtype=torch.float64)
    """

    working_copies: ClassVar[int] = 4

    malicious: Natural = 0

    @property
    def least(self) -> int:
        """Least number of updates: 2 f + 1, or the inner rule's if that is larger."""
        return max(2 * self.malicious + 1, self.inner.least)

    def withstands(self, n: int) -> int:
        """Return less than half of n, and at most the inner rule's number."""
        return min((n - 1) // 2, self.inner.withstands(n))

    def mixture(self, updates: Tensor) -> Tensor:
        """Return 1 / (n - f) for each of the nearest updates; of equally near ones the lower index counts."""
        n = len(updates)
        if 2 * self.malicious >= n:
            raise FieldError(
                "malicious",
                self.malicious,
                f"NNM withstands at most {(n - 1) // 2} among {n} updates",
            )
        squared = squared_distances(updates).fill_diagonal_(
            -1.0
        )  # its own first, also among equals
        nearest = squared.sort(dim=1, stable=True).indices[:, : n - self.malicious]
        mixture = torch.zeros(n, n, dtype=torch.float64)
        return mixture.scatter_(1, nearest, 1 / (n - self.malicious))

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> None:
        """Return None: one update may move every mixture, and rounding decides between equally near neighbours.

        In exact arithmetic each mixture exchanges at most one update, and moves by 2C / (n - f). But distances are
        rounded, and a change of one update may reorder others that are equally near.
        """
        return


@dataclass(frozen=True)
class Bucketing(Mixing):
    """Bucketing: an inner rule on means of random buckets (Karimireddy, He and Jaggi 2022, arXiv 2006.09365, algorithm 1).

    `for_round` draws new buckets; without it buckets are consecutive updates.

    Parameters
    ----------
    size : int
        s, the number of updates in a bucket; the last bucket may hold fewer.

    Examples
    --------
    >>> fv.Bucketing(fv.FedMedian(), size=2).lipschitz(equal)
    1.0
    """

    size: Count = 2
    draw: int | None = field(default=None, init=False, repr=False)

    @property
    def columnwise(self) -> bool:  # type: ignore[override]
        """Whether coordinates are independent, as for the inner rule; buckets do not depend on the updates."""
        return self.inner.columnwise

    def for_round(
        self,
        state: Any,
        source: Source,
        public_update: Tensor | None = None,
    ) -> Self:
        """Return the rule with newly drawn buckets, and its inner rule for this round."""
        filled = super().for_round(state, source, public_update)
        return filled._filled(draw=int(source.child("buckets").bits(1)))

    @property
    def least(self) -> int:
        """Least number of updates: enough for as many buckets as the inner rule needs."""
        return (self.inner.least - 1) * self.size + 1

    def withstands(self, n: int) -> int:
        """Return the inner rule's number for the buckets, as at worst each malicious client is in another bucket."""
        return self.inner.withstands(-(-n // self.size))

    def mixture(self, updates: Tensor) -> Tensor:
        """Return 1 / (size of the bucket) for each member of a bucket."""
        n = len(updates)
        order = torch.arange(n)
        if self.draw is not None:
            order = torch.randperm(n, generator=torch.Generator().manual_seed(self.draw))
        bucket = torch.empty_like(order).index_copy_(0, order, torch.arange(n) // self.size)
        return member_weights(bucket, -(-n // self.size))

    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Return the inner rule's sensitivity for one bucket; None for add/remove, which shifts buckets.

        The buckets do not depend on the updates. One update moves one mean by at most 1 / s' of its own change, with s'
        the size of the smallest bucket. If the inner rule has a slope (`lipschitz`), it bounds how far this moves the
        result. All means have length at most C, so the inner rule's replace-one sensitivity is also a bound.
        """
        if relation == "add/remove":
            return None
        n = len(weights)
        bounds = [self.inner.sensitivity(clip, even(-(-n // self.size)), "replace-one")]
        slope = self.lipschitz(weights)
        if slope is not None:
            bounds.append(slope * clip * FACTOR[relation])
        known = [bound for bound in bounds if bound is not None]
        return min(known, default=None)

    def lipschitz(self, weights: Tensor) -> float | None:
        """Return the inner rule's slope divided by the size of the smallest bucket."""
        n = len(weights)
        slope = self.inner.lipschitz(even(-(-n // self.size)))
        if slope is None:
            return None
        return slope / (n % self.size or self.size)
