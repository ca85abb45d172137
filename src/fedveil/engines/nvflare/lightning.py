"""Training at a site by a LightningModule's own steps; Lightning logs and writes nothing."""

import importlib
import math
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.local import Trained
from fedveil.learning.streams import Key, epoch_orders
from fedveil.mechanisms import keyed_seed

PACKAGES = ("lightning", "pytorch_lightning")
TAKEN = ("epochs", "batch_size")  # options of `LocalTraining`; the module decides all others


def package_of(kind: type) -> str:
    """Return the package of the LightningModule that a class derives from, "lightning" or "pytorch_lightning"; else ""."""
    for parent in kind.__mro__:
        package = parent.__module__.partition(".")[0]
        if parent.__qualname__ == "LightningModule" and package in PACKAGES:
            return package
    return ""


def require_no_lightning(module: nn.Module) -> None:
    """Refuse a LightningModule as the shared model, because its own steps and optimiser would not run.

    Raises
    ------
    FieldError
        If the module is a LightningModule.
    """
    if package_of(type(module)):
        accepted = (
            "is a LightningModule, whose steps and optimiser FedVeil's own training does not run: "
        )
        accepted += "name the network that it wraps as model, and the LightningModule as trainer"
        raise FieldError("model", type(module).__qualname__, accepted)


class LightningTrainer:
    """Trainer that runs the steps and the optimiser of a LightningModule around the shared network.

    Each round begins with a fresh copy of the module and the received parameters. Only the network is shared. The
    module's other parameters start anew in each round.

    Parameters
    ----------
    kind : type
        The site's LightningModule class; it is called with the network alone.
    network : torch.nn.Module
        Shared network, copied.
    layout : Layout
        Layout of the network.
    local : LocalTraining
        Number of epochs and batch size. Other options are refused, as the module decides them.

    Raises
    ------
    FieldError
        If Lightning cannot train the module, or the module trains another network.
    """

    def __init__(
        self, kind: type, network: nn.Module, layout: Layout, local: LocalTraining
    ) -> None:
        package = package_of(kind)
        self._package = importlib.import_module(
            "lightning.pytorch" if package == "lightning" else package
        )
        _require_steps(kind, self._package.LightningModule)
        default = LocalTraining()
        for option in fields(LocalTraining):
            value = getattr(local, option.name)
            if option.name not in TAKEN and value != getattr(default, option.name):
                accepted = f"is decided by {kind.__qualname__}: leave it out"
                raise FieldError(f"training.local.{option.name}", value, accepted)
        own = deepcopy(network)
        self._pair = kind(own), own
        self._layout, self._local = layout, local
        self._buffers = {
            name: value.detach().clone() for name, value in network.state_dict().items()
        }
        self._require_network()

    def _require_network(self) -> None:
        module, network = self._pair
        held = {id(parameter) for parameter in module.parameters()}
        for name, parameter in network.named_parameters():
            if name in self._layout.names and id(parameter) not in held:
                accepted = "must keep the network that it is called with: self.network = network"
                raise FieldError("training.trainer", type(module).__qualname__, accepted)
        if not module.automatic_optimization:
            accepted = "must leave automatic_optimization on: FedVeil reads the loss of a step"
            raise FieldError("training.trainer", type(module).__qualname__, accepted)

    def train(
        self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]
    ) -> list[Trained | Exception]:
        """Train each client from its own start; a failed client has its exception in its place. See `Trainer.train`."""
        results: list[Trained | Exception] = []
        for start, client, key in zip(starts, clients, keys, strict=True):
            try:
                results.append(self._train(start, client, key))
            except Exception as error:  # whatever the site's module raises is that task's failure
                results.append(error)
        return results

    def _train(self, start: Tensor, client: ClientData, key: Key) -> Trained:
        if not client.examples:
            return Trained(start.detach().clone(), 0, 0.0)
        module, network = deepcopy(self._pair)
        state = {**self._buffers, **(client.buffers or {}), **self._layout.unflatten(start)}
        network.load_state_dict(state)
        seed = keyed_seed("train", *key, "lightning")
        losses = _losses(self._package)
        batches = Batches(client, key, self._local)
        with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            trainer = self._package.Trainer(
                max_epochs=self._local.epochs,
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                limit_val_batches=0,
                default_root_dir=folder,
                callbacks=[losses],
            )
            batches.trainer = trainer
            trainer.fit(module, batches)
        kept = network.state_dict()
        buffers = {name: kept[name].detach().clone() for name in self._layout.kept}
        model = self._layout.read(network).detach().cpu().clone()
        loss = losses.total / client.examples
        return Trained(model, client.examples, loss, buffers=buffers or None)


class Batches:
    """Batches of a client for Lightning, in the order of FedVeil's own training.

    The order depends only on the epoch's number, as Lightning may begin an epoch more than once.

    Parameters
    ----------
    client : ClientData
        Client with the examples.
    key : tuple of int
        (seed, round, partition).
    local : LocalTraining
        Number of epochs and batch size.

    Attributes
    ----------
    trainer : object
        Lightning's trainer, set later; it counts the epochs.
    """

    def __init__(self, client: ClientData, key: Key, local: LocalTraining) -> None:
        self._client, self._size = client, local.batch_size
        self._orders = torch.from_numpy(epoch_orders([key], [client.examples], local.epochs)[0])
        self.trainer: Any = None

    def __len__(self) -> int:
        return math.ceil(self._client.examples / self._size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.split(self._orders[self.trainer.current_epoch], self._size):
            yield self._client.x[rows], self._client.y[rows]


def _require_steps(kind: type, base: type) -> None:
    """Refuse a class without the methods that Lightning calls."""
    for name in ("training_step", "configure_optimizers"):
        if getattr(kind, name) is getattr(base, name):
            raise FieldError("training.trainer", kind.__qualname__, f"must have {name}")


def _losses(package: Any) -> Any:
    """Make a callback that sums the losses of the last epoch; its base class comes from the package."""

    class Losses(package.Callback):  # type: ignore[misc]
        total = 0.0

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            self.total = 0.0

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            self.total += float(outputs["loss"]) * len(batch[0])

    return Losses()
