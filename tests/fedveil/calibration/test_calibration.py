import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.calibration import (
    AlignmentLDP,
    LayerSensitivity,
    MetricCalibrator,
    NeighbourhoodLaplace,
    cosine,
    max_pairwise_distance,
)
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.methods import MetricPrivacy

LAYOUT = Layout.from_shapes({"a.weight": (2,), "a.bias": (1,), "b.weight": (1,)}, torch.float64)


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def papers_rule(models, shapes):
    """The published definition, straight from the formula: max over pairs of the mean over arrays of ||A - B||_2."""
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    clients = [
        [part.reshape(s) for part, s in zip(np.split(m, cuts), shapes, strict=True)] for m in models
    ]
    pairs = [(p, q) for i, p in enumerate(clients) for q in clients[i + 1 :]]
    return max(
        float(np.mean([np.linalg.norm(a - b) for a, b in zip(p, q, strict=True)])) for p, q in pairs
    )


# ---- distance

# differences: 0-1 (3, 4 | 12 | 0), 0-2 (0, 0 | 0 | 9), 1-2 (3, 4 | 12 | 9)
MODELS = f64([0, 0, 0, 0], [3, 4, 12, 0], [0, 0, 0, 9])


@pytest.mark.parametrize(
    ("rows", "grouping", "metric", "expected"),
    [
        ([0, 1], "array", "layer_frobenius", (5 + 12 + 0) / 3),
        ([0, 2], "array", "layer_frobenius", 9 / 3),
        ([0, 1, 2], "array", "layer_frobenius", (5 + 12 + 9) / 3),
        ([0, 1], "module", "layer_frobenius", (13 + 0) / 2),  # 5, 12, 13
        ([0, 1, 2], "module", "layer_frobenius", (13 + 9) / 2),
        ([0, 1], "array", "euclidean", 13),
        ([0, 1, 2], "array", "euclidean", math.sqrt(13**2 + 9**2)),
        ([1], "array", "layer_frobenius", 0),
        ([1, 1, 1], "array", "layer_frobenius", 0),
    ],
)
def test_distance_by_hand(rows, grouping, metric, expected):
    assert max_pairwise_distance(MODELS[rows], LAYOUT, grouping, metric) == pytest.approx(
        expected, rel=1e-12
    )
    # the common start cancels, and the order does not matter
    moved = (MODELS + 17.0)[list(reversed(rows))]
    assert max_pairwise_distance(moved, LAYOUT, grouping, metric) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize(
    "n", [2, 4, 8, 9, 20]
)  # pairs are subtracted up to 8 models; above, a Gram matrix is used
@pytest.mark.parametrize("spread", [1.0, 1e-3])  # close models would cancel in a naive Gram matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distance_agrees_with_the_papers_rule(n, spread, dtype):
    shapes = {
        "conv.weight": (8, 3, 3, 3),
        "conv.bias": (8,),
        "head.weight": (200, 200),
        "head.bias": (),
        "z": (7,),
    }
    layout = Layout.from_shapes(shapes, dtype)
    models = (torch.randn(layout.size) * 3 + spread * torch.randn(n, layout.size)).to(dtype)
    expected = papers_rule(models.double().numpy(), list(shapes.values()))
    assert max_pairwise_distance(models, layout) == pytest.approx(expected, rel=1e-6)
    whole = max(float((p - q).norm()) for p in models.double() for q in models.double())
    assert max_pairwise_distance(models, layout, metric="euclidean") == pytest.approx(
        whole, rel=1e-6
    )


def test_both_paths_agree_on_the_same_models():
    # nine rows, two of them equal, go the other way than the eight distinct ones, and have the same distance
    models = 5 + 1e-3 * torch.randn(8, 4, dtype=torch.float64)
    nine = torch.cat([models, models[:1]])
    for metric in ("layer_frobenius", "euclidean"):
        eight_way = max_pairwise_distance(models, LAYOUT, metric=metric)
        assert max_pairwise_distance(nine, LAYOUT, metric=metric) == pytest.approx(
            eight_way, rel=1e-6
        )


@given(st.integers(2, 12), st.floats(1e-3, 1e3))
def test_distance_is_homogeneous_and_symmetric(n, factor):
    models = torch.randn(n, 4, dtype=torch.float64)
    d = max_pairwise_distance(models, LAYOUT)
    assert d > 0
    assert max_pairwise_distance(models * factor, LAYOUT) == pytest.approx(factor * d, rel=1e-6)
    assert max_pairwise_distance(models.flip(0), LAYOUT) == pytest.approx(d, rel=1e-9)


def test_the_cosine_is_that_of_the_farthest_two_updates_of_whatever_lengths():
    updates = f64([1, 0, 0, 0], [0, 5, 0, 0], [1e-9, 1e-9, 0, 0], [-2, 0, 0, 0])
    assert max_pairwise_distance(updates[[0, 2]], LAYOUT, metric="cosine") == pytest.approx(
        1 - math.sqrt(0.5)
    )
    assert max_pairwise_distance(updates[:2], LAYOUT, metric="cosine") == pytest.approx(1)
    assert max_pairwise_distance(updates, LAYOUT, metric="cosine") == pytest.approx(2)
    assert max_pairwise_distance(updates[[1, 1]], LAYOUT, metric="cosine") == 0
    assert max_pairwise_distance(f64([0, 0, 0, 0], [0, 0, 3, 0]), LAYOUT, metric="cosine") == 0.5
    many = torch.randn(20, 4, dtype=torch.float64)
    unit = many / many.norm(dim=1, keepdim=True)
    assert max_pairwise_distance(many, LAYOUT, metric="cosine") == pytest.approx(
        float(1 - (unit @ unit.T).min())
    )


def test_distance_refusals():
    with pytest.raises(FieldError, match=r"\[n, d\]"):
        max_pairwise_distance(MODELS[0], LAYOUT)
    with pytest.raises(FieldError, match="NaN or infinity"):
        max_pairwise_distance(f64([0, 0, 0, 0], [0, 0, 0, float("nan")]), LAYOUT)
    with pytest.raises(FieldError, match="layer_frobenius"):
        max_pairwise_distance(MODELS, LAYOUT, metric="frobenius")
    with pytest.raises(FieldError, match="grouping"):
        max_pairwise_distance(MODELS, LAYOUT, grouping="layers")
    with pytest.raises(FieldError, match="between two clients' updates"):
        MetricPrivacy(distance="cosine", distance_on="released")
    with pytest.raises(FieldError, match="models"):
        max_pairwise_distance(torch.zeros(2, 5), LAYOUT)


# ---- the server's scales


def test_global_scale_by_hand():
    assert MetricCalibrator(0.01, 5.0).sigma(n=4, distance=0.0) == pytest.approx(
        0.0125
    )  # the paper's setting


def test_metric_scale_by_hand():
    assert MetricCalibrator(0.01, 5.0).sigma(n=4, distance=2.5) == pytest.approx(0.005)
    assert MetricCalibrator(0.01, 5.0, "more").sigma(n=4, distance=2.5) == pytest.approx(0.03125)
    for direction in ("less", "more"):
        assert MetricCalibrator(0.01, 5.0, direction).sigma(n=4, distance=0.0) == pytest.approx(
            0.0125
        )
        assert MetricCalibrator(0.01, 5.0, direction).sigma(n=4, distance=1.0) == pytest.approx(
            0.0125
        )


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), "1"])
def test_bad_scales_are_refused(bad):
    with pytest.raises(FieldError, match="noise_multiplier"):
        MetricCalibrator(bad, 1.0)
    with pytest.raises(FieldError, match="clip"):
        MetricCalibrator(1.0, bad)
    with pytest.raises(FieldError, match="n = "):
        MetricCalibrator(1.0, 1.0).sigma(n=bad, distance=0.0)
    if bad != 0:
        with pytest.raises(FieldError, match="distance"):
            MetricCalibrator(1.0, 1.0).sigma(n=1, distance=bad)
    with pytest.raises(FieldError, match="direction"):
        MetricCalibrator(1.0, 1.0, "lesser")
    with pytest.raises(FieldError, match="noise_multiplier"):
        NeighbourhoodLaplace(bad)


# ---- group privacy


def test_neighbourhood_by_hand():
    # n = 3, ||(2, 3, 6)|| = 7, nu = 5: epsilon = 3 / 35, and the leakage is n / nu whatever the step
    rule = NeighbourhoodLaplace(5.0)
    step = f64([2, 3, 6])[0]
    assert rule.epsilon(step) == pytest.approx(3 / 35)
    assert rule.leakage(3) == pytest.approx(rule.epsilon(step) * 7)
    assert rule.leakage(11) == pytest.approx(
        2.2
    )  # the paper's hospital network: 11 parameters, nu = 5


def test_a_zero_step_has_no_neighbourhood():
    with pytest.raises(FieldError, match="not zero"):
        NeighbourhoodLaplace(5.0).epsilon(torch.zeros(3))
    with pytest.raises(FieldError, match="update"):
        NeighbourhoodLaplace(5.0).epsilon(torch.ones(2, 3))


# ---- FedRE


def test_split_by_hand():
    # scores 1, 2, 4: inverses 1, 1/2, 1/4 share 7/4; epsilon 14 gives 8, 4, 2
    rule = LayerSensitivity(epsilon=14.0, delta=3e-5, clip=1.0, rounds=2)
    result = rule.split([1.0, 2.0, 4.0])
    assert result["epsilon"] == pytest.approx([8, 4, 2])
    numerator = math.sqrt(2 * 2 * math.log(1 / 1e-5))  # delta is shared: 1e-5 a layer
    assert result["sigma"] == pytest.approx([numerator / 8, numerator / 4, numerator / 2])


def test_a_mapping_is_read_in_its_order():
    rule = LayerSensitivity(epsilon=1.0, delta=1e-5, clip=1.0, rounds=1)
    assert rule.split({"b": 4.0, "a": 1.0}) == rule.split([4.0, 1.0])
    assert rule.split({"b": 4.0, "a": 1.0})["epsilon"] == pytest.approx([0.2, 0.8])


def test_a_zero_score_is_floored_and_gets_almost_everything():
    result = LayerSensitivity(epsilon=1.0, delta=1e-5, clip=1.0, rounds=1).split([0.0, 1.0])
    assert result["epsilon"] == pytest.approx([1.0, 1e-12], rel=1e-9)
    assert all(math.isfinite(s) for s in result["sigma"])


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
def test_the_split_does_not_depend_on_the_unit_of_the_scores(scale):
    rule = LayerSensitivity(epsilon=14.0, delta=1e-5, clip=1.0, rounds=1)
    assert rule.split([scale, 2 * scale, 4 * scale])["epsilon"] == pytest.approx([8, 4, 2])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(any))
def test_the_budgets_add_up_and_sensitive_layers_get_less(scores):
    result = LayerSensitivity(epsilon=10.0, delta=1e-5, clip=1.0, rounds=5).split(scores)
    assert math.fsum(result["epsilon"]) == pytest.approx(10.0)
    assert all(e > 0 for e in result["epsilon"])
    order = sorted(range(len(scores)), key=scores.__getitem__)
    budgets = [result["epsilon"][i] for i in order]
    assert budgets == sorted(budgets, reverse=True)
    assert [result["sigma"][i] for i in order] == sorted(result["sigma"])


@pytest.mark.parametrize(
    "scores", [[], [0.0, 0.0], [-1.0, 1.0], [float("nan")], [float("inf"), 1.0], {"a": 0}]
)
def test_bad_scores_are_refused(scores):
    with pytest.raises(FieldError, match="scores"):
        LayerSensitivity(epsilon=1.0, delta=1e-5, clip=1.0, rounds=1).split(scores)


# ---- SGA-LDP

RULE = AlignmentLDP(epsilon_min=1.0, epsilon_max=5.0, delta=1e-5, clip=1.0)


def test_alignment_by_hand():
    update = f64([3, 4])[0]
    assert RULE.epsilon(update, None) == 1.0
    assert RULE.epsilon(update, torch.zeros(2, dtype=torch.float64)) == 1.0
    assert RULE.epsilon(torch.zeros(2, dtype=torch.float64), update) == 1.0
    assert RULE.epsilon(update, -update) == 1.0  # a negative cosine counts as 0
    assert RULE.epsilon(update, f64([-4, 3])[0]) == 1.0  # right angles
    assert RULE.epsilon(update, 7 * update) == 5.0
    assert RULE.epsilon(update, f64([1, 0])[0]) == pytest.approx(1 + 4 * 0.6)
    assert cosine(update, f64([1, 0])[0]) == pytest.approx(0.6)


def test_alignment_sigma_is_the_analytic_one():
    assert RULE.sigma(1.0) == pytest.approx(3.730631635, rel=1e-9)  # see test_gdp
    assert AlignmentLDP(1.0, 5.0, 1e-5, clip=0.2).sigma(1.0) == pytest.approx(
        0.2 * 3.730631635, rel=1e-9
    )


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_the_budget_stays_in_its_range_and_ignores_lengths(seed, factor):
    generator = torch.Generator().manual_seed(seed)
    update, reference = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    epsilon = RULE.epsilon(update, reference)
    assert 1.0 <= epsilon <= 5.0
    assert RULE.epsilon(update * factor, reference) == pytest.approx(epsilon, rel=1e-9)
    assert RULE.epsilon(update, reference * factor) == pytest.approx(epsilon, rel=1e-9)


def test_alignment_refusals():
    with pytest.raises(FieldError, match="epsilon_max"):
        AlignmentLDP(2.0, 1.0, 1e-5, 1.0)
    with pytest.raises(FieldError, match="delta"):
        AlignmentLDP(1.0, 2.0, 1.0, 1.0)
    with pytest.raises(FieldError, match="reference"):
        RULE.epsilon(torch.zeros(2), torch.zeros(3))
    with pytest.raises(FieldError, match="finite"):
        RULE.epsilon(torch.tensor([float("nan"), 0.0]), torch.ones(2))
