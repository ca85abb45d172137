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
CACHE = (
    1 << 20
)  # bytes of a core's second-level cache on most machines; a block of clients should fit


class BatchedTrainer:
    """Train many clients at once like `SequentialTrainer`, with one batched operation for each layer and step.

    Shuffling and dropout use the same random numbers as `SequentialTrainer`. Only the order of sums differs: after an
    epoch, models agree with those of `SequentialTrainer` to about 1e-12 of their size in float64, 1e-5 in float32.

    Parameters
    ----------
    model, layout, local, device
        See `SequentialTrainer`.
    workers : int
        Number of threads, each with a block of clients.
    block : int, optional
        Number of clients in a block; by default as many as the cache holds.

    Raises
    ------
    NotStackable
        If the model is not a straight chain of known layers.
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
        self.layout = layout
        self.local = local
        self._device = device_of(device)
        self._block = None if block is None else require_count("block", block)
        self._threads = Threads()
        self._places: list[ClientBlock] = []
        for _ in range(require_workers("workers", workers)):
            self._places.append(ClientBlock(compile_stack(model, layout), local))
        self._one_by_one = partial(
            SequentialTrainer,
            model,
            layout,
            local,
            device,
            shared_random=False,
            before_step=self._threads.raise_if_stopped,
        )

    def train(
        self,
        starts: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
    ) -> list[Trained | Exception]:
        """Train each client from its own start; see `SequentialTrainer.train`."""
        check_request(self.layout, starts, clients, keys)
        shared = starts.stride(0) == 0
        room = np.empty(
            starts.shape, _NUMPY[starts.dtype]
        )  # in huge pages, which do not fault at every 4 KB
        models = torch.from_numpy(room).unbind()
        results: dict[int, Trained | Exception] = {}

        def work(place: ClientBlock, block: list[int]) -> None:
            own = starts[: len(block)] if shared else starts[block]
            own_clients = [clients[i] for i in block]
            own_keys = [keys[i] for i in block]
            try:
                values, losses = self._train(place, own, own_clients, own_keys)
            except (
                Exception
            ) as error:  # a client's data failed; trained alone, each client meets its own failure
                _LOG.debug("training %d clients one by one: %r", len(block), error)
                outcomes = self._one_by_one().train(own, own_clients, own_keys)
                results.update(zip(block, outcomes, strict=True))
                return
            for part in self.layout.blocks:
                room[block, part.start : part.stop] = values[part.name].flatten(1).cpu().numpy()
            for i, loss in zip(block, losses, strict=True):
                results[i] = Trained(models[i], clients[i].examples, loss)

        self._threads.run(self._places, self._blocks(clients), work)
        for i, row in enumerate(models):
            if i not in results:  # a client without examples
                results[i] = Trained(row.copy_(starts[i]), 0, 0.0)
        return [results[i] for i in range(len(models))]

    def _blocks(self, clients: Sequence[ClientData]) -> list[list[int]]:
        """Split the clients that have examples into blocks.

        Clients with the most steps come first. So at every step the clients that still train are the first of their
        block.
        """
        busy = [i for i, client in enumerate(clients) if client.examples]
        busy.sort(key=lambda i: -clients[i].examples // self.local.batch_size)
        width = self._width(clients)
        return [busy[start : start + width] for start in range(0, len(busy), width)]

    def _train(
        self,
        place: ClientBlock,
        starts: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
    ) -> tuple[Parameters, list[float]]:
        """Return the trained parameters of a block of clients, by name, and their losses."""
        local = self.local
        device = self._device
        counts = [client.examples for client in clients]
        plan = schedule(counts, keys, local.epochs, local.batch_size, self.layout.dtype).to(device)
        x = _joined([client.x for client in clients]).to(device)
        y = _joined([client.y for client in clients]).to(device)
        if x.is_floating_point():
            x = x.to(starts.dtype)
        draw_masks = dropout_masks(place.stack, keys, plan)

        def before(step: int, active: int) -> None:
            self._threads.raise_if_stopped()
            draw_masks(step, active)

        with torch.no_grad():
            values, losses = place.run(starts.to(device), x, y, plan, before)
        return values, losses.tolist()

    def _width(self, clients: Sequence[ClientData]) -> int:
        """Return the number of clients for each block."""
        if self._block is not None:
            return self._block
        if self._device.type != "cpu":
            return len(clients)
        has_state = self.local.optimizer != "sgd" or self.local.momentum
        copies = 4 if has_state else 1
        each = self.layout.size * self.layout.dtype.itemsize * copies
        return max(1, CACHE // each)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors along the first axis; a single one is returned without a copy."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(list(parts))
