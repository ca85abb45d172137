"""The optimisers of local training on stacked parameters; each client's state is its own and starts at zero."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # of Adam, as in torch.optim.Adam


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
    """Adam (Kingma and Ba, 2015) with torch's defaults."""

    def __init__(self, lr: float) -> None:
        self.lr, self._count = lr, 0
        self._mean = self._square = torch.empty(0)

    def step(self, values: Tensor, gradients: Tensor) -> None:
        """One step."""
        if not self._count:
            self._mean, self._square = torch.zeros_like(values), torch.zeros_like(values)
        self._count += 1
        n = len(values)
        mean = self._mean[:n].lerp_(gradients, 1 - BETA1)
        square = self._square[:n].mul_(BETA2).addcmul_(gradients, gradients, value=1 - BETA2)
        rate, correction = self.lr / (1 - BETA1**self._count), (1 - BETA2**self._count) ** 0.5
        # in the gradients' place: sqrt(square) / correction + eps
        torch.sqrt(square, out=gradients).div_(correction).add_(EPS)
        values.addcdiv_(mean, gradients, value=-rate)


def optimiser_of(name: str, lr: float, momentum: float) -> Optimiser:
    """A fresh optimiser by its name in `LocalTraining`."""
    return Adam(lr) if name == "adam" else SGD(lr, momentum)
