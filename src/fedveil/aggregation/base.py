"""The two halves of every aggregation rule: reduce the updates, then step the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.errors import FieldError, require_choice, require_count

Weighting = Literal["uniform", "examples"]

_COLUMNS = 1 << 17  # of a sum at a time: it stays in the cache while the rows pass by


@dataclass(frozen=True)
class NoState:
    """The state of a rule that remembers nothing."""


class Aggregator(ABC):
    """A rule that turns the updates of a round into the next model.

    A rule is a frozen dataclass; its memory is an explicit state.

    Attributes
    ----------
    identity_step : bool
        Whether `step` only adds the reduced update: the noise may then go on the output (order "printed").
    columnwise : bool
        Whether a coordinate of the reduced update follows from that coordinate of the updates and the weights alone.
    """

    identity_step: ClassVar[bool] = True
    columnwise: ClassVar[bool] = False

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """The state before the first round, for models of d coordinates."""
        return NoState()

    def weights(self, counts: Tensor | None, n: int) -> Tensor:
        """Weights [n] (float64, summing to 1) for n replies; `counts` are their numbers of examples, if sent."""
        return torch.full((n,), 1 / n, dtype=torch.float64)

    def planned_weights(self, counts: Tensor | None, n: int, cohort: int) -> Tensor:
        """Weights [n] of n replies against a planned cohort: each at most 1/cohort, so that absent clients weigh 0.

        Raises
        ------
        FieldError
            If a weight has no public bound.
        """
        return torch.full((n,), 1 / cohort, dtype=torch.float64)

    @abstractmethod
    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Combine updates [n, d] with weights [n] into one update [d] of the same type; a tensor of its own."""

    def step(self, model: Tensor, update: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Apply the reduced update [d] to the model [d]; returns the next model, a tensor of its own, and state."""
        return model + update, state

    @abstractmethod
    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float | None:
        """Largest Euclidean change of `reduce` when one client changes, its update clipped to `clip`.

        None if there is no bound. Zero-out replaces the client's update by zero and keeps all weights; replace-one
        replaces it by any other update within the clip.
        """

    def lipschitz(self, weights: Tensor) -> float | None:
        """How far `reduce` moves at most per unit of distance that one update moves; None if it can jump."""
        return None


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """Mean of the updates, uniform or weighted by example counts; the base of the mean rules.

    Parameters
    ----------
    weighting : {"uniform", "examples"}
        Uniform weights are public; weights by examples are as public as the counts.
    max_examples : int, optional
        Declared bound: a client counts as at most this many examples, whatever it reports. Formal noise needs it when
        clients are weighted by examples.
    """

    weighting: Weighting = "uniform"
    max_examples: int | None = None

    columnwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check both."""
        require_choice("weighting", self.weighting, ("uniform", "examples"))
        if self.max_examples is not None:
            require_count("max_examples", self.max_examples)
            if self.weighting == "uniform":
                raise FieldError("max_examples", self.max_examples, 'is for weighting="examples"; leave it out')

    def weights(self, counts: Tensor | None, n: int) -> Tensor:
        """Uniform, or proportional to the counts."""
        if self.weighting == "uniform":
            return super().weights(counts, n)
        counted = self._counted(counts, n)
        total = counted.sum()
        if not (torch.isfinite(total) and total > 0):
            raise FieldError("counts", counted.tolist(), "must be finite, not negative, and not all 0")
        return counted / total

    def planned_weights(self, counts: Tensor | None, n: int, cohort: int) -> Tensor:
        """1/cohort, or a client's share of the declared bound: min(count, bound) / (bound * cohort)."""
        if self.weighting == "uniform":
            return super().planned_weights(counts, n, cohort)
        if self.max_examples is None:
            raise FieldError("max_examples", None, "formal noise needs a declared bound on a client's examples")
        return self._counted(counts, n) / (self.max_examples * cohort)

    def _counted(self, counts: Tensor | None, n: int) -> Tensor:
        if counts is None or len(counts) != n:
            raise FieldError("weighting", "examples", 'needs every reply to carry its count; use weighting="uniform"')
        counted = counts.to(torch.float64)
        return counted if self.max_examples is None else counted.clamp(max=self.max_examples)

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum, accumulated row by row in the given order and in the updates' own type.

        In float32 rounding adds to what one client moves, at most C / n of a uniform mean, about n 2^-24 of it: a
        thousandth at n = 20,000. Float64 sums would cost three times as much.
        """
        total = torch.zeros_like(updates[0])
        for start in range(0, len(total), _COLUMNS):
            columns = slice(start, start + _COLUMNS)
            for row, weight in zip(updates, weights.tolist(), strict=True):
                total[columns].add_(row[columns], alpha=weight)
        return total

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """C times the largest weight (twice that for replace-one)."""
        return float(weights.max()) * clip * (2.0 if relation == "replace-one" else 1.0)

    def lipschitz(self, weights: Tensor) -> float:
        """The largest weight."""
        return float(weights.max())
