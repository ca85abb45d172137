"""One block of clients, trained from start to end on stacked parameters."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from fedveil.learning.local import LocalTraining
from fedveil.learning.stacked.schedule import Schedule
from fedveil.learning.stacked.stack import Stack
from fedveil.learning.stacked.stage import Weights


class ClientBlock:
    """Parameters, gradients and views of a block.

    Parameters
    ----------
    stack : Stack
        The model.
    values : Tensor
        [n, d], the starts; becomes the trained parameters.
    local : LocalTraining
        Optimiser, rate, momentum, FedProx and loss.
    """

    def __init__(self, stack: Stack, values: Tensor, local: LocalTraining) -> None:
        self.stack, self.values, self._loss = stack, values, str(local.loss)
        self._prox, self._lr = local.prox, local.rate()
        self._direct = local.optimizer == "sgd" and not local.momentum
        self._start = values.clone() if local.prox else None
        self._optimiser = optimiser_of(local)
        self._gradients = None if self._direct else torch.empty_like(values)
        self._cut: dict[int, list[Weights]] = {}

    def run(self, x: Tensor, y: Tensor, plan: Schedule, before: Callable[[int, int], None] | None = None) -> Tensor:
        """Train.

        Parameters
        ----------
        x, y : Tensor
            The clients' examples, joined.
        plan : Schedule
            Which of them when.
        before : callable, optional
            Told (step, active clients) before each step, e.g. to draw its dropout; what it raises ends the training.

        Returns
        -------
        Tensor
            [n], mean loss of the last epoch.
        """
        total = torch.zeros(len(self.values), dtype=plan.last.dtype, device=x.device)
        for step, active in enumerate(plan.active):
            if before is not None:
                before(step, active)
            rows = plan.rows[step, :active].reshape(-1)
            shape = (active, plan.rows.shape[2])
            some = x.index_select(0, rows).view(*shape, *x.shape[1:])
            labels = y.index_select(0, rows).view(*shape, *y.shape[1:])
            losses = self._step(some, labels, plan.scale[step, :active])
            total[:active] += (losses.to(total.dtype) * plan.last[step, :active]).sum(1)
        return total

    def _step(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        n = len(x)
        losses = self.stack.descend(x, y, scale, self._weights(n), self._loss)
        if self._direct:
            if self._start is not None:
                self.values[:n].add_(self._start[:n], alpha=self._lr * self._prox)
            return losses
        assert self._gradients is not None
        gradients = self._gradients[:n]
        if self._start is not None:
            gradients.add_(self.values[:n] - self._start[:n], alpha=self._prox)
        self._optimiser.step(self.values[:n], gradients)
        return losses

    def _weights(self, n: int) -> list[Weights]:
        if n not in self._cut:
            values = self.values[:n]
            if self._direct:
                keep = 1 - self._lr * self._prox  # w - lr (g + prox (w - start)), the start is added afterwards
                self._cut[n] = self.stack.weights(values, values, -self._lr, keep)
            else:
                assert self._gradients is not None
                self._cut[n] = self.stack.weights(values, self._gradients[:n])
        return self._cut[n]


def dropout_masks(
    stack: Stack, generators: Sequence[torch.Generator], sizes: Sequence[Sequence[int]], width: int
) -> Callable[[int, int], None]:
    """Draw each client's dropout from its own stream, as its own batch would.

    Parameters
    ----------
    stack : Stack
        Its dropout stages are told what to draw.
    generators : sequence of torch.Generator
        One a client.
    sizes : sequence of sequence of int
        Examples in each client's batch, [T][n].
    width : int
        Places of a step.
    """

    def draw(step: int, active: int, shape: tuple[int, ...]) -> Tensor:
        uniform = torch.ones(active, width, *shape)
        for i in range(active):
            count = sizes[step][i]
            torch.rand((count, *shape), generator=generators[i], out=uniform[i, :count])
        return uniform

    def masks(step: int, active: int) -> None:
        for stage in stack.dropouts:
            stage.draw = partial(draw, step, active)

    return masks


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


def optimiser_of(local: LocalTraining) -> Optimiser:
    """A fresh optimiser; each client's state is its own and starts at zero."""
    if local.optimizer == "sgd":
        return SGD(local.rate(), local.momentum)
    return Adam(local.rate(), local.weight_decay if local.optimizer == "adamw" else 0.0)
