"""The data of an experiment: loaded, dealt out to clients, and checked against the method and the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedveil.data import DataSet, Holding, federate, holdings, load, own_scale, warnings_of
from fedveil.data.partition import SCHEMES
from fedveil.errors import FieldError
from fedveil.experiments.options import fields_of
from fedveil.experiments.pretraining import keep_validation
from fedveil.experiments.sections import Data
from fedveil.learning import ClientData
from fedveil.learning.losses import evaluating
from fedveil.mechanisms import keyed_seed
from fedveil.methods import Method


@dataclass(frozen=True)
class Dealt:
    """Who holds what.

    Attributes
    ----------
    dataset : DataSet
        What was dealt out.
    clients : list of ClientData
        In order of their partition numbers.
    public, validation : ClientData or None
        What the server has.
    """

    dataset: DataSet
    clients: list[ClientData]
    public: ClientData | None = None
    validation: ClientData | None = None

    def holdings(self) -> list[Holding]:
        """What each client holds."""
        return holdings(self.clients, self.dataset)

    def warnings(self) -> list[str]:
        """Clients that are empty, hold one example, or lack a class: a line each kind."""
        return warnings_of(self.holdings(), self.dataset)


def deal_out(spec: Data, seed: int) -> Dealt:
    """Load the data and deal them out.

    Raises
    ------
    FieldError
        Naming the key that does not fit, or the file and row that cannot be used.
    """
    with fields_of("data"):
        dataset, validation = keep_validation(load(spec.name, **spec.options), spec.validation, seed)
        dataset, public = set_aside(dataset, spec.public_examples, seed)
    clients = clients_of(dataset, spec, seed)
    if not any(client.examples for client in clients):
        raise FieldError("data.partition", spec.partition, "leaves no client an example to train on")
    return Dealt(dataset, clients, public, validation)


def clients_of(dataset: DataSet, spec: Data, seed: int) -> list[ClientData]:
    """Deal examples out as the configuration says."""
    named = (("alpha", spec.alpha), ("counts", spec.counts), ("shards", spec.shards))
    extra: dict[str, Any] = {key: value for key, value in named if value is not None}
    for key in set(extra) - set(SCHEMES[spec.partition]):
        accepted = f"belongs to another partition than {spec.partition!r}; take it out: --set data.{key}=[]"
        raise FieldError(f"data.{key}", extra[key], accepted)
    if spec.partition in ("dirichlet", "quantity", "natural"):
        extra["min_size"] = spec.min_size
    with fields_of("data", scheme="data.partition"):
        return federate(dataset, clients=spec.clients, scheme=spec.partition, holdout=spec.holdout, seed=seed, **extra)


def check_fit(dealt: Dealt, method: Method, loss: str, model: str, module: nn.Module) -> None:
    """Refuse data that the method, the loss or the model cannot use, before anything is trained.

    Raises
    ------
    FieldError
        Naming the key that has to change.
    """
    dataset = dealt.dataset
    if "layer_scores" in method.client.needs:
        empty = [client.name for client in dealt.clients if not client.examples]
        if empty:
            accepted = f"{method.name!r} scores layers on each client's own images, and some have none: {empty[:5]}"
            raise FieldError("data.partition", "empty clients", accepted)
    if dataset.task == "regression" and loss == "cross_entropy":
        raise FieldError("local.loss", loss, f"{dataset.name!r} has targets, no classes: use 'mse'")
    if dataset.task == "segmentation":
        some = next(module.parameters())
        with evaluating(module), torch.no_grad():
            shape = tuple(module(dataset.x[:1].to(some.device, some.dtype)).shape[1:])
        wanted = (dataset.classes, *dataset.y.shape[1:])
        if shape != wanted:
            accepted = f"gives {shape} for an image, but {dataset.name!r} has a class a pixel: {wanted} is needed"
            raise FieldError("model.name", model, accepted)


def set_aside(dataset: DataSet, count: int, seed: int) -> tuple[DataSet, ClientData | None]:
    """Take public examples for the server: from the set's test half, or else from the examples to be dealt out.

    Raises
    ------
    FieldError
        If there are not enough.
    """
    if not count:
        return dataset, None
    from_test = dataset.test_x is not None and dataset.test_y is not None
    x, y = (dataset.test_x, dataset.test_y) if from_test else (dataset.x, dataset.y)
    assert x is not None
    assert y is not None
    if count >= len(x):
        raise FieldError("data.public_examples", count, f"must be less than {len(x)}, all there are")
    generator = torch.Generator().manual_seed(keyed_seed("public", seed))
    order = torch.randperm(len(x), generator=generator)
    public, rest = order[:count], order[count:].sort().values
    kept = ClientData(own_scale(x[public], dataset.local_columns, x[public]), y[public], name="public")
    if from_test:
        return replace(dataset, test_x=x[rest], test_y=y[rest]), kept
    return dataset.take(rest), kept
