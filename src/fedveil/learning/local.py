"""What a client does in a round, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedveil.errors import FieldError, Suggesting, require_choice, require_count, require_non_negative, require_positive
from fedveil.learning.losses import LOSSES
from fedveil.learning.streams import Key
from fedveil.methods.facts import NoisySteps


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Suggesting):
    """What a client does with the model it receives.

    Parameters
    ----------
    epochs : int
        Passes over the client's examples.
    batch_size : int
        Examples a step; the last batch of an epoch may be shorter and is kept.
    lr : float
        Learning rate.
    optimizer : {"sgd", "adam"}
        Its state is fresh in every round.
    momentum : float
        Of SGD, at least 0 and below 1.
    prox : float
        The mu of FedProx: every step adds mu (w - start) to the gradient. 0 is FedAvg.
    slack : float
        The distance from the start within which that term is silent: BLUR of Cheng et al. 2022 (arXiv 2203.03106).
    keep : float
        Share of the update's coordinates that are kept, the longest ones; the others become 0 (LUS, the same paper).
    decay : float
        The learning rate of round r is lr * decay^(r - 1).
    schedule : {"constant", "cosine"}
        Of the rate within a round: "cosine" lets it rise over the first tenth of the steps and then fall to 0 along
        half a cosine, so that an optimiser that begins anew takes no long first step.
    loss : {"cross_entropy", "mse", "rmse", "dice", "soft_dice"}
        Mean over the batch; rmse is the root of the batch's mean squared error.

    Raises
    ------
    FieldError
        For any other value.
    """

    epochs: int = 1
    batch_size: int = 32
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.0
    prox: float = 0.0
    slack: float = 0.0
    keep: float = 1.0
    decay: float = 1.0
    schedule: str = "constant"
    loss: str = "cross_entropy"

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        require_count("epochs", self.epochs)
        require_count("batch_size", self.batch_size)
        require_positive("lr", self.lr)
        require_choice("optimizer", self.optimizer, ("sgd", "adam"))
        require_choice("schedule", self.schedule, ("constant", "cosine"))
        require_choice("loss", self.loss, LOSSES)
        require_non_negative("prox", self.prox)
        require_non_negative("slack", self.slack)
        for name in ("keep", "decay"):
            if require_positive(name, getattr(self, name)) > 1:
                raise FieldError(name, getattr(self, name), "must be above 0 and at most 1")
        if require_non_negative("momentum", self.momentum) >= 1:
            raise FieldError("momentum", self.momentum, "must be at least 0 and below 1")
        if self.momentum and self.optimizer != "sgd":
            raise FieldError("momentum", self.momentum, f"is SGD's; {self.optimizer} has none: set it to 0")

    def rate(self, round_: int, step: int, steps: int) -> float:
        """Learning rate of step `step` from 0, of so many in the round `round_` from 1."""
        rate = self.lr * self.decay ** (round_ - 1) if self.decay < 1 else self.lr
        if self.schedule == "constant":
            return rate
        rising, done = (step + 1) / math.ceil(0.1 * steps), (step + 0.5) / steps
        return rate * min(rising, (1 + math.cos(math.pi * done)) / 2)

    @property
    def unusual(self) -> str:
        """The first of `slack`, `keep`, `decay` and `schedule` set, which one client after another follows alone."""
        usual = {"slack": 0.0, "keep": 1.0, "decay": 1.0, "schedule": "constant"}
        return next((name for name, value in usual.items() if getattr(self, name) != value), "")


@dataclass(frozen=True, eq=False)
class Trained:
    """What local training gives; nothing of it leaves a client before `protect`.

    Attributes
    ----------
    model : Tensor
        [d], the client's parameters after training, on the CPU.
    examples : int
        Examples trained on.
    loss : float
        Mean training loss over the last epoch, as seen while training (0 for a client without examples).
    noised : NoisySteps, optional
        The noise inside `model`, where the trainer added some.
    failure : Exception, optional
        Why `model` holds noise alone; for the client's own log.
    buffers : mapping of str to Tensor, optional
        The running statistics and counters that training left, where the layout keeps such with each client.
    """

    model: Tensor
    examples: int
    loss: float
    noised: NoisySteps | None = None
    failure: Exception | None = None
    buffers: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class StepInfo:
    """Where in the training a gradient comes from: the client's key, epoch and step from 0, examples of the batch."""

    key: Key
    epoch: int
    step: int
    examples: int
