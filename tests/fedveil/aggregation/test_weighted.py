"""Robust rules with declared weights: by hand, their bounds, and the unweighted rules where all weigh the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.aggregation import (
    AGGREGATORS,
    FedAvg,
    FedMedian,
    GeometricMedian,
    SplitTrimmedMean,
    TrimmedMean,
    WeightedGeometricMedian,
    WeightedMedian,
    by_weight,
    capped_weights,
    withstands_weight,
)
from fedveil.errors import FieldError


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def even(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


def column(*values):
    return f64(*values)[:, None]


def test_weights_follow_sizes_up_to_the_cap():
    assert capped_weights([700, 100, 100, 100], 0.4).tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])
    assert capped_weights([6, 3, 1], 1.0).tolist() == pytest.approx([0.6, 0.3, 0.1])
    assert capped_weights([6, 3, 1], 0.4).tolist() == pytest.approx(
        [0.4, 0.4, 0.2]
    )  # the second one follows
    assert capped_weights([6, 3, 1], 1 / 3).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("declared", "cap", "field"),
    [
        ([], 1.0, "weights"),
        ([1, 0], 1.0, "weights"),
        ([1, 1, 1], 0.3, "cap"),
        ([1, 1], 1.5, "cap"),
        ([1], 0.0, "cap"),
    ],
)
def test_sizes_and_caps_that_cannot_be_are_refused(declared, cap, field):
    with pytest.raises(FieldError) as refused:
        capped_weights(declared, cap)
    assert refused.value.field == field


@given(
    st.lists(st.floats(min_value=0.01, max_value=1e6), min_size=1, max_size=12),
    st.floats(min_value=0.01, max_value=1.0),
)
def test_capped_weights_sum_to_one_below_the_cap_in_the_order_of_the_sizes(declared, share):
    cap = 1 / len(declared) + share * (1 - 1 / len(declared))
    weights = capped_weights(declared, cap)
    assert float(weights.sum()) == pytest.approx(1.0)
    assert float(weights.max()) <= cap + 1e-8
    order = torch.tensor(declared).argsort(stable=True)
    assert bool((weights[order].diff() >= -1e-9).all())


def test_the_weighted_median_by_hand():
    rule = WeightedMedian()
    assert rule.reduce(column(1, 2, 9), f64(0.2, 0.2, 0.6)).tolist() == [9]
    assert rule.reduce(column(1, 2, 9), f64(0.25, 0.25, 0.5)).tolist() == [
        5.5
    ]  # half lies below, half above
    assert rule.reduce(column(9, 1, 2), f64(0.4, 0.3, 0.3)).tolist() == [2]


def test_the_split_trimmed_mean_by_hand():
    rule = SplitTrimmedMean(0.25)
    # of weights .5, .25, .25 a quarter is cut off at each end: half of the first and all of the last
    assert rule.reduce(column(4, 8, 100), f64(0.5, 0.25, 0.25)).tolist() == [6]
    assert SplitTrimmedMean(0.0).reduce(column(4, 8, 100), f64(0.5, 0.25, 0.25)).tolist() == [29]


def test_the_weighted_geometric_median_by_hand():
    corners = f64([0, 0], [1, 0], [0, 1])
    heavy = WeightedGeometricMedian(smoothing=1e-12, iterations=5000).reduce(
        corners, f64(0.6, 0.2, 0.2)
    )
    assert heavy.tolist() == pytest.approx(
        [0, 0], abs=1e-6
    )  # more than half of the weight lies there
    twice = torch.cat([corners, corners[:1]])
    alike = GeometricMedian(smoothing=1e-12, iterations=5000).reduce(twice, even(4))
    found = WeightedGeometricMedian(smoothing=1e-12, iterations=5000).reduce(
        corners, f64(0.5, 0.25, 0.25)
    )
    assert found.tolist() == pytest.approx(alike.tolist(), abs=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 33])
def test_with_equal_weights_they_are_the_unweighted_rules(n):
    updates = torch.randn(n, 50, generator=torch.Generator().manual_seed(n))
    pairs = [
        (FedMedian(), 1e-15),
        (GeometricMedian(), 1e-9),
        (TrimmedMean(1 / n if n > 2 else 0.0), 1e-12),
    ]
    for rule, within in pairs:
        found, expected = by_weight(rule).reduce(updates, even(n)), rule.reduce(updates, even(n))
        torch.testing.assert_close(found, expected, atol=within, rtol=0)


RULES = [
    WeightedMedian(),
    SplitTrimmedMean(0.2),
    SplitTrimmedMean(0.4),
    WeightedGeometricMedian(),
    FedAvg(),
]


def within(updates):
    return updates / updates.norm(dim=1, keepdim=True).clamp(min=1.0)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_change_of_one_update_is_above_the_bound(rule, relation, data):
    n, d = data.draw(st.integers(2, 9)), data.draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    weights = capped_weights(torch.rand(n, generator=generator).add(0.05).tolist(), 1.0)
    updates = within(torch.randn(n, d, generator=generator, dtype=torch.float64) * 3)
    other = updates.clone()
    place = data.draw(st.integers(0, n - 1))
    opposite = -updates[place] / updates[place].norm()
    other[place] = 0.0 if relation == "zero-out" else opposite
    moved = float((rule.reduce(updates, weights) - rule.reduce(other, weights)).norm())
    assert moved <= rule.sensitivity(1.0, weights, relation) * (1 + 1e-9) + 1e-9


def test_bounds_are_met_and_a_smaller_one_would_be_false():
    three = f64(0.4, 0.3, 0.3)
    median = [WeightedMedian().reduce(column(*v), three).item() for v in ((1, 1, -1), (-1, 1, -1))]
    assert median == [1, -1]  # 2C by one update
    w, b = f64(0.5, 0.25, 0.25), 0.2
    middle = [
        SplitTrimmedMean(b).reduce(column(*v), w).item() for v in ((0.0, 1, -1), (0.1, 1, -1))
    ]
    assert middle[1] - middle[0] == pytest.approx(
        0.1 * 0.5 / (1 - 2 * b)
    )  # w_max / (1 - 2b) of the change


def test_one_client_moves_the_geometric_median_by_more_than_c():
    far = f64([-0.9456, -0.3252], [-0.2426, 0.9701], [-0.9523, -0.3052], [-0.0447, 0.9990])
    near = far.clone()
    near[0] = 0.0
    rule = WeightedGeometricMedian(smoothing=1e-12, iterations=5000)
    moved = float((rule.reduce(far, even(4)) - rule.reduce(near, even(4))).norm())
    assert 1.1 < moved <= rule.sensitivity(1.0, even(4), "zero-out")


def test_add_remove_has_no_bound():
    for rule in (WeightedMedian(), SplitTrimmedMean(0.2)):
        assert rule.sensitivity(1.0, even(4), "add/remove") is None


def test_a_tie_is_no_matter_of_rounding():
    n = 10  # ten tenths do not add to 1 in floating point
    for seed in range(20):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        values = torch.arange(n, dtype=torch.float64)[order][:, None]
        assert WeightedMedian().reduce(values, even(n)).tolist() == [4.5]


def test_how_many_malicious_sites_the_weights_bear():
    assert withstands_weight(even(4)) == 1  # two weigh half
    assert withstands_weight(even(5)) == 2
    assert withstands_weight(f64(0.5, 0.3, 0.2)) == 0
    assert withstands_weight(f64(0.4, 0.2, 0.2, 0.2)) == 1


MEANS = {
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedopt",
    "fedadam",
    "fedadagrad",
    "fedyogi",
    "norm-bounding",
}


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_rules_that_count_updates_take_no_weights(name):
    rule = AGGREGATORS[name]()
    if name in MEANS:
        assert by_weight(rule) == rule
    elif name in {"fedmedian", "trimmed-mean", "geometric-median"}:
        assert type(by_weight(rule)) is not type(rule)
        assert by_weight(by_weight(rule)) == by_weight(rule)
    else:
        with pytest.raises(FieldError) as refused:
            by_weight(rule)
        assert refused.value.field == "weights"


def test_parameters_are_kept():
    assert by_weight(TrimmedMean(0.3)) == SplitTrimmedMean(0.3)
    assert by_weight(GeometricMedian(smoothing=0.5, iterations=7)) == WeightedGeometricMedian(
        0.5, 7
    )
