"""Weights of classes behind the clip: by hand, never a longer gradient, the noise and the promise as they were."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import LocalTraining, build_model
from fedveil.learning.clients import ClientData
from fedveil.learning.per_example import PerExample
from fedveil.learning.private import PrivateTrainer
from fedveil.learning.trainers import make_trainer
from fedveil.methods.facts import NoisySteps

NOISY = NoisySteps(steps=1, rate=1.0, clip=0.5, deviation=1.0, denominator=8.0)


def model_of(outputs: int = 2) -> tuple[nn.Module, Layout]:
    model = build_model("logistic", input_shape=(3,), outputs=outputs, seed=0)
    return model, Layout.from_module(model)


def clipped(model: nn.Module, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """One unit's mean gradient, clipped, as it is defined."""
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    gradient = torch.cat(
        [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
    ).double()
    return gradient * min(1.0, clip / float(gradient.norm()))


def test_each_class_has_its_share_behind_the_clip() -> None:
    model, layout = model_of()
    x, y = 10 * torch.rand(6, 3), torch.tensor([0, 1, 0, 0, 1, 0])
    sums = PerExample(model, layout, "cross_entropy", class_weights=(1.0, 4.0))
    expected = sum(
        (0.25, 1.0)[int(b)] * clipped(model, x[i : i + 1], y[i : i + 1], 0.5)
        for i, b in enumerate(y)
    )
    assert torch.allclose(sums.clipped_sum(x, y, 0.5)[0], expected, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("grid", [0.0, 1e-6])
def test_a_persons_mean_is_weighted_and_has_the_mean_share_of_her_examples(grid: float) -> None:
    model, layout = model_of()
    x, y = 10 * torch.rand(4, 3), torch.tensor([0, 1, 0, 0])
    present = torch.tensor([True, True, True, False])
    sums = PerExample(model, layout, "cross_entropy", class_weights=(1.0, 4.0))
    total, _ = sums.clipped_sum(x, y, 0.5, present, each=2, grid=grid)
    whole = [clipped(model, x[i : i + 1], y[i : i + 1], math.inf) for i in range(3)]
    mean = 0.2 * whole[0] + 0.8 * whole[1]
    first, second = (one * min(1.0, 0.5 / float(one.norm())) for one in (mean, whole[2]))
    assert torch.allclose(total.double() * (grid or 1.0), 0.625 * first + 0.25 * second, atol=2e-5)


@pytest.mark.parametrize("each", [1, 2])
def test_equal_weights_change_no_bit(each: int) -> None:
    model, layout = model_of()
    x, y = torch.rand(8, 3), torch.arange(8) % 2
    plain = PerExample(model, layout, "cross_entropy").clipped_sum(x, y, 0.1, each=each)[0]
    same = PerExample(model, layout, "cross_entropy", class_weights=(3.0, 3.0)).clipped_sum(
        x, y, 0.1, each=each
    )[0]
    assert torch.equal(plain, same)


@pytest.mark.parametrize("weights", [(1.0, 1e6), (1e6, 1e-6), (5.0, 5.0)])
@pytest.mark.parametrize("value", [0.0, 1.0, 1e-42, 1e30, math.nan, math.inf])
@pytest.mark.parametrize("each", [1, 2])
def test_nobody_moves_a_sum_by_more_than_the_clip(
    weights: tuple[float, ...], value: float, each: int
) -> None:
    model, layout = model_of()
    x, y = 100 * torch.rand(6, 3), torch.tensor([0, 1, 1, 0, 1, 1])
    sums = PerExample(model, layout, "cross_entropy", class_weights=weights)
    for label in (0, 1):
        x[2:4], y[2:4] = value, label
        here = torch.ones(6, dtype=torch.bool)
        whole = sums.clipped_sum(x, y, 0.5, here, each=each)[0]
        here[2 : 2 + each] = False
        assert float((whole - sums.clipped_sum(x, y, 0.5, here, each=each)[0]).norm()) <= 0.5
    one, other = x.clone(), x.clone()
    one[2:4], other[2:4] = 1e3, -1e3
    moved = (
        sums.clipped_sum(one, y, 0.5, each=each)[0] - sums.clipped_sum(other, y, 0.5, each=each)[0]
    )
    assert float(moved.norm()) <= 2 * 0.5 * (
        2 if each == 1 else 1
    )  # two rows are replaced where rows are the units


def test_the_largest_weight_reaches_the_clip() -> None:
    """Sized for C: weights that were divided by their sum would leave noise for nothing."""
    model, layout = model_of()
    sums = PerExample(model, layout, "cross_entropy", class_weights=(1.0, 4.0))
    lengths = [
        float(sums.clipped_sum(torch.ones(1, 3), torch.tensor([label]), 0.01)[0].norm())
        for label in (0, 1)
    ]
    assert lengths == pytest.approx([0.0025, 0.01], rel=1e-5)


def test_a_label_beyond_the_weights_counts_as_zero() -> None:
    model, layout = model_of(outputs=3)
    x, y = torch.rand(2, 3), torch.tensor([2, 1])
    sums = PerExample(model, layout, "cross_entropy", class_weights=(1.0, 1.0))
    assert torch.allclose(
        sums.clipped_sum(x, y, 0.5)[0], clipped(model, x[1:], y[1:], 0.5), atol=1e-6
    )


def test_the_noise_stays_as_it_was() -> None:
    """What the trainer adds does not know of weights: the mark that the method checks is the same."""
    model, layout = model_of()
    data = ClientData(torch.rand(8, 3), torch.arange(8) % 2)
    from fedveil.mechanisms import ReproducibleSource

    start = layout.read(model)[None]
    made = []
    for weights in ((), (1.0, 1e-9)):
        trainer = PrivateTrainer(model, layout, LocalTraining(lr=1.0, class_weights=weights), NOISY)
        [trained] = trainer.train_noisily(start, [data], [(0, 1)], [ReproducibleSource(3)])
        made.append(trained)
    assert made[0].noised == made[1].noised == NOISY
    difference = (made[0].model - made[1].model).double() * NOISY.denominator
    assert 0 < float(difference.norm()) <= 8 * 0.5  # the noise is the same, and falls out


@pytest.mark.parametrize("bad", [(0.0, 1.0), (-1.0, 1.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_weights_that_are_none_are_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(FieldError) as refused:
        LocalTraining(class_weights=bad)
    assert refused.value.field == "class_weights[0]"


def test_weights_without_noise_are_refused() -> None:
    model, layout = model_of()
    with pytest.raises(FieldError) as refused:
        make_trainer(model, layout, LocalTraining(class_weights=(1.0, 2.0)))
    assert refused.value.field == "class_weights"


def test_weights_of_numbers_are_refused() -> None:
    model, layout = model_of(outputs=1)
    local = LocalTraining(loss="mse", class_weights=(1.0, 2.0))
    with pytest.raises(FieldError):
        make_trainer(model, layout, local, noisy=NOISY, example=(torch.rand(1, 3), torch.rand(1)))
    trainer = PrivateTrainer(model, layout, replace(local), NOISY)
    data, source = ClientData(torch.rand(8, 3), torch.rand(8)), object()
    with pytest.raises(FieldError) as refused:
        trainer.train_noisily(layout.read(model)[None], [data], [(0, 1)], [source])  # type: ignore[list-item]
    assert refused.value.field == "class_weights"
