"""FedVeil's lots and noise inside a Flower app's own training loop; the app keeps its loop, optimiser and schedule."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fedveil.engines.flower.lending import lent_here
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.learning.app_loop import AppLoop, as_pair


def app_loop(
    model: nn.Module,
    optimizer: Optimizer,
    data: Any,
    *,
    keys: Sequence[str] = (),
    passes: int = 1,
) -> AppLoop:
    """Return the batches of one round for an app's own training loop; they take the place of the app's loader.

    The node then answers with the broadcast model plus FedVeil's noised steps, whatever the train function returns.

    Parameters
    ----------
    model : torch.nn.Module
        Model of the app, with the layout of the trainer that `privacy_mod` got. The method must have ``loop = "app"``.
    optimizer : torch.optim.Optimizer
        Optimiser of the app, over parameters of `model`.
    data : ClientData, DataLoader, Dataset or tuple
        Examples of the site. From a loader only the data set and ``collate_fn`` are used, as FedVeil draws the lots.
    keys : sequence of str, optional
        Keys of inputs and labels if batches are mappings, such as ``("img", "label")``. Other keys are left out.
    passes : int
        Number of times that the app iterates over the batches in a round: its epochs. The plan's steps are divided
        among them.

    Returns
    -------
    AppLoop
        Batches, which the app iterates over in its train function.

    Raises
    ------
    FieldError
        Outside a train message, without a trainer, for a second loop in one round, for keys that are not in a batch,
        and as in `fedveil.learning.app_loop.AppLoop`.

    Examples
    --------
    One line before the loop of a train function makes its steps FedVeil's::

        trainloader = app_loop(net, optimizer, trainloader, passes=epochs)
        for _ in range(epochs):
            for images, labels in trainloader:
                optimizer.zero_grad()
                criterion(net(images), labels).backward()
                optimizer.step()
    """
    lent = lent_here()
    if lent.source is None or lent.start is None:
        accepted = 'goes within a train message of a method with loop = "app", under privacy_mod'
        raise FieldError("app_loop", "called elsewhere", accepted)
    if lent.trainer is None:
        raise FieldError("trainer", None, "is needed: privacy_mod(layout, method, trainer=trainer)")
    batch = as_pair
    if keys:
        data, batch = _of_mappings(data, keys), _Mapped(keys)
    loop = AppLoop(lent.trainer, model, optimizer, data, lent.start, lent.source, batch, passes)
    return lent.begin(loop)


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
