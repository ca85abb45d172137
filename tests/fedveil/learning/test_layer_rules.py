"""A layer that somebody registers a rule for is clipped as autograd says, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import layer_rule, rules
from fedveil.learning.per_example import PerExample


@pytest.fixture
def registered() -> Iterator[Callable[..., Any]]:
    """`layer_rule`, whose registrations end with the test."""
    before = dict(rules._RULES)
    yield layer_rule
    rules._RULES.clear()
    rules._RULES.update(before)


def convolution(layer: nn.Conv1d, inputs: Tensor, grads: Tensor) -> dict[str, Tensor]:
    """Gradients of one-dimensional convolutions without groups: patches of the inputs times output gradients."""
    patches = F.pad(inputs, (layer.padding[0],) * 2).unfold(
        2, layer.kernel_size[0], layer.stride[0]
    )
    formed = {"weight": torch.einsum("bot,bitk->boik", grads, patches)}
    return formed if layer.bias is None else {**formed, "bias": grads.sum(2)}


class Gate(nn.Module):
    """A layer of one's own, without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


def examples() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(9, 2, 12, generator=g), torch.randint(0, 3, (9,), generator=g)


def network(gate: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv1d(2, 4, 3, stride=2, padding=1), gate, nn.Flatten(), nn.Linear(24, 3)
    return nn.Sequential(*layers)


def expected(model: nn.Module, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Each example by autograd, clipped, summed."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for i in range(len(x)):
        own = torch.autograd.grad(
            F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters())
        )
        flat = torch.cat([g.reshape(-1) for g in own]).double()
        total += flat * min(1.0, clip / float(flat.norm()))
    return total


def test_layers_with_a_rule_take_the_fast_way_and_clip_as_autograd_says(
    registered: Callable[..., Any],
) -> None:
    x, y = examples()
    model = network(Gate())
    layout = Layout.from_module(model)
    before = PerExample(model, layout, "cross_entropy")
    before.clipped_sum(x, y, 0.3)
    assert before.rule_name != "layers"
    registered(
        nn.Conv1d, axes=3, fits=lambda layer: layer.padding_mode == "zeros" and layer.groups == 1
    )(convolution)
    registered(Gate)(lambda layer, inputs, grads: {})
    sums = PerExample(model, layout, "cross_entropy")
    found, losses = sums.clipped_sum(x, y, 0.3)
    assert sums.rule_name == "layers"
    assert len(losses) == 9
    torch.testing.assert_close(found, expected(model, x, y, 0.3), rtol=1e-5, atol=1e-6)


def test_options_that_a_rule_does_not_follow_go_another_way(registered: Callable[..., Any]) -> None:
    registered(nn.Conv1d, axes=3, fits=lambda layer: layer.groups == 1)(convolution)
    x, y = examples()
    model = nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(40, 3))
    sums = PerExample(model, Layout.from_module(model), "cross_entropy")
    found, _ = sums.clipped_sum(x, y, 0.3)
    assert sums.rule_name != "layers"
    torch.testing.assert_close(found, expected(model, x, y, 0.3), rtol=1e-5, atol=1e-6)


def test_a_rule_that_mixes_rows_is_found_at_start(registered: Callable[..., Any]) -> None:
    def mixing(layer: nn.Conv1d, inputs: Tensor, grads: Tensor) -> dict[str, Tensor]:
        own = convolution(layer, inputs, grads)
        return {name: value + 1e-3 * value.mean(0) for name, value in own.items()}

    registered(nn.Conv1d, axes=3)(mixing)
    x, y = examples()
    model = network(nn.Tanh())
    sums = PerExample(model, Layout.from_module(model), "cross_entropy")
    sums.clipped_sum(x, y, 0.3)
    assert sums.rule_name == "one by one"


def test_a_kind_has_one_rule(registered: Callable[..., Any]) -> None:
    with pytest.raises(FieldError, match="Linear"):
        registered(nn.Linear)(lambda layer, inputs, grads: {})


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        (3, 1, 1, 1),
        (3, 2, 1, 1),
        (1, 2, 0, 1),
        ((3, 2), (2, 1), (0, 1), (1, 2)),
        ((1, 3), 1, (0, 1), 2),
    ],
)
def test_convolutions_with_few_places_have_the_gradients_of_those_with_many(
    kernel: Any, stride: Any, padding: Any, dilation: Any, last: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(5, 7, kernel, stride, padding, dilation)
    a = torch.randn(4, 5, 4, 5)
    if last:
        a = a.contiguous(memory_format=torch.channels_last)
    b = torch.randn_like(layer(a))
    found = rules._from_patches(layer, a, b)
    torch.testing.assert_close(found, rules._in_groups(layer, a, b), rtol=1e-4, atol=1e-4)


def test_the_gradients_of_few_places_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 4, 2, stride=2), nn.Flatten()
    )
    model.append(nn.Linear(16, 3))
    x, y = torch.randn(5, 3, 4, 4), torch.arange(5) % 3
    sums = PerExample(model, Layout.from_module(model), "cross_entropy")
    total, _ = sums.clipped_sum(x, y, 0.5)
    assert sums.rule_name == "layers"
    torch.testing.assert_close(total, expected(model, x, y, 0.5), rtol=1e-4, atol=1e-6)
