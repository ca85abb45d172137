"""Measure the last models of a finished cell once more."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedveil.data import DataSet
from fedveil.errors import FieldError, damaged
from fedveil.files import remedy
from fedveil.layout import Layout
from fedveil.learning import ClientData, build_model, choose_each, client_losses, predict
from fedveil_lab.config import Config
from fedveil_lab.config.sections import Data
from fedveil_lab.grid import Outcome
from fedveil_lab.runs.deal import deal_out, split_clients


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples with their classes and the number of classes, on which a model is measured."""

    x: Tensor
    y: Tensor
    classes: int


def test_half(config: Config) -> Examples:
    """Return the part of the test half that the server did not take; it depends on data and seed."""
    return _test_half(config.data.model_dump_json(), config.seed)


def held_out(data: ClientData | DataSet) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of a client's held-out examples, or of a data set's test half.

    Raises
    ------
    FieldError
        If there are no such examples.
    """
    if data.test_x is None or data.test_y is None:
        raise FieldError(
            "data",
            data.name,
            "holds nothing out: the measure needs examples on which nobody trained",
        )
    return data.test_x, data.test_y


def outputs(outcome: Outcome, examples: Examples) -> Tensor:
    """Logits [N, classes] of the cell's last model.

    Raises
    ------
    FieldError
        If the model's file is damaged, or the run left none.
    """
    config = outcome.cell.config
    shape = tuple(examples.x.shape[1:])
    module = build_model(
        config.model.name,
        input_shape=shape,
        outputs=examples.classes,
        seed=config.seed,
        **config.model.options,
    )
    [only] = _states(outcome, module)
    return predict(module, Layout.from_module(module), only, examples.x)


@dataclass(frozen=True, eq=False)
class Validated:
    """The last models on the validation clients, each of which uses the one that fits it best.

    Attributes
    ----------
    dataset : DataSet
        Data set of the clients.
    clients : sequence of ClientData
        Validation clients, which never trained.
    models : Tensor
        Last models [k, d].
    losses : Tensor
        Loss of each model on each client, [clients, k].
    chosen : sequence of int
        Chosen model of each client.
    outputs : sequence of Tensor
        Outputs of the chosen model on each client's examples.
    """

    dataset: DataSet
    clients: Sequence[ClientData]
    models: Tensor
    losses: Tensor
    chosen: Sequence[int]
    outputs: Sequence[Tensor]


def validated(outcome: Outcome) -> Validated:
    """Measure the cell's last models on its validation clients.

    Raises
    ------
    FieldError
        If the run left no models, or had no validation clients.
    """
    config = outcome.cell.config
    if config.stopping is None:
        raise FieldError(
            "stopping", None, "this measure looks at validation clients, and the run has none"
        )
    dataset, clients = _validators(
        config.data.model_dump_json(), config.stopping.clients, config.seed
    )
    shape, outputs_ = dataset.input_shape, dataset.outputs
    module = build_model(
        config.model.name,
        input_shape=shape,
        outputs=outputs_,
        seed=config.seed,
        **config.model.options,
    )
    layout = Layout.from_module(module)
    models = torch.stack(_states(outcome, module))
    choices = choose_each(module, layout, models, clients, config.local.loss)
    chosen = []
    followers: dict[int, list[int]] = {}  # clients by the model that they chose
    for i, choice in enumerate(choices):
        index = 0
        if isinstance(choice, int):
            index = choice
        chosen.append(index)
        followers.setdefault(index, []).append(i)
    predictions: dict[int, Tensor] = {}
    for index, own in followers.items():
        together = predict(module, layout, models[index], torch.cat([clients[i].x for i in own]))
        examples = [clients[i].examples for i in own]
        predictions |= zip(own, torch.split(together, examples), strict=True)
    losses = client_losses(module, layout, models, clients, config.local.loss)
    in_order = [predictions[i] for i in range(len(clients))]
    return Validated(dataset, clients, models, losses, chosen, in_order)


def _states(outcome: Outcome, module: nn.Module) -> list[Tensor]:
    """The last models [d], hypothesis by hypothesis."""
    if outcome.folder is None:
        raise FieldError(
            "--out", None, "this measure looks at models, which only runs in a folder leave"
        )
    path, layout = outcome.folder / "model.safetensors", Layout.from_module(module)
    try:
        arrays = load_file(path)
        k = 1 + max(
            (int(n.split(".")[1]) for n in arrays if n.startswith("hypothesis.")), default=-1
        )
        parts = [f"hypothesis.{j}." for j in range(k)] or [""]
        states = []
        for part in parts:
            own = {n.removeprefix(part): v for n, v in arrays.items() if n.startswith(part)}
            module.load_state_dict(own)
            states.append(layout.read(module))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise damaged("model", path, error, remedy(outcome.folder)) from error
    return states


@lru_cache(maxsize=8)
def _validators(text: str, share: float, seed: int) -> tuple[DataSet, list[ClientData]]:
    dealt = deal_out(Data.model_validate_json(text), seed)
    return dealt.dataset, split_clients(dealt.clients, share, seed)[1]


@lru_cache(maxsize=4)
def _test_half(text: str, seed: int) -> Examples:
    dataset = deal_out(Data.model_validate_json(text), seed).dataset
    return Examples(*held_out(dataset), dataset.classes)
