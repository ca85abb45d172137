import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from sklearn.cluster import KMeans

from fedveil.aggregation import (
    AGGREGATORS,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedOpt,
    FedProx,
    FedYogi,
    Krum,
    MultiKrum,
    TrimmedMean,
    cluster_means,
    halves,
    perturbation_weights,
)
from fedveil.engines.states import pack, unpack
from fedveil.errors import FieldError
from fedveil.mechanisms import NoSource


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def uniform(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


# ---- rules by hand


def test_mean_by_hand():
    updates = f64([1, 2], [3, 6])
    assert FedAvg().reduce(updates, uniform(2)).tolist() == [2, 4]
    weights = FedAvg("examples").weights(torch.tensor([1.0, 3.0]), 2)
    assert weights.tolist() == [0.25, 0.75]
    assert FedAvg().weights(torch.tensor([1.0, 3.0]), 2).tolist() == [0.5, 0.5]
    assert FedAvg().reduce(updates, weights).tolist() == [2.5, 5.0]
    model, state = FedAvg().step(f64(10, 20), f64(2.5, 5.0), FedAvg().init(2, torch.float64))
    assert model.tolist() == [12.5, 25.0]
    assert state == FedAvg().init(2, torch.float64)


def test_median_by_hand():
    odd = f64([1, 10], [5, -1], [2, 3])
    assert FedMedian().reduce(odd, uniform(3)).tolist() == [2, 3]
    even = f64([1, 10], [5, -1], [2, 3], [100, 4])
    assert FedMedian().reduce(even, uniform(4)).tolist() == [3.5, 3.5]
    single = f64([7, 8])
    result = FedMedian().reduce(single, uniform(1))
    result[0] = 0
    assert single.tolist() == [[7, 8]]  # nothing is shared with the input


def test_adam_by_hand():
    # no bias correction: m = .1 * 1, v = .01 * 1, step = .1 * .1 / (.1 + .001) = .01 / .101
    rule = FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    state = rule.init(1, torch.float64)
    model, state = rule.step(f64(2.0), f64(1.0), state)
    assert model.item() == pytest.approx(2 + 0.01 / 0.101)
    assert (state.first.item(), state.second.item()) == pytest.approx((0.1, 0.01))
    # then m = .09 + .1 * (-1) = -.01, v = .0099 + .01 = .0199
    model, state = rule.step(model, f64(-1.0), state)
    assert model.item() == pytest.approx(
        2 + 0.01 / 0.101 - 0.1 * 0.01 / (math.sqrt(0.0199) + 0.001)
    )


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        # steps along the updates 1 and then -1, by hand from the published formulas
        (FedOpt(lr=0.5), 0.5, -0.5),
        (FedAvgM(lr=0.1, momentum=0.5), 0.1, 0.1 * (0.5 - 1)),
        # v = 1, m = 1; then v = 2, m = -1
        (FedAdagrad(lr=0.1, tau=1e-3), 0.1 / 1.001, -0.1 / (math.sqrt(2) + 1e-3)),
        # v = 0 - .01 sign(0 - 1) = .01, m = .1; then v = .01 - .01 sign(.01 - 1) = .02, m = -.01
        (FedYogi(lr=0.01), 0.01 * 0.1 / 0.101, -0.01 * 0.01 / (math.sqrt(0.02) + 1e-3)),
    ],
    ids=["opt", "momentum", "adagrad", "yogi"],
)
def test_server_optimisers_by_hand(rule, first, second):
    model, state = rule.step(f64(0.0), f64(1.0), rule.init(1, torch.float64))
    assert model.item() == pytest.approx(first, rel=1e-12)
    after, _ = rule.step(model, f64(-1.0), state)
    assert after.item() - model.item() == pytest.approx(second, rel=1e-9)


def test_trimmed_mean_by_hand():
    # five values, a fifth off each end
    updates = f64([0], [10], [2], [3], [-50])
    assert TrimmedMean(0.2).reduce(updates, uniform(5)).tolist() == [(0 + 2 + 3) / 3]
    assert TrimmedMean(0.1).reduce(updates, uniform(5)).item() == pytest.approx(
        -7
    )  # nothing to cut
    assert TrimmedMean(0.4).reduce(updates, uniform(5)).tolist() == [2]


def test_krum_by_hand():
    # n = 5, one malicious: each update's two nearest others. (1) has 1 + 1, (0) 1 + 4, (2) 1 + 4, (10), (11) more
    updates = f64([0], [1], [2], [10], [11])
    assert Krum(malicious=1).reduce(updates, uniform(5)).tolist() == [1]
    assert MultiKrum(malicious=1, selected=3).reduce(updates, uniform(5)).tolist() == [1]
    assert MultiKrum(malicious=1, selected=2).reduce(updates, uniform(5)).tolist() == [
        0.5
    ]  # a tie: the first


def test_krum_may_select_the_zero_update_of_an_absent_client():
    # three absent clients of six agree best: the result is 0, not 0 / 0
    updates = f64([1], [5], [9], [0], [0], [0])
    weights = torch.cat([uniform(6)[:3], torch.zeros(3, dtype=torch.float64)])
    assert Krum(malicious=1).reduce(updates, weights).tolist() == [0]
    with pytest.raises(FieldError, match="selected"):
        MultiKrum(selected=7).reduce(updates, weights)


def test_fedprox_is_fedavg_on_the_server():
    updates, weights = torch.randn(3, 4), uniform(3)
    assert torch.equal(FedProx(mu=0.5).reduce(updates, weights), FedAvg().reduce(updates, weights))
    assert FedProx().sensitivity(5.0, weights, "zero-out") == FedAvg().sensitivity(
        5.0, weights, "zero-out"
    )


def test_weights_against_a_planned_cohort():
    # two replies of a cohort of four: a quarter each, and nobody's share grows because others stayed away
    assert FedAvg().planned_weights(None, 2, 4).tolist() == [0.25, 0.25]
    # by examples, with a declared bound of 100: 50/100 and (250 counts as 100)/100 of a quarter
    bounded = FedAvg("examples", max_examples=100)
    assert bounded.planned_weights(torch.tensor([50.0, 250.0]), 2, 4).tolist() == [0.125, 0.25]
    assert bounded.weights(torch.tensor([50.0, 250.0]), 2).tolist() == pytest.approx([1 / 3, 2 / 3])
    with pytest.raises(FieldError, match="max_examples"):
        FedAvg("examples").planned_weights(torch.tensor([1.0]), 1, 1)
    with pytest.raises(FieldError, match="max_examples"):
        FedAvg(max_examples=5)


def test_states_are_not_changed_in_place():
    rule = FedAdam()
    state = rule.init(2, torch.float32)
    rule.step(torch.zeros(2), torch.ones(2), state)
    assert state.first.tolist() == state.second.tolist() == [0, 0]
    assert state.first.dtype == torch.float32


@pytest.mark.parametrize("rule", [make() for make in AGGREGATORS.values()], ids=AGGREGATORS)
def test_a_state_survives_being_stored(rule):
    model, state = torch.zeros(5), rule.init(5, torch.float32)
    for update in torch.randn(3, 5):
        model, state = rule.step(model, update, state)
    tensors, values = pack(state)
    stored = (
        load(save({name: t.clone() for name, t in tensors.items()})),
        json.loads(json.dumps(values)),
    )
    restored = unpack(rule.init(5, torch.float32), *stored)
    assert type(restored) is type(state)
    update = torch.randn(5)
    (after, kept), (again, other) = (
        rule.step(model, update, state),
        rule.step(model, update, restored),
    )
    assert torch.equal(after, again)
    assert all(
        torch.equal(a, b)
        for a, b in zip(pack(kept)[0].values(), pack(other)[0].values(), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [make() for make in AGGREGATORS.values()], ids=AGGREGATORS)
def test_reduced_updates_are_float64_and_models_keep_their_type(rule, dtype):
    updates = torch.randn(4, 3).to(dtype)
    rule = rule.for_round(rule.init(3, dtype), NoSource(), torch.ones(3, dtype=dtype))
    reduced = rule.reduce(updates, uniform(4))
    model, _ = rule.step(torch.zeros(3, dtype=dtype), reduced.to(dtype), rule.init(3, dtype))
    assert (reduced.dtype, model.dtype) == (torch.float64, dtype)


@pytest.mark.parametrize(
    "counts", [None, torch.ones(3), torch.zeros(2), torch.tensor([1.0, float("inf")])]
)
def test_weights_by_examples_need_counts(counts):
    with pytest.raises(FieldError):
        FedAvg("examples").weights(counts, 2)


def test_bad_parameters_are_refused():
    for make in (
        lambda: FedAvg("size"),
        lambda: FedAdam(lr=0),
        lambda: FedAdam(tau=float("nan")),
        lambda: FedAdam(beta1=1.0),
        lambda: FedAdam(beta2=-0.1),
        lambda: FedAvgM(momentum=1.0),
        lambda: FedOpt(lr=float("inf")),
        lambda: FedProx(mu=-1.0),
        lambda: TrimmedMean(0.5),
        lambda: Krum(selected=2),
        lambda: MultiKrum(malicious=-1),
        lambda: FedAvg("examples", max_examples=0),
    ):
        with pytest.raises(FieldError):
            make()


@given(st.integers(1, 9))
def test_mean_and_median_agree_with_numpy(n):
    updates = torch.randn(n, 7, dtype=torch.float64)
    np.testing.assert_allclose(
        FedMedian().reduce(updates, uniform(n)), np.median(updates.numpy(), axis=0)
    )
    np.testing.assert_allclose(
        FedAvg().reduce(updates, uniform(n)), updates.numpy().mean(0), atol=1e-15
    )


# ---- sensitivities

COORDINATE = st.floats(-1, 1)


@st.composite
def cohorts(draw, extra=0):
    """n updates (and `extra` more rows) of norm at most 1, many of them on the sphere, in 1 to 3 dimensions."""
    n, d = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    rows = torch.tensor(
        draw(
            st.lists(
                st.lists(COORDINATE, min_size=d, max_size=d), min_size=n + extra, max_size=n + extra
            )
        ),
        dtype=torch.float64,
    )
    lengths = rows.norm(dim=1, keepdim=True)
    onto = draw(st.booleans())
    return torch.where((lengths > 1) | (onto & (lengths > 1e-3)), rows / lengths, rows)


def change(rule, before, after, weights_before, weights_after):
    return float((rule.reduce(before, weights_before) - rule.reduce(after, weights_after)).norm())


RULES = {
    "mean": FedAvg(),
    "median": FedMedian(),
    "trimmed": TrimmedMean(0.2),
    "trimmed hard": TrimmedMean(0.45),
    "krum": Krum(),
    "multi-krum": MultiKrum(selected=1),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@given(rows=cohorts(extra=1))
@settings(max_examples=200)
def test_no_client_moves_the_result_by_more_than_the_sensitivity(rule, rows):
    *cohort, other = rows
    updates, n = torch.stack(cohort), len(cohort)
    w = uniform(n)
    zeroed, replaced = updates.clone(), updates.clone()
    zeroed[0], replaced[0] = 0, other
    assert change(rule, updates, zeroed, w, w) <= rule.sensitivity(1.0, w, "zero-out") + 1e-12
    assert change(rule, updates, replaced, w, w) <= rule.sensitivity(1.0, w, "replace-one") + 1e-12


@given(cohorts(extra=1), st.lists(st.floats(0.01, 1), min_size=7, max_size=7))
def test_a_weighted_mean_has_the_sensitivity_of_its_largest_weight(rows, counts):
    *cohort, other = rows
    updates, n = torch.stack(cohort), len(cohort)
    rule = FedAvg("examples")
    w = rule.weights(torch.tensor(counts[:n], dtype=torch.float64), n)
    heaviest = int(w.argmax())
    replaced = updates.clone()
    replaced[heaviest] = other
    assert change(rule, updates, replaced, w, w) <= rule.sensitivity(1.0, w, "replace-one") + 1e-12


@given(cohorts(extra=1))
@settings(max_examples=300)
def test_add_remove_of_a_sum_over_a_public_cohort_and_of_a_median(rows):
    # a mean divides by the planned cohort, where one who left counts as a zero update
    padded = rows.clone()
    padded[-1] = 0
    w = uniform(len(rows))
    assert (
        change(FedAvg(), rows, padded, w, w) <= FedAvg().sensitivity(1.0, w, "add/remove") + 1e-12
    )
    # a median really loses a row, and its parity
    fewer = rows[:-1]
    moved = change(FedMedian(), rows, fewer, w, uniform(len(fewer)))
    for weights in (w, uniform(len(fewer))):
        assert moved <= FedMedian().sensitivity(1.0, weights, "add/remove") + 1e-12


@pytest.mark.parametrize(
    ("rule", "n", "relation", "bound", "witness"),
    [
        # the sensitivity of a mean is reached by one full-length update
        (FedAvg(), 4, "zero-out", 1 / 4, ([1, 0, 0, 0], [0, 0, 0, 0])),
        (FedAvg(), 4, "replace-one", 2 / 4, ([1, 0, 0, 0], [-1, 0, 0, 0])),
        # a median follows the one in the middle
        (FedMedian(), 3, "zero-out", 1, ([1, 1, -1], [0, 1, -1])),
        (FedMedian(), 3, "replace-one", 2, ([1, 1, -1], [-1, 1, -1])),
        (FedMedian(), 4, "zero-out", 1 / 2, ([1, 1, -1, 1], [0, 1, -1, 1])),
        (FedMedian(), 2, "replace-one", 1, ([1, 1], [-1, 1])),
        # a trimmed mean of four without the two ends is a median of four
        (TrimmedMean(0.25), 4, "zero-out", 1 / 2, ([1, 1, -1, 1], [0, 1, -1, 1])),
        (TrimmedMean(0.2), 5, "replace-one", 2 / 3, ([1, 1, 1, -1, -1], [-1, 1, 1, -1, -1])),
    ],
)
def test_the_bounds_are_reached_or_tight_in_one_dimension(rule, n, relation, bound, witness):
    assert rule.sensitivity(1.0, uniform(n), relation) == pytest.approx(bound)
    assert rule.sensitivity(5.0, uniform(n), relation) == pytest.approx(5 * bound)
    # brute force over a grid of neighbours: never above, and somewhere on the bound
    grid = [-1.0, -0.5, 0.0, 0.5, 1.0]
    largest = 0.0
    for rest in itertools.product(grid, repeat=n - 1):
        outcomes = {v: float(rule.reduce(f64([v], *[[r] for r in rest]), uniform(n))) for v in grid}
        pairs = (
            [(v, 0.0) for v in grid] if relation == "zero-out" else itertools.product(grid, grid)
        )
        largest = max(largest, max(abs(outcomes[v] - outcomes[u]) for v, u in pairs))
    assert largest == pytest.approx(bound)
    before, after = (torch.tensor(side, dtype=torch.float64)[:, None] for side in witness)
    assert change(rule, before, after, uniform(n), uniform(n)) <= bound + 1e-12


def test_median_add_remove_is_tight():
    # +1 and -1 have median 0; a third on either side decides
    assert FedMedian().sensitivity(1.0, uniform(2), "add/remove") == 1.0
    two, three = f64([1], [-1]), f64([1], [-1], [1])
    assert change(FedMedian(), two, three, uniform(2), uniform(3)) == 1.0


def test_unequal_weights_are_not_the_uniform_ones():
    # examples 1, 1, 1, 97: one client moves the mean by .97 C, not by C / 4
    w = FedAvg("examples").weights(torch.tensor([1.0, 1, 1, 97]), 4)
    assert FedAvg("examples").sensitivity(1.0, w, "zero-out") == pytest.approx(0.97)
    assert FedAvg("examples").sensitivity(1.0, w, "replace-one") == pytest.approx(1.94)


def test_krum_has_no_better_bound_than_its_clip_twice():
    # three at -1 and three at +1: the seventh client decides, and the result jumps from one end to the other
    rule = Krum(malicious=1)
    updates = f64([-1], [-1], [-1], [1], [1], [1], [1])
    moved = updates.clone()
    moved[6] = -1
    assert (
        change(rule, updates, moved, uniform(7), uniform(7))
        == 2.0
        == rule.sensitivity(1.0, uniform(7), "zero-out")
    )


def test_a_trimmed_mean_has_no_bound_when_the_cut_changes():
    assert TrimmedMean(0.2).sensitivity(1.0, uniform(5), "add/remove") is None


# ---- clusters


def test_clusters_by_hand():
    models = f64([0, 0], [2, 0], [10, 10])
    centres, labels = cluster_means(models, f64([1, 1], [9, 9]))
    assert labels.tolist() == [0, 0, 1]
    assert centres.tolist() == [[1, 0], [10, 10]]


def test_lloyd_goes_on_until_nothing_moves():
    # 3 and 4 belong to the far start at first (2 from 5, 3 from 0); with the centres at 0 and 5.33 the 3 stays right,
    # 5.33 - 3 = 2.33 < 3; with a fourth point at 9 the right centre drifts off and 3 changes sides
    models = f64([0], [3], [9], [9])
    centres, labels = cluster_means(models, f64([0], [5]))
    assert labels.tolist() == [0, 0, 1, 1]  # after one pass it was 0, 1, 1, 1 with centres 0 and 7
    assert centres.flatten().tolist() == [1.5, 9]


def test_an_empty_cluster_keeps_its_hypothesis():
    hypotheses = f64([0, 0], [100, 100], [-50, 7])
    centres, labels = cluster_means(f64([1, 0], [3, 0]), hypotheses)
    assert labels.tolist() == [0, 0]
    assert centres[0].tolist() == [2, 0]
    assert torch.equal(centres[1:], hypotheses[1:])
    assert hypotheses[0].tolist() == [0, 0]


def test_the_halves_of_a_cluster_are_told_apart_through_noise_many_times_the_step():
    g, d, n = torch.Generator().manual_seed(0), 100_000, 8
    start, common, kind = torch.randn(3, d, generator=g)
    kinds = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
    steps = (common + torch.where(kinds == 1, 1.0, -1.0)[:, None] * kind) / d**0.5
    noise = (
        torch.randn(n, d, generator=g) * torch.linspace(2, 6, n)[:, None] / d**0.5
    )  # lengths 2 to 6 beside 1.4
    for models in (start + steps, start + steps + noise):
        found = halves(models, start)
        assert bool((found == (kinds == 1)).all()) or bool((found == (kinds == 0)).all())
    assert not bool(halves(start[None], start).any())
    assert not bool(halves(torch.empty(0, d), start).any())


def test_one_client_whose_noise_is_much_longer_does_not_decide_the_halves():
    g, d, n = torch.Generator().manual_seed(0), 100_000, 40
    start, kind, kinds = (
        torch.randn(d, generator=g),
        torch.randn(2, d, generator=g),
        torch.arange(n) % 2,
    )
    noise = torch.randn(n, d, generator=g) * 6 / d**0.5
    noise[0] *= 16
    found = halves(start + kind[kinds] / d**0.5 + noise, start)
    assert bool((found == (kinds == 1)).all()) or bool((found == (kinds == 0)).all())


def test_fewer_replies_than_hypotheses_is_legal():
    hypotheses = f64([0], [10], [20])
    centres, labels = cluster_means(f64([11]), hypotheses)
    assert centres.flatten().tolist() == [0, 11, 20]
    assert labels.tolist() == [1]


def test_one_hypothesis_is_the_mean():
    models = torch.randn(5, 3)
    centres, _ = cluster_means(models, torch.full((1, 3), 100.0))
    torch.testing.assert_close(centres[0], models.mean(0))
    assert centres.dtype == torch.float32


def test_ties_go_to_the_first():
    _, labels = cluster_means(f64([0]), f64([-1], [1]))
    assert labels.tolist() == [0]


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_scikit_learn_on_ordinary_inputs(seed):
    generator = np.random.default_rng(seed)
    true = generator.normal(size=(3, 6)) * 3
    models = np.concatenate([c + generator.normal(size=(12, 6)) for c in true])
    hypotheses = true + generator.normal(size=(3, 6))
    theirs = KMeans(n_clusters=3, init=hypotheses, n_init=1, max_iter=300, tol=0).fit(models)
    centres, labels = cluster_means(torch.from_numpy(models), torch.from_numpy(hypotheses))
    assert labels.tolist() == theirs.labels_.tolist()
    np.testing.assert_allclose(centres, theirs.cluster_centers_, rtol=1e-10)


def test_models_of_another_size_are_refused():
    with pytest.raises(FieldError, match="models"):
        cluster_means(torch.zeros(2, 3), torch.zeros(1, 4))


# ---- perturbation-aware weights


def test_weights_by_hand():
    # alpha = softmax over clients of (0, ln 3) = (1/4, 3/4); 1/alpha = (4, 4/3), normalised (3/4, 1/4)
    scores = f64([0.0], [math.log(3)])
    assert perturbation_weights(scores).flatten().tolist() == pytest.approx([0.75, 0.25])
    # as printed 1 / (K alpha) with K = 2: they sum to 8/3, not to 1
    printed = perturbation_weights(scores, normalised=False)
    assert printed.flatten().tolist() == pytest.approx([2, 2 / 3])


@given(st.integers(1, 8), st.integers(1, 4), st.floats(0.01, 10))
def test_normalised_weights_are_the_softmax_of_minus_the_scores(n, layers, scale):
    scores = torch.rand(n, layers, dtype=torch.float64) * scale
    weights = perturbation_weights(scores)
    torch.testing.assert_close(weights, torch.softmax(-scores, dim=0))
    alpha = torch.softmax(scores, dim=0)
    torch.testing.assert_close(weights, (1 / alpha) / (1 / alpha).sum(0))
    # as printed the sum is at least K, reached for equal scores (mean of 1/alpha over its harmonic bound)
    printed = perturbation_weights(scores, normalised=False).sum(0)
    torch.testing.assert_close(printed, (1 / alpha).sum(0) / n)
    assert (printed >= n * (1 - 1e-9)).all()
    equal = perturbation_weights(torch.ones(n, layers), normalised=False).sum(0)
    torch.testing.assert_close(equal, torch.full((layers,), float(n), dtype=torch.float64))


def test_huge_scores():
    scores = f64([0.0, 5.0], [5000.0, 5.0])
    assert perturbation_weights(scores).tolist() == [[1, 0.5], [0, 0.5]]
    with pytest.raises(FieldError, match="too large"):
        perturbation_weights(scores, normalised=False)


def test_a_model_without_a_finite_score_weighs_nothing():
    scores = f64([math.log(3), 1.0], [0.0, math.inf], [math.nan, 1.0])
    assert perturbation_weights(scores).tolist() == [
        pytest.approx(row) for row in ([0.25, 0.5], [0.75, 0], [0, 0.5])
    ]
    with pytest.raises(FieldError, match="finite"):
        perturbation_weights(scores, normalised=False)


@pytest.mark.parametrize(
    "scores", [torch.ones(3), -torch.ones(2, 2), torch.full((2, 2), float("nan"))]
)
def test_bad_public_scores_are_refused(scores):
    with pytest.raises(FieldError, match="public_scores"):
        perturbation_weights(scores)
