"""One block of clients on stacked parameters: which examples each sees when, and its steps from start to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedveil.learning.local import LocalTraining
from fedveil.learning.stacked.stack import Parameters, Stack
from fedveil.learning.stacked.stages import Weights
from fedveil.learning.streams import Key, epoch_orders, stream
from fedveil.learning.training import adam_step

Before = Callable[[int, int], None]  # (step, active clients)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of n clients with different numbers of examples, from the one with the most steps on.

    Attributes
    ----------
    rows : Tensor
        [T, n, b] int64, rows of the clients' joined examples; a place nobody fills repeats some row of the client.
    scale : Tensor
        [T, n, b], the weight of each place's loss: one over the size of the client's batch, or 0.
    last : Tensor
        [T, n, b], the weight of each place in the mean loss of the last epoch.
    active : list of int
        Clients still training in each step: always the first ones.
    """

    rows: Tensor
    scale: Tensor
    last: Tensor
    active: list[int]

    def sizes(self) -> list[list[int]]:
        """Examples in each client's batch, [T][n]."""
        return (self.scale > 0).sum(2).tolist()

    def to(self, device: torch.device) -> "Schedule":
        """The same with its tensors elsewhere."""
        moved = (self.rows.to(device), self.scale.to(device), self.last.to(device))
        return Schedule(*moved, self.active)


def schedule(
    examples: Sequence[int], keys: Sequence[Key], epochs: int, batch_size: int, dtype: torch.dtype
) -> Schedule:
    """Draw every client's order of examples and cut it into batches.

    Parameters
    ----------
    examples : sequence of int
        At least 1 each; ordered so that the number of batches never grows.
    keys : sequence of tuple of int
        Of the clients.
    epochs, batch_size : int
        As in `LocalTraining`.
    dtype : torch.dtype
        Of the weights.
    """
    counts = np.asarray(examples, np.int64)
    per_epoch = -(-counts // batch_size)
    width, steps = min(batch_size, int(counts.max())), epochs * int(per_epoch.max())
    epoch, step = np.divmod(np.arange(steps)[:, None], per_epoch)  # [T, n], of each client's own epochs
    remaining = np.where(epoch < epochs, counts - step * batch_size, 0)  # examples of its epoch, before the step
    place = np.arange(width)
    filled = place < remaining[:, :, None]
    of_epoch = np.minimum(step[:, :, None] * batch_size + place, counts.max() - 1)
    order = epoch_orders(keys, counts, epochs)
    drawn = order[np.arange(len(counts))[:, None], np.minimum(epoch, epochs - 1)[:, :, None], of_epoch]
    rows = np.where(filled, drawn, 0) + (np.cumsum(counts) - counts)[:, None]
    scale = filled * (1 / np.clip(remaining, 1, batch_size))[:, :, None]
    last = filled * ((epoch == epochs - 1) / counts)[:, :, None]
    weights = (torch.from_numpy(scale).to(dtype), torch.from_numpy(last).to(dtype))
    return Schedule(torch.from_numpy(rows), *weights, (epoch < epochs).sum(1).tolist())


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
            Called with (step, active clients) before each step, e.g. to draw its dropout; what it raises ends training.

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
        begun = self._begun if shared else self.stack.layout.views(starts)
        if not (shared and self._direct):  # else the first step writes what it makes of the one model
            for name, value in self._values.items():
                value[:n].copy_(begun[name][:n])
        seen, optimiser = torch.zeros_like(plan.last), Optimiser(self._local)
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
        self._begun = self.stack.layout.views(self._model)
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
        Whose dropout stages get what they draw.
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


class Optimiser:
    """The optimiser's own step for many clients, each with a state of its own that starts at zero.

    SGD is w <- w - lr v with v <- momentum v + g; Adam (Kingma and Ba, 2015), and with weight decay AdamW, is torch's.

    Parameters
    ----------
    local : LocalTraining
        Which optimiser.
    """

    def __init__(self, local: LocalTraining) -> None:
        self._local, self._moments, self._counts = local, list[list[Tensor]](), list[Tensor]()

    def step(self, values: list[Tensor], gradients: list[Tensor]) -> None:
        """Update the first n clients' parameters [n, *shape] in place; `gradients` may be used up."""
        local, n, lr = self._local, len(values[0]), self._local.rate()
        plain = local.optimizer == "sgd"
        if not self._counts:
            self._moments = [[torch.zeros_like(value) for value in values] for _ in range(1 if plain else 2)]
            self._counts = [torch.zeros((), device=value.device) for value in values]
        first, *others = [[moment[:n] for moment in moments] for moments in self._moments]
        if not plain:
            adam_step(local, lr, values, gradients, first, *others, self._counts)
            return
        for value, gradient, velocity in zip(values, gradients, first, strict=True):
            value.add_(velocity.mul_(local.momentum).add_(gradient), alpha=-lr)
