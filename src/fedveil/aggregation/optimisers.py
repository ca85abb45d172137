"""Rules with an optimiser on the server: FedAvgM, FedOpt, FedAdam, FedAdagrad, FedYogi.

All of them reduce by the mean; `step` takes the mean update as the negative pseudo-gradient (Reddi et al. 2021, arXiv
2003.00295, Algorithm 2). In the formal order their input is already noised, so they are post-processing. In the printed
order (noise on the output) they are heuristic, except FedOpt with lr = 1, whose step only adds the update.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.aggregation.base import NoState, WeightedMean
from fedveil.checks import Fraction, Positive


@dataclass(frozen=True)
class FedOpt(WeightedMean):
    """Plain server optimiser: the model moves by lr times the mean update (Reddi et al. 2021, Algorithm 1 with SGD).

    With lr = 1 it is FedAvg. Flower's base class `FedOpt` also does FedAvg, and ignores its moments.

    Parameters
    ----------
    lr : float
        Server learning rate.

    Examples
    --------
    >>> rule = fv.FedOpt(lr=0.5)
    >>> rule.step(torch.zeros(2), torch.ones(2), rule.init(2, torch.float32))[0]
    tensor([0.5000, 0.5000])
    """

    lr: Positive = 1.0

    @property
    def identity_step(self) -> bool:  # type: ignore[override]
        """Whether the step only adds the update: true for lr = 1."""
        return self.lr == 1.0

    def step(
        self,
        model: Tensor,
        update: Tensor,
        state: NoState,
    ) -> tuple[Tensor, NoState]:
        """Move the model by lr times the update."""
        return model + self.lr * update, state


@dataclass(frozen=True)
class MomentumState:
    """State of FedAvgM: the accumulated update (velocity), [d]."""

    velocity: Tensor


@dataclass(frozen=True)
class FedAvgM(WeightedMean):
    """Server momentum (Hsu et al. 2019, arXiv 1909.06335): v <- momentum v + update, model + lr v.

    Parameters
    ----------
    lr : float
        Server learning rate.
    momentum : float
        Decay of the velocity, in [0, 1).

    Examples
    --------
    >>> rule = fv.FedAvgM(momentum=0.5)
    >>> theta, state = rule.step(torch.zeros(2), torch.ones(2), rule.init(2, torch.float32))
    >>> theta, _ = rule.step(theta, torch.ones(2), state)
    >>> theta.round(decimals=3)
    tensor([2.5000, 2.5000])
    """

    lr: Positive = 1.0
    momentum: Fraction = 0.9

    identity_step: ClassVar[bool] = False

    def init(self, dimension: int, dtype: torch.dtype) -> MomentumState:
        return MomentumState(torch.zeros(dimension, dtype=dtype))

    def step(
        self,
        model: Tensor,
        update: Tensor,
        state: MomentumState,
    ) -> tuple[Tensor, MomentumState]:
        """Move the model by one step with momentum."""
        velocity = self.momentum * state.velocity + update
        return model + self.lr * velocity, MomentumState(velocity)


@dataclass(frozen=True)
class AdaptiveState:
    """State of an adaptive optimiser: first and second moment, each [d]."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class _Adaptive(WeightedMean):
    """Common base of FedAdam, FedAdagrad and FedYogi.

    Parameters
    ----------
    lr : float
        Server learning rate eta.
    beta1, beta2 : float
        Decay of the moments, in [0, 1).
    tau : float
        Degree of adaptivity, added to the root of the second moment.
    """

    lr: Positive = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    tau: Positive = 1e-3

    identity_step: ClassVar[bool] = False

    def init(self, dimension: int, dtype: torch.dtype) -> AdaptiveState:
        return AdaptiveState(
            torch.zeros(dimension, dtype=dtype), torch.zeros(dimension, dtype=dtype)
        )

    def step(
        self,
        model: Tensor,
        update: Tensor,
        state: AdaptiveState,
    ) -> tuple[Tensor, AdaptiveState]:
        """Move the model by one adaptive step along the mean update."""
        first = self.beta1 * state.first + (1 - self.beta1) * update
        second = self._second(state.second, update.square())
        return model + self.lr * first / (second.sqrt() + self.tau), AdaptiveState(first, second)

    @abstractmethod
    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        """Return the next second moment from the last one and the squared update."""


@dataclass(frozen=True)
class FedAdam(_Adaptive):
    """Adam on the server, without bias correction as in the paper; Flower multiplies lr by a factor for each round.

    Examples
    --------
    >>> rule = fv.FedAdam(lr=0.05)
    >>> theta, state = rule.step(torch.zeros(2), torch.ones(2), rule.init(2, torch.float32))
    >>> theta, _ = rule.step(theta, torch.ones(2), state)
    >>> theta.round(decimals=3)
    tensor([0.1160, 0.1160])
    """

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * second + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedAdagrad(_Adaptive):
    """Adagrad on the server: the second moment is a plain sum, so beta2 is not used.

    Examples
    --------
    >>> rule = fv.FedAdagrad(lr=0.05)
    >>> theta, state = rule.step(torch.zeros(2), torch.ones(2), rule.init(2, torch.float32))
    >>> theta, _ = rule.step(theta, torch.ones(2), state)
    >>> theta.round(decimals=3)
    tensor([0.0850, 0.0850])
    """

    beta1: float = 0.0

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return second + square


@dataclass(frozen=True)
class FedYogi(_Adaptive):
    """Yogi on the server: the second moment moves towards the squared update by (1 - beta2) times that square.

    Examples
    --------
    >>> rule = fv.FedYogi(lr=0.05)
    >>> theta, state = rule.step(torch.zeros(2), torch.ones(2), rule.init(2, torch.float32))
    >>> theta, _ = rule.step(theta, torch.ones(2), state)
    >>> theta.round(decimals=3)
    tensor([0.1160, 0.1160])
    """

    lr: float = 0.01

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return second - (1 - self.beta2) * square * torch.sign(second - square)
