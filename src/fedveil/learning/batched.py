"""Local training of many clients at once, on stacked parameters."""

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.errors import require_count, require_workers
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.local import LocalTraining, Trained
from fedveil.learning.stacked import BATCHED, Stack, compile_stack
from fedveil.learning.stacked.block import ClientBlock, dropout_masks
from fedveil.learning.stacked.compile import NotStackable
from fedveil.learning.stacked.schedule import schedule
from fedveil.learning.streams import Key, stream
from fedveil.learning.threads import Threads
from fedveil.learning.training import SequentialTrainer, check_request, device_of

_LOG = logging.getLogger(__name__)
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
CACHE = 1 << 20  # bytes of a core's second-level cache, as on most machines; a block of clients should fit


class BatchedTrainer:
    """Train many clients at once: what `SequentialTrainer` does, in one batched operation a layer and step.

    Examples are shuffled and dropped as one after another, from the same streams; sums are taken in another order, so
    that float64 models agree to about 1e-12 of their size and float32 models to about 1e-5 after an epoch.

    Parameters
    ----------
    model, layout, local, device
        See `SequentialTrainer`.
    workers : int
        Threads over blocks of clients.
    block : int, optional
        Clients of a block; by default as many as the cache holds.

    Raises
    ------
    NotStackable
        If the model is no straight chain of known layers.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        local: LocalTraining,
        device: str = "cpu",
        *,
        workers: int = 1,
        block: int | None = None,
    ) -> None:
        if not isinstance(local.loss, str) or local.loss not in BATCHED:
            raise NotStackable(f"the loss {local.loss!r} has no batched form")
        if local.unusual:
            raise NotStackable(f"local training with '{local.unusual}' has no batched form")
        self.layout, self.local = layout, local
        self._device = device_of(device)
        self._block = None if block is None else require_count("block", block)
        workers = require_workers("workers", workers)
        self._threads = Threads()
        self._stacks = [compile_stack(model, layout) for _ in range(workers)]
        self._alone = partial(
            SequentialTrainer, model, layout, local, device, shared_random=False, before_step=self._threads.stay
        )

    def train(self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]) -> list[Trained | Exception]:
        """Train each client from its own start; see `SequentialTrainer.train`."""
        check_request(self.layout, starts, clients, keys)
        size = self.local.batch_size
        # the most steps first: then the clients still busy are always the first of their block
        busy = sorted((i for i, c in enumerate(clients) if c.examples), key=lambda i: -clients[i].examples // size)
        width = self._width(clients)
        room = _room(len(busy), starts)
        results: dict[int, Trained | Exception] = {}
        blocks = [range(i, min(i + width, len(busy))) for i in range(0, len(busy), width)]

        def work(stack: Stack, rows: range) -> None:
            block = busy[rows.start : rows.stop]
            some, own = [clients[i] for i in block], [keys[i] for i in block]
            values = room[rows.start : rows.stop]
            torch.index_select(starts, 0, torch.tensor(block), out=values)
            try:
                found: Sequence[Trained | Exception] = self._train(stack, values, some, own)
            except Exception as error:  # someone's data: alone, each client meets its own failure
                _LOG.debug("training %d clients one by one: %r", len(block), error)
                found = self._alone().train(torch.stack([starts[i] for i in block]), some, own)
            for i, trained in zip(block, found, strict=True):
                results[i] = trained

        self._threads.share(self._stacks, blocks, work)
        return [results[i] if i in results else Trained(start.clone(), 0, 0.0) for i, start in enumerate(starts)]

    def _train(self, stack: Stack, models: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]) -> list[Trained]:
        """Train the models [n, d] of a block in place."""
        local, device = self.local, self._device
        counts = [c.examples for c in clients]
        plan = schedule(counts, keys, local.epochs, local.batch_size, self.layout.dtype).to(device)
        x = _joined([c.x for c in clients]).to(device)
        y = _joined([c.y for c in clients]).to(device)
        with torch.no_grad():
            values = models.to(device)
            block = ClientBlock(stack, values, local)
            masks = None
            if stack.dropouts:
                streams = [stream(key, "dropout") for key in keys]
                masks = dropout_masks(stack, streams, plan.sizes(), plan.rows.shape[2])

            def before(step: int, active: int) -> None:
                self._threads.stay()
                if masks is not None:
                    masks(step, active)

            losses = block.run(x.to(values.dtype) if x.is_floating_point() else x, y, plan, before)
        if values is not models:
            models.copy_(values)
        return [Trained(*found) for found in zip(models, counts, losses.tolist(), strict=True)]

    def _width(self, clients: Sequence[ClientData]) -> int:
        """Clients of a block."""
        if self._block is not None:
            return self._block
        if self._device.type != "cpu":
            return len(clients)
        copies = 1 if self.local.optimizer == "sgd" and not self.local.momentum else 4
        each = self.layout.size * self.layout.dtype.itemsize * copies
        return max(1, CACHE // each)


def _room(n: int, like: Tensor) -> Tensor:
    """Room for n models: NumPy asks for huge pages, so that filling it does not fault at every 4 KB."""
    if like.dtype not in _NUMPY:
        return like.new_empty(n, like.shape[1])
    return torch.from_numpy(np.empty((n, like.shape[1]), _NUMPY[like.dtype]))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
