"""Local training of many clients at once, on stacked parameters."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.errors import require_count, require_workers
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.local import LocalTraining, Trained
from fedveil.learning.stacked import BATCHED, NotStackable, compile_stack
from fedveil.learning.stacked.block import ClientBlock, dropout_masks, schedule
from fedveil.learning.stacked.stack import Parameters
from fedveil.learning.streams import Key
from fedveil.learning.threads import Threads
from fedveil.learning.training import SequentialTrainer, check_request, device_of
from fedveil.logs import logger

_LOG = logger(__name__)
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
        self._places = [ClientBlock(compile_stack(model, layout), local) for _ in range(workers)]
        self._alone = partial(
            SequentialTrainer, model, layout, local, device, shared_random=False, before_step=self._threads.stay
        )

    def train(self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]) -> list[Trained | Exception]:
        """Train each client from its own start; see `SequentialTrainer.train`."""
        check_request(self.layout, starts, clients, keys)
        size = self.local.batch_size
        # the most steps first: then the clients still busy are always the first of their block
        busy = sorted((i for i, c in enumerate(clients) if c.examples), key=lambda i: -clients[i].examples // size)
        width, shared = self._width(clients), starts.stride(0) == 0
        room = np.empty(starts.shape, _NUMPY[starts.dtype])  # in huge pages, which do not fault at every 4 KB
        models, results = torch.from_numpy(room).unbind(), dict[int, Trained | Exception]()
        blocks = [busy[i : i + width] for i in range(0, len(busy), width)]

        def work(place: ClientBlock, block: list[int]) -> None:
            own = starts[: len(block)] if shared else starts[block]
            some, named = [clients[i] for i in block], [keys[i] for i in block]
            try:
                values, losses = self._train(place, own, some, named)
            except Exception as error:  # someone's data: alone, each client meets its own failure
                _LOG.debug("training %d clients one by one: %r", len(block), error)
                results.update(zip(block, self._alone().train(own, some, named), strict=True))
                return
            for part in self.layout.blocks:
                room[block, part.start : part.stop] = values[part.name].flatten(1).cpu().numpy()
            pairs = zip(block, losses, strict=True)
            results.update((i, Trained(models[i], clients[i].examples, loss)) for i, loss in pairs)

        self._threads.run(self._places, blocks, work)
        return [results[i] if i in results else Trained(row.copy_(starts[i]), 0, 0.0) for i, row in enumerate(models)]

    def _train(
        self, place: ClientBlock, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]
    ) -> tuple[Parameters, list[float]]:
        """The trained parameters of a block of clients, by name, and their losses."""
        local, device = self.local, self._device
        counts = [c.examples for c in clients]
        plan = schedule(counts, keys, local.epochs, local.batch_size, self.layout.dtype).to(device)
        x = _joined([c.x for c in clients]).to(device)
        y = _joined([c.y for c in clients]).to(device)
        with torch.no_grad():
            masks = dropout_masks(place.stack, keys, plan)

            def before(step: int, active: int) -> None:
                self._threads.stay()
                masks(step, active)

            x = x.to(starts.dtype) if x.is_floating_point() else x
            values, losses = place.run(starts.to(device), x, y, plan, before)
        return values, losses.tolist()

    def _width(self, clients: Sequence[ClientData]) -> int:
        """Clients of a block."""
        if self._block is not None:
            return self._block
        if self._device.type != "cpu":
            return len(clients)
        copies = 1 if self.local.optimizer == "sgd" and not self.local.momentum else 4
        each = self.layout.size * self.layout.dtype.itemsize * copies
        return max(1, CACHE // each)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
