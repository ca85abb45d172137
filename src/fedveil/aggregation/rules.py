"""Aggregation rules: FedAvg, FedMedian, FedAdam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.aggregation.base import Aggregator, WeightedMean
from fedveil.errors import FieldError, require_non_negative, require_positive


@dataclass(frozen=True)
class FedAvg(WeightedMean):
    """Federated averaging (McMahan et al. 2017, arXiv 1602.05629): the model moves by the mean update."""


@dataclass(frozen=True)
class FedMedian(Aggregator):
    """Coordinate-wise median (Yin et al. 2018, arXiv 1803.01498); an even number of updates takes the middle mean.

    One client moves each coordinate by at most its own change, so the sensitivity is C whatever n (C/2 for even n
    under zero-out, where only one of the two middle values moves by at most the change).
    """

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Median of each coordinate; the weights only say how many updates there are."""
        ordered = updates.sort(dim=0).values
        n = len(updates)
        middle = ordered[n // 2]
        return middle.clone() if n % 2 else (ordered[n // 2 - 1] + middle) / 2

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """C (odd) or C/2 (even), twice that for replace-one; C for add/remove, which changes the parity."""
        if relation == "add/remove":
            return clip
        base = clip if len(weights) % 2 else clip / 2
        return base * (2.0 if relation == "replace-one" else 1.0)


@dataclass(frozen=True)
class AdamState:
    """Moments of the server's optimiser: first and second, each [d]."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class FedAdam(WeightedMean):
    """Adam on the server (Reddi et al. 2021, arXiv 2003.00295, Algorithm 2), without bias correction.

    Parameters
    ----------
    lr : float
        Server learning rate eta.
    beta1, beta2 : float
        Decay of the moments, in [0, 1).
    tau : float
        Degree of adaptivity, added to the root of the second moment.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    identity_step: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check all."""
        super().__post_init__()
        require_positive("lr", self.lr)
        require_positive("tau", self.tau)
        for name in ("beta1", "beta2"):
            if require_non_negative(name, getattr(self, name)) >= 1:
                raise FieldError(name, getattr(self, name), "must be in [0, 1)")

    def init(self, dimension: int, dtype: torch.dtype) -> AdamState:
        """Zero moments."""
        return AdamState(torch.zeros(dimension, dtype=dtype), torch.zeros(dimension, dtype=dtype))

    def step(self, model: Tensor, update: Tensor, state: AdamState) -> tuple[Tensor, AdamState]:
        """One Adam step along the mean update."""
        first = self.beta1 * state.first + (1 - self.beta1) * update
        second = self.beta2 * state.second + (1 - self.beta2) * update.square()
        return model + self.lr * first / (second.sqrt() + self.tau), AdamState(first, second)
