"""What is foreseen before data are used: by hand, against simulated training, and in what it follows."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import norm

from fedveil.aggregation import FedAvg
from fedveil.errors import FieldError
from fedveil.methods import GlobalDP, RecordDP
from fedveil_lab.config.foresight import (
    PULL,
    Shape,
    directions,
    evenness,
    foresee,
    least_reach,
    pull_of,
    right,
    weighing,
)

TABLE = Shape(classes=2, inputs=20, image=False, units=1000, rows=1, held_out=250)


def test_the_pull_by_hand() -> None:
    # 16 steps whose mean has noise 2 * .5 / (100 * sqrt 4) = .005: sqrt(16) * .5 / .005 = 400
    silos = RecordDP(examples=100, noise_multiplier=2.0, rounds=16, clip=0.5)
    assert pull_of(silos, 4) == pytest.approx(400)
    # 25 rounds of 10 clients at z = 2: 5 * 10 / 2
    assert pull_of(GlobalDP(FedAvg(), noise_multiplier=2.0, rounds=25), 10) == 25
    assert pull_of(object(), 10) is None


def test_of_two_classes_the_margin_is_that_of_two_normal_clouds() -> None:
    # two middles at right angles, each 3 from the origin: 3 sqrt 2 apart
    assert right(3.0, 2) == pytest.approx(norm.cdf(3 / 2**0.5), abs=1e-4)
    assert right(0.0, 7) == pytest.approx(1 / 7, abs=1e-4)


def test_without_noise_and_with_rows_enough_what_is_possible_is_reached() -> None:
    many = replace(TABLE, units=10**8)
    assert foresee(many, 1e9, 0.8).score == pytest.approx(0.8, abs=1e-3)
    assert foresee(replace(many, classes=0), 1e9, 0.3).score == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize("classes", [2, 5, 0])
def test_nothing_but_noise_is_chance(classes) -> None:
    found = foresee(replace(TABLE, classes=classes), 1e-6, 0.9)
    assert found.useless
    assert found.score == pytest.approx(1 / classes if classes else 0.0, abs=1e-3)
    assert least_reach(replace(TABLE, classes=classes), 1e-6) == 1.0


def test_more_of_everything_that_helps_helps() -> None:
    usual = foresee(TABLE, 60.0, 0.9).score
    assert foresee(TABLE, 120.0, 0.9).score > usual
    assert foresee(replace(TABLE, units=4000), 60.0, 0.9).score > usual
    assert foresee(replace(TABLE, inputs=200), 60.0, 0.9).score < usual
    assert foresee(replace(TABLE, weighing=0.2), 60.0, 0.9).score < usual
    assert foresee(replace(TABLE, rows=20), 60.0, 0.9).score > usual  # a unit's mean points better
    assert foresee(replace(TABLE, inputs=200, image=True), 60.0, 0.9).score > usual - 0.05


def test_colours_of_one_place_are_no_new_directions() -> None:
    grey = replace(TABLE, inputs=784, image=True)
    photograph = replace(grey, inputs=3 * 784, colours=3)
    assert directions(photograph) == directions(grey)
    assert foresee(photograph, 60.0, 0.9) == foresee(grey, 60.0, 0.9)


def test_a_shorter_interval_tells_more() -> None:
    few, many = (replace(TABLE, held_out=n) for n in (30, 3000))
    assert foresee(few, 30.0, 0.7).useless
    assert not foresee(many, 30.0, 0.7).useless
    assert least_reach(few, 30.0) > least_reach(many, 30.0)


@pytest.mark.parametrize("reach", [0.5, 0.2, 1.0, 7.0])
def test_what_is_no_score_above_chance_is_refused(reach) -> None:
    with pytest.raises(FieldError) as refused:
        foresee(TABLE, 10.0, reach)
    assert refused.value.field == "reach"


def test_the_mean_weight_by_hand() -> None:
    # three rows of weight 1/3 beside one of weight 1: (3 / 3 + 1) / 4
    assert weighing([1 / 3, 1.0]) == pytest.approx(0.5)
    assert weighing([]) == 1.0


@pytest.mark.parametrize("rows", [(10, 10), (90, 10), (3, 44, 153, 800)])
def test_the_interval_of_uneven_classes_is_that_of_their_own_rows(rows) -> None:
    """A class counts as many held-out rows as it has, and not as few as the rarest has."""
    weights = [min(rows) / own for own in rows]
    shape = Shape(
        classes=len(rows),
        inputs=20,
        image=False,
        units=10**6,
        rows=1,
        held_out=sum(rows),
        weighing=weighing(weights),
        even=evenness(weights),
    )
    found = foresee(shape, 1e9, 0.8)
    variance = sum(found.score * (1 - found.score) / own for own in rows) / len(rows) ** 2
    assert found.score - found.low == pytest.approx(1.96 * variance**0.5)


@pytest.mark.parametrize("deviation", [0.005, 0.02, 0.06])
def test_noisy_training_on_the_made_up_task_reaches_what_is_foreseen(deviation) -> None:
    """Sixty steps of a linear model on two clouds, gradients cut to 1, against the formula without its constant."""
    draw = torch.Generator().manual_seed(5)
    inputs, rows, margin = 20, 1000, norm.ppf(0.9) * 2**0.5
    middles = torch.zeros(2, inputs)
    middles[0, 0] = middles[1, 1] = margin

    def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % 2
        return middles[y] + torch.randn(count, inputs, generator=draw), y

    scores = []
    for _ in range(12):
        x, y = drawn(rows)
        model = torch.zeros(inputs, 2)
        for _ in range(60):
            rest = torch.softmax(x @ model, 1) - torch.nn.functional.one_hot(y, 2)
            norms = rest.norm(dim=1) * x.norm(dim=1)
            step = x.T @ (rest * (1 / norms.clamp(min=1.0))[:, None]) / rows
            noise = torch.randn(model.shape, generator=draw)
            model -= 0.01 * (step + deviation * noise)
        test_x, test_y = drawn(4000)
        scores.append(((test_x @ model).argmax(1) == test_y).double().mean())
    shape = replace(TABLE, inputs=inputs, units=rows)
    expected = foresee(shape, 60**0.5 / deviation / PULL, 0.9).score
    assert float(torch.stack(scores).mean()) == pytest.approx(expected, abs=0.04)
