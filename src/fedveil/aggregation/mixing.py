"""What comes before a rule: nearest-neighbour mixing and bucketing make updates more alike first."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

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
    """Mix updates, then apply a rule to the mixtures; the base of `NNM` and `Bucketing`.

    Parameters
    ----------
    inner : Aggregator
        The rule; its server optimiser, if it has one, acts as without the mixing.
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
        """The inner rule's state."""
        return self.inner.init(dimension, dtype)

    def for_round(self, state: Any, source: Source, public_update: Tensor | None = None) -> Self:
        """Fill in the inner rule."""
        return self._filled(inner=self.inner.for_round(state, source, public_update))

    def step(self, model: Tensor, update: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.inner.step(model, update, state)

    @abstractmethod
    def mixture(self, updates: Tensor) -> Tensor:
        """Weights [m, n] (float64, rows sum to 1) of the m mixtures."""

    def shares(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Shares of the updates in the mixtures, by the mixtures' shares in the result (equal where it has none)."""
        mixture = self.mixture(updates)
        equal = even(len(mixture))
        inner = self.inner.shares(self._mixed(updates, mixture), equal)
        return (equal if inner is None else inner) @ mixture

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """The inner rule on the mixtures; `weights` only say how many updates there are."""
        mixture = self.mixture(updates)
        return self.inner.reduce(self._mixed(updates, mixture), even(len(mixture)))

    def _mixed(self, updates: Tensor, mixture: Tensor) -> Tensor:
        blocks = blocks_of(*updates.shape)
        return torch.cat([mixture @ updates[:, columns].to(torch.float64) for columns in blocks], 1)


@dataclass(frozen=True)
class NNM(Mixing):
    """Nearest-neighbour mixing (Allouah et al. 2023, arXiv 2302.01772, algorithm 2).

    Every update is replaced by the mean of the n - f updates nearest to it, its own included.

    Parameters
    ----------
    malicious : int
        Bad clients to withstand, f, less than half.

    Examples
    --------
    >>> fv.NNM(fv.FedMedian(), malicious=1).reduce(updates, equal).round(decimals=1)
    tensor([1., 0.], dtype=torch.float64)
    """

    malicious: Natural = 0

    @property
    def least(self) -> int:
        """2 f + 1, or what the inner rule needs."""
        return max(2 * self.malicious + 1, self.inner.least)

    def bears(self, n: int) -> int:
        """Less than half, and no more than the inner rule."""
        return min((n - 1) // 2, self.inner.bears(n))

    def mixture(self, updates: Tensor) -> Tensor:
        """1 / (n - f) for each of the nearest; ties go to the lower index."""
        n = len(updates)
        if 2 * self.malicious >= n:
            raise FieldError("malicious", self.malicious, f"NNM bears at most {(n - 1) // 2} among {n} updates")
        squared = squared_distances(updates).fill_diagonal_(-1.0)  # its own first, also among equals
        nearest = squared.sort(dim=1, stable=True).indices[:, : n - self.malicious]
        return torch.zeros(n, n, dtype=torch.float64).scatter_(1, nearest, 1 / (n - self.malicious))

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> None:
        """None: one update may move every mixture, and rounding decides between neighbours that are equally near.

        In exact arithmetic each mixture exchanges one update at most, and moves by 2C / (n - f); but distances are
        rounded, and where many are equal the change of one update may reorder the rest.
        """
        return


@dataclass(frozen=True)
class Bucketing(Mixing):
    """Means of random buckets (Karimireddy, He and Jaggi 2022, arXiv 2006.09365, algorithm 1).

    `for_round` draws the buckets anew; without it they follow the order of the updates.

    Parameters
    ----------
    size : int
        Updates in a bucket, s; the last one may hold fewer.

    Examples
    --------
    >>> fv.Bucketing(fv.FedMedian(), size=2).lipschitz(equal)
    1.0
    """

    size: Count = 2
    draw: int | None = field(default=None, init=False, repr=False)

    @property
    def columnwise(self) -> bool:  # type: ignore[override]
        """The inner rule's: buckets do not look at the updates."""
        return self.inner.columnwise

    def for_round(self, state: Any, source: Source, public_update: Tensor | None = None) -> Self:
        """Draw the buckets and fill in the inner rule."""
        filled = super().for_round(state, source, public_update)
        return filled._filled(draw=int(source.child("buckets").bits(1)))

    @property
    def least(self) -> int:
        """Enough to fill the buckets that the inner rule needs."""
        return (self.inner.least - 1) * self.size + 1

    def bears(self, n: int) -> int:
        """What the inner rule bears among the buckets: in the worst case each malicious client spoils another one."""
        return self.inner.bears(-(-n // self.size))

    def mixture(self, updates: Tensor) -> Tensor:
        """One over the size of a bucket for each of its members."""
        n = len(updates)
        order = torch.arange(n)
        if self.draw is not None:
            order = torch.randperm(n, generator=torch.Generator().manual_seed(self.draw))
        bucket = torch.empty_like(order).index_copy_(0, order, torch.arange(n) // self.size)
        return member_weights(bucket, -(-n // self.size))

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float | None:
        """That of the inner rule for one bucket, whose mean moves by a share of what the update moves.

        The buckets are drawn without looking at the updates. One update moves one mean by at most 1 / s' of its own
        change, s' the size of the smallest bucket: by the inner rule's slope, where it has one. Any two means lie
        within C, so the inner rule's replace-one sensitivity holds as well. None for add/remove, which shifts buckets.
        """
        if relation == "add/remove":
            return None
        n = len(weights)
        bounds = [self.inner.sensitivity(clip, even(-(-n // self.size)), "replace-one")]
        slope = self.lipschitz(weights)
        if slope is not None:
            bounds.append(slope * clip * FACTOR[relation])
        known = [b for b in bounds if b is not None]
        return min(known) if known else None

    def lipschitz(self, weights: Tensor) -> float | None:
        """The inner rule's over the size of the smallest bucket."""
        n = len(weights)
        slope = self.inner.lipschitz(even(-(-n // self.size)))
        return None if slope is None else slope / (n % self.size or self.size)
