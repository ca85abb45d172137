"""Options of a client's training in a round, and its result."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedveil.checks import Count, Fraction, Natural, NonNegative, Parameters, Share
from fedveil.errors import FieldError, require_a, require_non_negative, require_positive
from fedveil.learning.losses import LossFunction, loss_of
from fedveil.methods.facts import NoisySteps


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Parameters):
    """Options of a client's local training in a round.

    Parameters
    ----------
    epochs : int
        Number of passes over the client's examples.
    batch_size : int
        Examples in a step; the last batch of an epoch may be shorter and is kept.
    lr : float or callable
        Learning rate, or a function of the round (from 1): ``lambda r: 0.1 if r < 10 else 0.01``. In TOML it is a
        number; `decay`, `decay_every` and `cosine_rounds` change it from round to round.
    optimizer : {"sgd", "adam", "adamw"}
        Optimiser; its state starts anew in every round.
    weight_decay : float
        Weight decay of AdamW.
    momentum : float
        Momentum of SGD, at least 0 and below 1.
    prox : float
        Mu of FedProx: every step adds mu (w - start) to the gradient. 0 is FedAvg.
    slack : float
        Euclidean distance from the start within which FedProx's term is off (BLUR, Cheng et al. 2022, arXiv
        2203.03106).
    keep : float
        Share of the update's coordinates that are kept, the largest ones; the others become 0 (LUS, the same paper).
    decay : float
        Factor that multiplies the learning rate after every `decay_every` rounds.
    decay_every : int
        Number of rounds between decays; 1 gives exponential decay, more give steps.
    cosine_rounds : int
        If above 0, the learning rate falls along half a cosine over this many rounds, and then stays at its last value.
    schedule : {"constant", "cosine"}
        Schedule of the rate within a round. "cosine": the rate rises over the first tenth of the steps, then falls to 0
        along half a cosine. So an optimiser with a fresh state takes no long first step.
    loss : {"cross_entropy", "mse", "rmse", "l1", "huber", "poisson", "bce", "hazards", "dice", "soft_dice"}
        Mean over the batch; rmse is the root of the batch's mean squared error. Options follow a name, declared and
        public: ``"cross_entropy(weight=[1, 3])"``. Or a loss of yours: a function ``loss(outputs, y)`` that returns the
        batch's mean, its name in `fedveil.learning.LOSSES`, or ``"package.module:function"``. Record and person level
        allow the names but "rmse", a PyTorch loss with ``reduction="mean"``, or `fedveil.learning.example_loss`.
    class_weights : sequence of float
        Weight of each class at record and person level, declared and public. An example's *clipped* gradient is
        multiplied by its weight over the largest weight, so the promise stays the same. The clip would undo weights
        inside the loss. In a person's mean her examples have these weights, and the mean is multiplied by the
        average of them.

    Raises
    ------
    FieldError
        For any other value.

    Examples
    --------
    >>> fv.LocalTraining(epochs=2, lr=0.05, optimizer="adam").epochs
    2
    """

    epochs: Count = 1
    batch_size: Count = 32
    lr: float | Callable[[int], float] = 0.1
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    weight_decay: NonNegative = 0.01
    momentum: Fraction = 0.0
    prox: NonNegative = 0.0
    slack: NonNegative = 0.0
    keep: Share = 1.0
    decay: Share = 1.0
    decay_every: Count = 1
    cosine_rounds: Natural = 0
    schedule: Literal["constant", "cosine"] = "constant"
    loss: str | LossFunction = "cross_entropy"
    class_weights: Sequence[float] = ()

    def __post_init__(self) -> None:
        """Refuse options that cannot be run."""
        super().__post_init__()
        if not callable(self.lr):
            require_positive("lr", self.lr)
        elif isinstance(self.lr, type):
            raise FieldError(
                "lr",
                self.lr.__name__,
                "is a class: write a function of the round, lambda r: 0.1 / r",
            )
        elif self.decay != 1 or self.cosine_rounds:
            raise FieldError(
                "lr",
                "a function",
                "says the rate of every round: leave out decay and cosine_rounds",
            )
        if callable(self.lr):
            require_non_negative("lr(1)", self.lr(1))
        if self.weight_decay != 0.01 and self.optimizer != "adamw":
            accepted = f'is of "adamw"; {self.optimizer} has none: leave it out'
            raise FieldError("weight_decay", self.weight_decay, accepted)
        if isinstance(self.loss, type):
            raise FieldError(
                "loss", self.loss.__name__, f"is a class: write {self.loss.__name__}()"
            )
        loss_of(self.loss)
        require_a("class_weights", self.class_weights, (list, tuple), "must be a list of numbers")
        object.__setattr__(self, "class_weights", tuple(self.class_weights))
        for i, weight in enumerate(self.class_weights):
            require_positive(f"class_weights[{i}]", weight)
        if self.momentum and self.optimizer != "sgd":
            raise FieldError(
                "momentum", self.momentum, f"is SGD's; {self.optimizer} has none: set it to 0"
            )

    def rate(self, round_: int = 1, step: int = 0, steps: int = 1) -> float:
        """Return the learning rate of step `step` (from 0) of `steps`, in round `round_` (from 1)."""
        rate = (
            require_non_negative(f"lr({round_})", self.lr(round_)) if callable(self.lr) else self.lr
        )
        if self.decay < 1:
            rate *= self.decay ** ((round_ - 1) // self.decay_every)
        if self.cosine_rounds:
            done = min(round_, self.cosine_rounds) - 1
            rate *= (1 + math.cos(math.pi * done / self.cosine_rounds)) / 2
        if self.schedule == "constant":
            return rate
        rising = (step + 1) / math.ceil(0.1 * steps)
        falling = (1 + math.cos(math.pi * ((step + 0.5) / steps))) / 2
        return rate * min(rising, falling)

    @property
    def unusual(self) -> str:
        """Name of the first option that only the sequential trainer supports, or ""; a callable `lr` is such an option."""
        usual = {
            "slack": 0.0,
            "keep": 1.0,
            "decay": 1.0,
            "cosine_rounds": 0,
            "schedule": "constant",
        }
        for name, value in usual.items():
            if getattr(self, name) != value:
                return name
        return "lr" if callable(self.lr) else ""


@dataclass(frozen=True, eq=False)
class Trained:
    """Result of a client's local training. It is private: only what `protect` makes of it leaves the client.

    Attributes
    ----------
    model : Tensor
        [d], parameters of the client after training, on the CPU.
    examples : int
        Number of training examples.
    loss : float
        Mean training loss over the last epoch, as seen while training (0 for a client without examples).
    noised : NoisySteps, optional
        Noise inside `model`, if the trainer added some.
    failure : Exception, optional
        Error that made training fail, for the client's own log. `model` is then only noise.
    buffers : mapping of str to Tensor, optional
        Running statistics and counters after training, if the layout keeps them with each client.
    total : Tensor, optional
        [d] int64, sum of clipped contributions on a grid, if training returns such a sum. `model` is then the start.
    """

    model: Tensor
    examples: int
    loss: float
    noised: NoisySteps | None = None
    failure: Exception | None = None
    buffers: Mapping[str, Tensor] | None = None
    total: Tensor | None = None
