"""One block of clients, trained from start to end on stacked parameters."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from fedveil.learning.local import LocalTraining
from fedveil.learning.stacked.schedule import Schedule
from fedveil.learning.stacked.stack import Parameters, Stack
from fedveil.learning.stacked.stage import Weights
from fedveil.learning.streams import Key, stream

Before = Callable[[int, int], None]  # (step, active clients)


class ClientBlock:
    """Room for the parameters of a block of clients and its views; the next block is trained in the same room.

    Parameters
    ----------
    stack : Stack
        The model.
    local : LocalTraining
        Optimiser, rate, momentum, FedProx and loss.
    """

    def __init__(self, stack: Stack, local: LocalTraining) -> None:
        self.stack, self._local = stack, local
        self._direct = local.optimizer == "sgd" and not local.momentum
        self._model = torch.empty(0, 0)

    def run(self, starts: Tensor, x: Tensor, y: Tensor, plan: Schedule, before: Before) -> tuple[Parameters, Tensor]:
        """Train.

        Parameters
        ----------
        starts : Tensor
            [n, d]; of one model, expanded, the first step costs least.
        x, y : Tensor
            The clients' examples, joined.
        plan : Schedule
            Which of them when.
        before : callable
            Told (step, active clients) before each step, e.g. to draw its dropout; what it raises ends the training.

        Returns
        -------
        dict of str to Tensor
            [n, *shape] each, the trained parameters: read them before the next call.
        Tensor
            [n], mean loss of the last epoch.
        """
        n, shared = len(starts), starts.stride(0) == 0
        if n > len(self._model) or starts.dtype != self._model.dtype:
            self._grow(starts)
        if shared:
            self._model[0] = starts[0]
        begun = self._begun if shared else self.stack.cut(starts)
        if not (shared and self._direct):  # else the first step writes what it makes of the one model
            for name, value in self._values.items():
                value[:n].copy_(begun[name][:n])
        seen, optimiser = torch.zeros_like(plan.last), optimiser_of(self._local)
        for step, active in enumerate(plan.active):
            before(step, active)
            rows, shape = plan.rows[step, :active].reshape(-1), (active, plan.rows.shape[2])
            some, labels = (part.index_select(0, rows).view(*shape, *part.shape[1:]) for part in (x, y))
            weights = self._weights(active, shared and step == 0)
            losses = self.stack.descend(some, labels, plan.scale[step, :active], weights, str(self._local.loss))
            seen[step, :active] = losses
            if not self._direct or self._local.prox:
                self._follow(active, begun, optimiser)
        loss = sum(seen.mul_(plan.last).sum(2), seen.new_zeros(n))
        return {name: value[:n] for name, value in self._values.items()}, loss

    def _grow(self, starts: Tensor) -> None:
        """Make room for as many clients, each parameter's in one piece: products are faster on that than on rows."""
        n, blocks = len(starts), self.stack.layout.blocks
        self._model = starts.new_empty(1, starts.shape[1]).expand(n, -1)
        self._begun = self.stack.cut(self._model)
        self._values = {b.name: starts.new_empty(n, *b.shape) for b in blocks}
        self._gradients = self._values if self._direct else {k: v.clone() for k, v in self._values.items()}
        self._cut = dict[tuple[int, bool], list[Weights]]()

    def _weights(self, n: int, fresh: bool) -> list[Weights]:
        """The first n clients' parameters; fresh ones are those of the one model."""
        if (n, fresh) not in self._cut:
            # w - lr (g + prox (w - start)), the start is added afterwards
            lr, values = self._local.rate(), self._begun if fresh else self._values
            into = (-lr, 1 - lr * self._local.prox) if self._direct else (1.0, 0.0)
            self._cut[n, fresh] = self.stack.weights(values, self._gradients, n, *into)
        return self._cut[n, fresh]

    def _follow(self, n: int, begun: Parameters, optimiser: "Optimiser") -> None:
        """What is left of the first n clients' step: the proximal term, and the optimiser's own step."""
        values, gradients, starts = (
            [of[name][:n] for name in self._values] for of in (self._values, self._gradients, begun)
        )
        for value, gradient, start in zip(values, gradients, starts, strict=True) if self._local.prox else ():
            if self._direct:
                value.add_(start, alpha=self._local.rate() * self._local.prox)
            else:
                gradient.add_(value - start, alpha=self._local.prox)
        if not self._direct:
            optimiser.step(values, gradients)


def dropout_masks(stack: Stack, keys: Sequence[Key], plan: Schedule) -> Before:
    """Draw each client's dropout from its own stream, as its own batch would: (step, active clients) -> None.

    Parameters
    ----------
    stack : Stack
        Its dropout stages are told what to draw.
    keys : sequence of tuple of int
        Of the clients.
    plan : Schedule
        Their steps.
    """
    generators = [stream(key, "dropout") for key in keys if stack.dropouts]
    sizes = plan.sizes() if stack.dropouts else []

    def draw(step: int, active: int, shape: tuple[int, ...]) -> Tensor:
        uniform = torch.ones(active, plan.rows.shape[2], *shape)
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

    def step(self, values: list[Tensor], gradients: list[Tensor]) -> None:
        """Update the first n clients' parameters [n, *shape] in place; `gradients` may be used up."""


class SGD:
    """w <- w - lr v with v <- momentum v + g."""

    def __init__(self, lr: float, momentum: float) -> None:
        self.lr, self.momentum = lr, momentum
        self._velocities: list[Tensor] = []

    def step(self, values: list[Tensor], gradients: list[Tensor]) -> None:
        """One step."""
        self._velocities = self._velocities or [torch.zeros_like(value) for value in values]
        for value, gradient, velocity in zip(values, gradients, self._velocities, strict=True):
            value.add_(velocity[: len(value)].mul_(self.momentum).add_(gradient), alpha=-self.lr)


class Adam:
    """Adam (Kingma and Ba, 2015) with torch's defaults and torch's fused kernel; with weight decay it is AdamW."""

    def __init__(self, lr: float, weight_decay: float = 0.0) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self._means: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._counts: list[Tensor] = []

    def step(self, values: list[Tensor], gradients: list[Tensor]) -> None:
        """One step."""
        if not self._counts:
            self._means, self._squares = ([torch.zeros_like(value) for value in values] for _ in range(2))
            self._counts = [torch.zeros((), device=value.device) for value in values]
        n = len(values[0])
        adam(
            values,
            gradients,
            [mean[:n] for mean in self._means],
            [square[:n] for square in self._squares],
            [],
            self._counts,
            fused=values[0].device.type in ("cpu", "cuda"),
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
