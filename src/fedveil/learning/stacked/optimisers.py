"""The optimisers of local training on stacked parameters; each client's state is its own and starts at zero."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam


class Optimiser(Protocol):
    """Turns gradients into steps."""

    def step(self, values: Tensor, gradients: Tensor) -> None:
        """Update the first n clients' parameters [n, d] in place; `gradients` may be used up."""


class SGD:
    """w <- w - lr v with v <- momentum v + g."""

    def __init__(self, lr: float, momentum: float) -> None:
        self.lr, self.momentum = lr, momentum
        self._velocity: Tensor | None = None

    def step(self, values: Tensor, gradients: Tensor) -> None:
        """One step."""
        if self.momentum:
            if self._velocity is None:
                self._velocity = torch.zeros_like(values)
            gradients = self._velocity[: len(values)].mul_(self.momentum).add_(gradients)
        values.add_(gradients, alpha=-self.lr)


class Adam:
    """Adam (Kingma and Ba, 2015) with torch's defaults and torch's fused kernel; with weight decay it is AdamW."""

    def __init__(self, lr: float, weight_decay: float = 0.0) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self._state: tuple[Tensor, Tensor] | None = None
        self._count = torch.zeros(())

    def step(self, values: Tensor, gradients: Tensor) -> None:
        """One step."""
        if self._state is None:
            self._state = torch.zeros_like(values), torch.zeros_like(values)
            self._count = torch.zeros((), device=values.device)
        n = len(values)
        adam(
            [values],
            [gradients],
            [self._state[0][:n]],
            [self._state[1][:n]],
            [],
            [self._count],
            fused=values.device.type in ("cpu", "cuda"),
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.lr,
            weight_decay=self.weight_decay,
            decoupled_weight_decay=self.weight_decay > 0,
            eps=1e-8,
            maximize=False,
        )


def optimiser_of(name: str, lr: float, momentum: float, weight_decay: float) -> Optimiser:
    """A fresh optimiser by its name in `LocalTraining`."""
    return SGD(lr, momentum) if name == "sgd" else Adam(lr, weight_decay if name == "adamw" else 0.0)
