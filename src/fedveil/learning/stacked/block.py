"""One block of clients, trained from start to end on stacked parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fedveil.learning.stacked.optimisers import optimiser_of
from fedveil.learning.stacked.schedule import Schedule
from fedveil.learning.stacked.stack import Stack
from fedveil.learning.stacked.stage import Weights

Changed = Callable[[Tensor, int], Tensor]  # (gradients [m, d] or [m, b, d], step) -> gradients [m, d]


class ClientBlock:
    """Parameters, gradients and views of a block.

    Parameters
    ----------
    stack : Stack
        The model.
    values : Tensor
        [n, d], the starts; becomes the trained parameters.
    optimiser, lr, weight_decay, momentum, prox, loss
        As in `LocalTraining`.
    change : callable, optional
        Is given every gradient and returns the one to use.
    per_example : bool
        Give it the gradients of single examples, [m, b, d].
    half : bool
        Compute in bfloat16.
    """

    def __init__(
        self,
        stack: Stack,
        values: Tensor,
        *,
        optimiser: str,
        lr: float,
        weight_decay: float,
        momentum: float,
        prox: float,
        loss: str,
        change: Changed | None = None,
        per_example: bool = False,
        half: bool = False,
    ) -> None:
        self.stack, self.values, self._loss, self._change = stack, values, loss, change
        self._per_example, self._half, self._prox, self._lr = per_example, half, prox, lr
        self._direct = optimiser == "sgd" and not momentum and change is None and not half
        self._start = values.clone() if prox else None
        self._optimiser = optimiser_of(optimiser, lr, momentum, weight_decay)
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
            losses = self._step(some, labels, plan.scale[step, :active], step)
            total[:active] += (losses.to(total.dtype) * plan.last[step, :active]).sum(1)
        return total

    def _step(self, x: Tensor, y: Tensor, scale: Tensor, step: int) -> Tensor:
        n = len(x)
        if self._direct:
            losses = self.stack.descend(x, y, scale, self._weights(n), self._loss)
            if self._start is not None:
                self.values[:n].add_(self._start[:n], alpha=self._lr * self._prox)
            return losses
        gradients, losses = self._gradient(x, y, scale)
        if self._change is not None:
            gradients = self._change(gradients, step)
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

    def _gradient(self, x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients [n, d] (a buffer), or [n, b, d] of single examples; and losses [n, b]."""
        assert self._gradients is not None
        n, b = scale.shape
        descend = partial(self.stack.descend, loss=self._loss)
        if self._per_example:
            alone = self.values[:n].repeat_interleave(b, 0)
            into = torch.empty_like(alone)
            ones = torch.ones(n * b, 1, dtype=scale.dtype, device=scale.device)
            flat = (x.reshape(n * b, 1, *x.shape[2:]), y.reshape(n * b, 1, *y.shape[2:]))
            losses = descend(*flat, ones, self.stack.weights(alone, into))
            return into.view(n, b, -1), losses.view(n, b)
        if self._half:
            values = self.values[:n].to(torch.bfloat16)
            into = torch.empty_like(values)
            some = x.to(torch.bfloat16) if x.is_floating_point() else x
            losses = descend(some, y, scale, self.stack.weights(values, into))
            return self._gradients[:n].copy_(into), losses
        return self._gradients[:n], descend(x, y, scale, self._weights(n))


def dropout_masks(
    stack: Stack, generators: Sequence[torch.Generator], sizes: Sequence[Sequence[int]], width: int, *, alone: bool
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
    alone : bool
        Whether the stages see every example as a client of its own.
    """

    def draw(step: int, active: int, shape: tuple[int, ...]) -> Tensor:
        uniform = torch.ones(active, width, *shape)
        for i in range(active):
            count = sizes[step][i]
            torch.rand((count, *shape), generator=generators[i], out=uniform[i, :count])
        return uniform.view(active * width, 1, *shape) if alone else uniform

    def masks(step: int, active: int) -> None:
        for stage in stack.dropouts:
            stage.draw = partial(draw, step, active)

    return masks
