"""FedVeil's lots and noise inside a Flower app's own training loop; the app keeps its loop, optimiser and schedule."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from flwr.app import Message
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fedveil.engines.flower.exchange import training_source
from fedveil.engines.flower.records import read_broadcast
from fedveil.errors import FieldError
from fedveil.learning import ClientData, PrivateTrainer
from fedveil.learning.app_loop import AppLoop, as_pair


def app_loop(
    message: Message,
    trainer: PrivateTrainer,
    model: nn.Module,
    optimizer: Optimizer,
    data: Any,
    *,
    keys: Sequence[str] = (),
) -> AppLoop:
    """Give an app's own training loop FedVeil's batches and noised gradients; make the reply with `write_trained`.

    Parameters
    ----------
    message : Message
        Train message of the server, which begins the round.
    trainer : PrivateTrainer
        Trainer of the app's `privacy_mod`; its method must have ``loop = "app"``.
    model : torch.nn.Module
        Model of the app, with the trainer's layout.
    optimizer : torch.optim.Optimizer
        Optimiser of the app, over parameters of `model`.
    data : ClientData, DataLoader, Dataset or tuple
        Examples of the site. From a loader only the data set and ``collate_fn`` are used, as FedVeil draws the lots.
    keys : sequence of str, optional
        Keys of inputs and labels if batches are mappings, such as ``("img", "label")``. Other keys are left out.

    Returns
    -------
    AppLoop
        Loop, used as ``with app_loop(...) as loop: for batch in loop: ...``; then ``loop.trained`` has the result.

    Raises
    ------
    FieldError
        For keys that are not in a batch, and as in `fedveil.learning.app_loop.AppLoop`.

    Examples
    --------
    In a train function, where ``for images, labels in trainloader:`` was::

        with app_loop(message, trainer, net, optimizer, trainloader) as loop:
            for images, labels in loop:
                optimizer.zero_grad()
                criterion(net(images), labels).backward()
                optimizer.step()
        return Message(write_trained(loop.trained, layout), reply_to=message)
    """
    start = read_broadcast(message.content, trainer.layout).models[0]
    batch = as_pair
    if keys:
        data, batch = _of_mappings(data, keys), _Mapped(keys)
    return AppLoop(trainer, model, optimizer, data, start, training_source(), batch)


class _Mapped:
    """Function that makes a batch as a mapping, with the app's keys for inputs and labels."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        """Return inputs and labels under their keys."""
        return dict(zip(self._keys, (x, y), strict=True))


def _of_mappings(data: Any, keys: Sequence[str]) -> Any:
    """Return a loader of pairs (inputs, labels), from a loader whose batches may be mappings."""
    if len(keys) != 2:
        raise FieldError(
            "keys", list(keys), "must be two: that of the inputs, and that of the labels"
        )
    if isinstance(data, ClientData):
        return data
    loader = data if isinstance(data, DataLoader) else DataLoader(data)
    together = loader.collate_fn

    def pair(samples: list[Any]) -> tuple[Any, Any]:
        batch = together(samples)
        if not isinstance(batch, Mapping) or any(key not in batch for key in keys):
            held = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise FieldError("keys", list(keys), f"must be among those of a batch: {held}")
        return batch[keys[0]], batch[keys[1]]

    paired = copy(loader)  # with its sampler, which is refused if it leaves out examples
    paired.collate_fn = pair
    return paired
