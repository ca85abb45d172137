"""Training of one block of clients on stacked parameters: the order of examples, and all steps."""

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
    """Batches of n clients with different numbers of examples, for T steps; the client with the most steps is the first.

    Attributes
    ----------
    rows : Tensor
        [T, n, b] int64, row numbers in the clients' joined examples; an empty place repeats a row of the client.
    scale : Tensor
        [T, n, b], weight of each place's loss: 1 over the size of the client's batch, or 0.
    last : Tensor
        [T, n, b], weight of each place in the mean loss of the last epoch.
    active : list of int
        Number of clients still training in each step; they are always the first ones.
    """

    rows: Tensor
    scale: Tensor
    last: Tensor
    active: list[int]

    def sizes(self) -> list[list[int]]:
        """Return the number of examples in each client's batch, [T][n]."""
        filled = self.scale > 0
        return filled.sum(2).tolist()

    def to(self, device: torch.device) -> "Schedule":
        """Copy the schedule to another device."""
        return Schedule(
            self.rows.to(device),
            self.scale.to(device),
            self.last.to(device),
            self.active,
        )


def schedule(
    examples: Sequence[int],
    keys: Sequence[Key],
    epochs: int,
    batch_size: int,
    dtype: torch.dtype,
) -> Schedule:
    """Draw each client's order of examples, and cut it into batches.

    Parameters
    ----------
    examples : sequence of int
        Number of examples of each client, at least 1. Clients must be sorted by falling number of batches.
    keys : sequence of tuple of int
        Keys of the clients.
    epochs, batch_size : int
        As in `LocalTraining`.
    dtype : torch.dtype
        Type of the weights.
    """
    counts = np.asarray(examples, np.int64)
    most = int(counts.max())
    batches = -(-counts // batch_size)  # batches of one epoch
    steps = epochs * int(batches.max())
    epoch, batch = np.divmod(
        np.arange(steps)[:, None], batches
    )  # [T, n], within each client's own epochs
    training = epoch < epochs
    remaining = np.where(
        training, counts - batch * batch_size, 0
    )  # examples of the epoch before this step
    place = np.arange(min(batch_size, most))
    filled = place < remaining[:, :, None]
    at = np.minimum(batch[:, :, None] * batch_size + place, most - 1)
    client = np.arange(len(counts))[:, None]
    own_epoch = np.minimum(epoch, epochs - 1)[:, :, None]
    drawn = epoch_orders(keys, counts, epochs)[client, own_epoch, at]
    offsets = np.cumsum(counts) - counts
    rows = np.where(filled, drawn, 0) + offsets[:, None]
    of_batch = 1 / np.clip(remaining, 1, batch_size)
    of_epoch = (epoch == epochs - 1) / counts
    scale = filled * of_batch[:, :, None]
    last = filled * of_epoch[:, :, None]
    return Schedule(
        torch.from_numpy(rows),
        torch.from_numpy(scale).to(dtype),
        torch.from_numpy(last).to(dtype),
        training.sum(1).tolist(),
    )


class ClientBlock:
    """Trainer of one block of clients at a time; all blocks use the same memory.

    Parameters
    ----------
    stack : Stack
        Model as a stack.
    local : LocalTraining
        Options of training: optimiser, rate, momentum, FedProx and loss.
    """

    def __init__(self, stack: Stack, local: LocalTraining) -> None:
        self.stack = stack
        self._local = local
        self._direct = (
            local.optimizer == "sgd" and not local.momentum
        )  # a backward pass is then a step
        self._model = torch.empty(0, 0)

    def run(
        self,
        starts: Tensor,
        x: Tensor,
        y: Tensor,
        plan: Schedule,
        before: Before,
    ) -> tuple[Parameters, Tensor]:
        """Train the clients of the block.

        Parameters
        ----------
        starts : Tensor
            [n, d], initial parameters. The first step is cheapest if they are one expanded model.
        x, y : Tensor
            Joined examples and labels of the clients.
        plan : Schedule
            Schedule of the examples.
        before : callable
            Called with (step, active clients) before each step, e.g. to draw dropout masks; an error in it ends
            training.

        Returns
        -------
        dict of str to Tensor
            Trained parameters, [n, *shape] each; read them before the next call.
        Tensor
            [n], mean loss of the last epoch.
        """
        shared = starts.stride(0) == 0
        begun = self._begin(starts, shared)
        seen = torch.zeros_like(plan.last)
        optimiser = Optimiser(self._local)
        loss = str(self._local.loss)
        width = plan.rows.shape[2]
        for step, active in enumerate(plan.active):
            before(step, active)
            rows = plan.rows[step, :active].reshape(-1)
            inputs = x.index_select(0, rows).view(active, width, *x.shape[1:])
            labels = y.index_select(0, rows).view(active, width, *y.shape[1:])
            weights = self._weights(active, shared and step == 0)
            seen[step, :active] = self.stack.descend(
                inputs, labels, plan.scale[step, :active], weights, loss
            )
            if self._local.prox:
                self._pull(active, begun)
            if not self._direct:
                optimiser.step(
                    self._first(self._values, active), self._first(self._gradients, active)
                )
        losses = sum(seen.mul_(plan.last).sum(2), seen.new_zeros(len(starts)))
        return {name: value[: len(starts)] for name, value in self._values.items()}, losses

    def _begin(self, starts: Tensor, shared: bool) -> Parameters:
        """Copy the initial parameters to the memory of training, and return them by name."""
        n = len(starts)
        if n > len(self._model) or starts.dtype != self._model.dtype:
            self._grow(starts)
        if shared:
            self._model[0] = starts[0]
            begun = self._begun
        else:
            begun = self.stack.layout.views(starts)
        if not (
            shared and self._direct
        ):  # otherwise the first step writes its result from the one model
            for name, value in self._values.items():
                value[:n].copy_(begun[name][:n])
        return begun

    def _grow(self, starts: Tensor) -> None:
        """Reserve memory for the parameters of this many clients; one tensor for each parameter makes products fast."""
        n = len(starts)
        self._model = starts.new_empty(1, starts.shape[1]).expand(n, -1)
        self._begun = self.stack.layout.views(self._model)
        self._values: Parameters = {}
        for block in self.stack.layout.blocks:
            self._values[block.name] = starts.new_empty(n, *block.shape)
        self._gradients = self._values
        if not self._direct:
            self._gradients = {name: value.clone() for name, value in self._values.items()}
        self._views = dict[tuple[int, bool], list[Weights]]()

    def _weights(self, n: int, fresh: bool) -> list[Weights]:
        """Return the first n clients' parameters, stage by stage; with `fresh`, those of the one common model."""
        known = self._views.get((n, fresh))
        if known is not None:
            return known
        values = self._begun if fresh else self._values
        alpha, beta = 1.0, 0.0
        if self._direct:  # w - lr (g + prox (w - start)); the start is added afterwards
            alpha = -self._local.rate()
            beta = 1 - self._local.rate() * self._local.prox
        weights = self.stack.weights(values, self._gradients, n, alpha, beta)
        self._views[n, fresh] = weights
        return weights

    def _pull(self, n: int, begun: Parameters) -> None:
        """Add FedProx's proximal term to the step of the first n clients."""
        prox = self._local.prox
        for name, value in self._values.items():
            start = begun[name][:n]
            if self._direct:
                value[:n].add_(start, alpha=self._local.rate() * prox)
            else:
                self._gradients[name][:n].add_(value[:n] - start, alpha=prox)

    def _first(self, of: Parameters, n: int) -> list[Tensor]:
        return [of[name][:n] for name in self._values]


def dropout_masks(stack: Stack, keys: Sequence[Key], plan: Schedule) -> Before:
    """Return a function (step, active clients) that draws dropout masks, each client's from its own random stream.

    Parameters
    ----------
    stack : Stack
        Stack whose dropout stages get the masks.
    keys : sequence of tuple of int
        Keys of the clients.
    plan : Schedule
        Steps of the clients.
    """
    if not stack.dropouts:
        return _no_masks
    generators = [stream(key, "dropout") for key in keys]
    sizes = plan.sizes()
    width = plan.rows.shape[2]

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


def _no_masks(step: int, active: int) -> None:
    """Do nothing, as the model has no dropout."""


class Optimiser:
    """Optimiser for many clients at once; each client has its own state, which starts at zero.

    SGD: w <- w - lr v with v <- momentum v + g. Adam (Kingma and Ba, 2015) and AdamW are PyTorch's.

    Parameters
    ----------
    local : LocalTraining
        Options of the optimiser.
    """

    def __init__(self, local: LocalTraining) -> None:
        self._local = local
        self._is_sgd = local.optimizer == "sgd"
        self._moments: list[list[Tensor]] = []
        self._counts: list[Tensor] = []

    def step(self, values: list[Tensor], gradients: list[Tensor]) -> None:
        """Update the first n clients' parameters [n, *shape] in place; `gradients` may be overwritten."""
        if not self._counts:
            self._begin(values)
        n = len(values[0])
        rate = self._local.rate()
        first, *others = [[moment[:n] for moment in moments] for moments in self._moments]
        if not self._is_sgd:
            adam_step(self._local, rate, values, gradients, first, *others, self._counts)
            return
        for value, gradient, velocity in zip(values, gradients, first, strict=True):
            velocity.mul_(self._local.momentum).add_(gradient)
            value.add_(velocity, alpha=-rate)

    def _begin(self, values: list[Tensor]) -> None:
        """Start each client's state at zero: one moment for SGD, two for Adam."""
        moments = 1 if self._is_sgd else 2
        for _ in range(moments):
            self._moments.append([torch.zeros_like(value) for value in values])
        self._counts = [torch.zeros((), device=value.device) for value in values]
