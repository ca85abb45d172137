"""What is added is no longer than the clip, where gradients of an example's positions are long and cancel.

The planted rules measure something else than what they add: each of them is seen.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedveil.layout import Layout
from fedveil.learning import layerwise
from fedveil.learning.gradients import Formed
from fedveil.learning.per_example import PerExample

POSITIONS, CLIP = 64, 1.0


def model_of_positions(signs: torch.Tensor, bias: bool) -> nn.Module:
    """One trained layer that sees every position, and a frozen one that adds positions under their signs."""
    torch.manual_seed(0)
    head = nn.Linear(2 * POSITIONS, 3).requires_grad_(False)
    directions = torch.tensor([[1.0, -0.5], [0.3, 0.8], [-0.7, 0.2]])
    head.weight.copy_((signs[:, None] * directions[:, None]).flatten(1))
    return nn.Sequential(nn.Linear(4, 2, bias=bias), nn.Flatten(), head)


def cancelling(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of equal positions of opposite signs, far apart: their sum in float32 is rounding alone."""
    generator = torch.Generator().manual_seed(seed)
    long = 1e8 * torch.randn(POSITIONS // 2, 4, generator=generator)
    order = torch.randperm(POSITIONS // 2, generator=generator)
    x = torch.zeros(1, POSITIONS, 4)
    x[0, 0::2], x[0, 1::2] = long, long[order]
    return x, 1 - 2.0 * (torch.arange(POSITIONS) % 2)


def agreeing(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions whose gradients all point one way."""
    return torch.full((1, POSITIONS, 4), 1e4), torch.ones(POSITIONS)


def empty(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of zeros: only a bias has a gradient."""
    return torch.zeros(1, POSITIONS, 4), torch.ones(POSITIONS)


class Positions(Formed):
    """Gradients of a layer over positions, with its factors, for rules that are wrong."""

    def __init__(self, rows, inputs, grads):
        super().__init__(rows)
        self.inputs, self.grads = inputs, grads


class Gram(Positions):
    """Measures by products of positions, which cancel otherwise than the sum that is added."""

    def squares(self):
        a, b = self.inputs.double(), self.grads.double()
        products = (a @ a.transpose(1, 2)) * (b @ b.transpose(1, 2))
        return products.sum((1, 2)).clamp(min=0)


class OfPositions(Positions):
    """Measures the positions one by one, and adds the squares."""

    def squares(self):
        return (self.inputs.double().square().sum(2) * self.grads.double().square().sum(2)).sum(1)


class SecondPass(Positions):
    """Adds what a second product in float32 gives, in another order."""

    def sum(self, scale):
        weighted = (self.grads * scale.float()[:, None, None]).flip(1)
        [name] = self._rows
        return [(name, (weighted.transpose(1, 2) @ self.inputs.flip(1)).sum(0).double())]


class WithoutBias(Positions):
    """Measures the weights alone."""

    def squares(self):
        [weight] = [rows for name, rows in self._rows.items() if name.endswith("weight")]
        return weight.double().square().sum(1)


def longest(example: Callable[[int], tuple[torch.Tensor, torch.Tensor]], bias: bool) -> float:
    """Length of the longest that one example adds in 16 draws, in clips."""
    return max(length(*example(seed), bias) for seed in range(16))


def length(x: torch.Tensor, signs: torch.Tensor, bias: bool) -> float:
    """Length of what one example adds, in clips; its label is the class that the model finds least likely."""
    model = model_of_positions(signs, bias)
    y = model(x).argmin(1)
    sums = PerExample(model, Layout.from_module(model), "cross_entropy", torch.Generator())
    total, _ = sums.clipped_sum(x, y, CLIP)
    assert sums.rule_name == "layers"
    return float(total.norm()) / CLIP


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("example", [cancelling, agreeing])
def test_what_is_added_is_no_longer_than_the_clip(example, bias):
    assert 0.99 < longest(example, bias) <= 1.0


@pytest.mark.parametrize(
    ("fault", "example", "bias", "clips"),
    [
        (Gram, cancelling, False, 2.0),
        (OfPositions, agreeing, False, 7.9),  # the root of 64
        (SecondPass, cancelling, False, 1.1),
        (WithoutBias, empty, True, 1.5),
    ],
)
def test_a_rule_that_measures_something_else_is_seen(fault, example, bias, clips, monkeypatch):
    own = layerwise._piece

    def faulty(layer, rule, names, inputs, grads):
        rows = own(layer, rule, names, inputs, grads)._rows
        return fault(rows, inputs, grads)

    monkeypatch.setattr(layerwise, "_piece", faulty)
    assert longest(example, bias) > clips


def test_two_uses_of_one_parameter_are_one_vector():
    """Their squares, added, are half of the square of their sum where both agree."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3, bias=False)

        def forward(self, x):
            return self.layer(x) + self.layer(x)

    torch.manual_seed(0)
    model = Twice()
    sums = PerExample(model, Layout.from_module(model), "cross_entropy", torch.Generator())
    total, _ = sums.clipped_sum(10 * torch.ones(1, 3), torch.zeros(1, dtype=torch.long), CLIP)
    assert sums.rule_name == "operators"
    assert float(total.norm()) == pytest.approx(CLIP, rel=1e-5)
