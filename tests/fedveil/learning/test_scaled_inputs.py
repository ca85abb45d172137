"""Inputs scaled inside a model: by hand, with the same gradients on every way, rows kept apart."""

import math

import pytest
import torch
from torch import nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import build_model
from fedveil.learning.batched import BatchedTrainer
from fedveil.learning.clients import ClientData
from fedveil.learning.local import LocalTraining
from fedveil.learning.per_example import PerExample
from fedveil.learning.scaled_inputs import ScaledInputs
from fedveil.learning.stacked import NotStackable, compile_stack
from fedveil.learning.training import SequentialTrainer


def test_centred_by_hand() -> None:
    assert ScaledInputs("centred")(torch.tensor([[0.0, 0.25, 1.0]])).tolist() == [
        [-0.5, -0.25, 0.5]
    ]


def test_standardised_by_hand() -> None:
    # mean 2, deviation sqrt((4 + 4) / 2) = 2; a flat example has deviation 0 and becomes 0
    scaled = ScaledInputs("standardised")(torch.tensor([[0.0, 4.0], [7.0, 7.0]]))
    assert torch.allclose(scaled, torch.tensor([[-2 / 2.05, 2 / 2.05], [0.0, 0.0]]))


@pytest.mark.parametrize("scaling", ["centred", "standardised"])
def test_a_row_is_scaled_by_itself(scaling: str) -> None:
    x = torch.rand(6, 1, 4, 4)
    layer = ScaledInputs(scaling)  # type: ignore[arg-type]
    assert torch.allclose(layer(x)[2:3], layer(x[2:3]))


@pytest.mark.parametrize("scaling", ["centred", "standardised"])
@pytest.mark.parametrize("each", [1, 3])
def test_clipped_sums_are_those_of_single_examples(scaling: str, each: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(12, 1, 4, 4, generator=generator), torch.arange(12) % 3
    model = build_model("logistic", input_shape=(1, 4, 4), outputs=3, seed=0, inputs=scaling)
    sums = PerExample(model, Layout.from_module(model), "cross_entropy")
    together, _ = sums.clipped_sum(x, y, 0.3, each=each)
    assert sums.rule_name == "layers"
    units = []
    for rows in torch.arange(12).view(-1, each):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        gradient = torch.cat(
            [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
        ).double()
        units.append(gradient * min(1.0, 0.3 / float(gradient.norm())))
    assert torch.allclose(together, torch.stack(units).sum(0), atol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_an_example_that_is_not_finite_moves_nobody_else(value: float) -> None:
    x, y = torch.rand(8, 6), torch.zeros(8, dtype=torch.int64)
    model = build_model("logistic", input_shape=(6,), outputs=2, seed=0, inputs="standardised")
    sums = PerExample(model, Layout.from_module(model), "cross_entropy")
    here = torch.arange(8) != 3
    without, _ = sums.clipped_sum(x, y, 1.0, here)
    x[3, 0] = value
    moved = sums.clipped_sum(x, y, 1.0)[0] - without
    assert float(moved.norm()) <= 1.0
    if not math.isfinite(value):
        assert torch.equal(moved, torch.zeros_like(moved))


@pytest.mark.parametrize("scaling", ["centred", "standardised"])
def test_many_clients_at_once_train_as_one_after_another(scaling: str) -> None:
    model = build_model("logistic", input_shape=(5,), outputs=2, seed=0, inputs=scaling)
    layout, local = Layout.from_module(model), LocalTraining(epochs=2, batch_size=4, lr=0.5)
    clients = [ClientData(torch.rand(n, 5), torch.arange(n) % 2) for n in (8, 6)]
    starts, keys = layout.read(model).repeat(2, 1), [(0, 1), (0, 2)]
    one = SequentialTrainer(model, layout, local).train(starts, clients, keys)
    many = BatchedTrainer(model, layout, local).train(starts, clients, keys)
    for a, b in zip(one, many, strict=True):
        assert torch.allclose(a.model, b.model, atol=1e-6)  # type: ignore[union-attr]


def test_scaling_behind_another_layer_is_not_stacked() -> None:
    model = nn.Sequential(nn.Linear(4, 4), ScaledInputs("centred"), nn.Linear(4, 2))
    with pytest.raises(NotStackable):
        compile_stack(model, Layout.from_module(model))


def test_another_scaling_is_refused_by_name() -> None:
    with pytest.raises(FieldError) as refused:
        build_model("logistic", input_shape=(4,), outputs=2, seed=0, inputs="centered")
    assert refused.value.field == "inputs"
