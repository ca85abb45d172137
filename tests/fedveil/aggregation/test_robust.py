"""Robust rules: by hand, their bounds, and against ByzFL, Flower and plain NumPy."""

import math
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from core_kit import combine
from fedveil import Federation
from fedveil.aggregation import (
    NNM,
    Bucketing,
    Bulyan,
    CentredClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FLTrust,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormBounding,
    TrimmedMean,
)
from fedveil.engines import Shared
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.mechanisms import NoSource, ReproducibleSource
from fedveil.methods import GlobalDP, Plain

# eight updates, the last two far off; the figures named ByzFL are of ByzFL 0.0.11 (NumPy) on these
ROWS = torch.tensor(
    [[math.sin(3 * i + j * j + 1) + (5 if i >= 6 else 0) for j in range(4)] for i in range(8)],
    dtype=torch.float64,
)


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def uniform(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


def reduce(rule, updates):
    return rule.reduce(updates, uniform(len(updates)))


def told(rule, updates, own=None, seed=0):
    """The rule of a round."""
    state = rule.init(updates.shape[1], updates.dtype)
    return rule.for_round(state, ReproducibleSource(seed), own)


# ---- oracles


@pytest.mark.parametrize(
    ("rule", "byzfl"),
    [
        # its Krum counts one neighbour more: f = 2 there is 1 here
        (Krum(malicious=1), [-0.28790332, -0.96139749, 0.91294525, -0.13235175]),
        (MultiKrum(malicious=1, selected=6), [0.05498295, -0.00517482, -0.00456685, -0.06718054]),
        (
            GeometricMedian(smoothing=1e-12, iterations=5000),
            [0.4266471, 0.44926469, 0.0509246, 0.14786325],
        ),
        (
            CentredClipping(radius=1.0, iterations=1),
            [0.14833282, 0.11288671, 0.13028992, 0.09025425],
        ),
        (
            CentredClipping(radius=0.7, iterations=3),
            [0.22410541, 0.17910734, 0.17775229, 0.13125086],
        ),
        (TrimmedMean(0.25), [0.40768033, 0.48258469, 0.48349664, 0.1072103]),
        (NNM(TrimmedMean(0.25), malicious=2), [0.05498295, -0.00517482, -0.00456685, -0.06718054]),
        (NNM(TrimmedMean(0.375), malicious=3), [0.21734004, 0.18557507, 0.18630463, 0.02818757]),
        (NNM(FedAvg(), malicious=3), [0.64611704, 0.64686407, 0.34340859, 0.40013119]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_rules_agree_with_byzfl(rule, byzfl):
    np.testing.assert_allclose(reduce(rule, ROWS), byzfl, atol=3e-6)


@pytest.mark.parametrize("seed", range(4))
def test_bulyan_by_plain_numpy(seed):
    n, f, d = 11, 2, 5
    updates = np.random.default_rng(seed).normal(size=(n, d))
    left, chosen = list(range(n)), []
    while len(chosen) < n - 2 * f:
        scores = {}
        for i in left:
            others = sorted(float(((updates[i] - updates[j]) ** 2).sum()) for j in left if j != i)
            scores[i] = sum(others[: max(1, len(left) - f - 2)])
        best = min(left, key=scores.__getitem__) if len(left) > 1 else left[0]
        chosen.append(best)
        left.remove(best)
    selected = updates[sorted(chosen)]
    expected = []
    for column in selected.T:
        middle = np.median(column)
        expected.append(
            np.mean(sorted(column, key=lambda v: abs(v - middle))[: len(column) - 2 * f])
        )
    rule = Bulyan(malicious=f)
    np.testing.assert_allclose(reduce(rule, torch.from_numpy(updates)), expected, rtol=1e-12)
    shares = rule.effective_weights(torch.from_numpy(updates), uniform(n))
    assert sorted(shares.nonzero().flatten().tolist()) == sorted(chosen)


def test_geometric_median_by_hand_and_by_its_definition():
    # three of five at one point: it is the median, whatever the others do
    assert reduce(
        GeometricMedian(), f64([1, 1], [1, 1], [1, 1], [90, 0], [0, -70])
    ).tolist() == pytest.approx([1, 1], abs=1e-5)
    median = reduce(GeometricMedian(iterations=2000), ROWS)

    def cost(point):
        return float((ROWS - point).norm(dim=1).sum())

    for _ in range(50):
        assert cost(median) <= cost(median + 1e-3 * torch.randn(4, dtype=torch.float64)) + 1e-9


# ---- by hand


def test_centred_clipping_by_hand_and_its_memory():
    # from 0 with radius 1: (1 + 1 - 1) / 3; then from 1/3 deviations 2/3 (kept), 1 (cut), -1 (cut)
    updates = f64([1], [10], [-10])
    assert reduce(CentredClipping(1.0, 1), updates).item() == pytest.approx(1 / 3, rel=1e-5)
    assert reduce(CentredClipping(1.0, 2), updates).item() == pytest.approx(1 / 3 + 2 / 9, rel=1e-5)
    rule = CentredClipping(1.0, 1)
    model, state = rule.step(f64(5.0), f64(2.0), rule.init(1, torch.float64))
    assert (model.item(), state.update.item()) == (7, 2)
    again = rule.for_round(state, NoSource())
    assert reduce(again, updates).item() == pytest.approx(2 + (-1 + 1 - 1) / 3, rel=1e-5)  # from 2
    forgetful = CentredClipping(1.0, 1, remember=False).for_round(state, NoSource())
    assert reduce(forgetful, updates).item() == pytest.approx(1 / 3, rel=1e-5)
    assert reduce(rule, f64([0], [0], [0])).item() == 0  # nobody moves: no division by 0


def test_norm_bounding_by_hand():
    updates = f64([3, 4], [0.3, 0.4], [0, 0])
    expected = [(0.6 + 0.3) / 3, (0.8 + 0.4) / 3]
    assert reduce(NormBounding(1.0), updates).tolist() == pytest.approx(expected, rel=2e-6)


def test_fltrust_by_hand():
    own = f64(2.0, 0.0)
    updates = f64([10, 0], [3, 4], [-1, 0], [0, 0])
    rule = told(FLTrust(), updates, own)
    # cosines 1, .6, -1 (trusted 0), none; each at length 2: (2, 0) and (1.2, 1.6)
    assert rule.effective_weights(updates, uniform(4)).tolist() == pytest.approx(
        [1 / 1.6, 0.6 / 1.6, 0, 0]
    )
    expected = [(2 + 0.6 * 1.2) / 1.6, 0.6 * 1.6 / 1.6]
    assert reduce(rule, updates).tolist() == pytest.approx(expected)
    assert reduce(rule, f64([-1, 0], [-2, 0.1])).tolist() == [0, 0]  # nobody is trusted
    with pytest.raises(FieldError, match="public_update"):
        reduce(FLTrust(), updates)
    with pytest.raises(FieldError, match="sensitivity"):
        GlobalDP(FLTrust(), noise_multiplier=0.01)


def test_nnm_by_hand():
    # n = 4, f = 1: 0, 1, 2 mix among themselves; 50 mixes with its nearest, 2 and 1
    mixed = NNM(FedAvg(), malicious=1).mixture(f64([0], [1], [2], [50])) @ f64([0], [1], [2], [50])
    assert mixed.flatten().tolist() == pytest.approx([1, 1, 1, 53 / 3])
    assert reduce(NNM(FedMedian(), malicious=1), f64([0], [1], [2], [50])).item() == pytest.approx(
        1
    )
    # twins are nearer than itself by index only: an update is always in its own mixture
    assert NNM(malicious=1).mixture(f64([5], [5], [5])).diagonal().tolist() == [0.5] * 3


def test_buckets_are_drawn_for_each_round_and_hold_every_update_once():
    updates = torch.arange(7, dtype=torch.float64)[:, None]
    fixed = Bucketing(FedAvg(), size=3)
    assert (fixed.mixture(updates) @ updates).flatten().tolist() == pytest.approx(
        [1, 4, 6]
    )  # in order: 012, 345, 6
    drawn = [told(fixed, updates, seed=seed).mixture(updates) for seed in range(3)]
    assert all(torch.equal((m > 0).sum(0), torch.ones(7, dtype=torch.int64)) for m in drawn)
    assert len({tuple(m.argmax(0).tolist()) for m in drawn}) == 3
    assert torch.equal(told(fixed, updates, seed=1).mixture(updates), drawn[1])
    assert reduce(Bucketing(FedMedian(), size=3), updates).item() == pytest.approx(4)


@pytest.mark.parametrize(
    ("rule", "n", "most"),
    [
        (Krum(malicious=2), 6, 1),
        (MultiKrum(malicious=5, selected=2), 12, 4),
        (Bulyan(malicious=2), 10, 1),
        (NNM(FedMedian(), malicious=3), 6, 2),
    ],
    ids=lambda v: type(v).__name__,
)
def test_more_malicious_clients_than_a_rule_bears_are_refused_with_the_number(rule, n, most):
    updates = torch.randn(n, 3)
    with pytest.raises(FieldError, match=f"at most {most} among {n}"):
        reduce(rule, updates)
    enough = torch.randn(rule.least, 3)
    assert reduce(rule, enough).shape == (3,)
    assert rule.withstands(n) == most
    with pytest.raises(FieldError, match="at most"):
        reduce(rule, enough[1:])


def test_what_each_rule_bears():
    bears = {
        type(r).__name__: r.withstands(11)
        for r in (FedAvg(), FedMedian(), TrimmedMean(0.2), Krum(), Bulyan())
    }
    assert bears == {"FedAvg": 0, "FedMedian": 5, "TrimmedMean": 2, "Krum": 4, "Bulyan": 2}
    assert NNM(Krum(malicious=1), malicious=1).withstands(11) == 4
    assert Bucketing(FedMedian(), size=2).withstands(11) == 2  # six buckets, of which two
    assert Bucketing(FedAvg()).withstands(11) == NormBounding().withstands(11) == 0


ALL = {
    "median": FedMedian(),
    "trimmed": TrimmedMean(0.25),
    "krum": Krum(malicious=2),
    "multi-krum": MultiKrum(malicious=2, selected=5),
    "bulyan": Bulyan(malicious=2),
    "geometric": GeometricMedian(),
    "clipping": CentredClipping(1.0, 5),
    "trust": FLTrust(),
    "nnm median": NNM(FedMedian(), malicious=2),
    "nnm krum": NNM(Krum(malicious=2), malicious=2),
    "buckets": Bucketing(GeometricMedian(), size=2),
    "nnm of buckets": Bucketing(NNM(FedMedian(), malicious=2), size=2),
}


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
@pytest.mark.parametrize("scale", [10.0, 1e6])
def test_two_liars_of_twelve_do_not_take_the_result_along(rule, scale):
    torch.manual_seed(1)
    honest = torch.ones(10, 6) + 0.1 * torch.randn(10, 6)
    updates = torch.cat([honest, -scale * torch.ones(2, 6)])
    result = reduce(told(rule, updates, torch.ones(6)), updates)
    assert float((result - 1).abs().max()) < (0.9 if isinstance(rule, CentredClipping) else 0.5)
    assert float((reduce(FedAvg(), updates) - 1).abs().max()) > 1


@pytest.mark.parametrize("rule", [ALL["krum"], ALL["multi-krum"], ALL["trust"], ALL["nnm krum"]])
def test_rules_say_whom_they_used(rule):
    torch.manual_seed(1)
    updates = torch.cat([torch.ones(10, 6) + 0.1 * torch.randn(10, 6), -10 * torch.ones(2, 6)])
    shares = told(rule, updates, torch.ones(6)).effective_weights(updates, uniform(12))
    assert float(shares.sum()) == pytest.approx(1)
    assert shares[10:].tolist() == [0, 0]
    assert FedMedian().effective_weights(updates, uniform(12)) is None


# ---- sensitivities

BOUNDED = {
    "bulyan": Bulyan(malicious=1),
    "bulyan of none": Bulyan(),
    "geometric": GeometricMedian(),
    "clipping": CentredClipping(0.4, 3),
    "clipping once": CentredClipping(5.0, 1),
    "bounding": NormBounding(0.5),
    "buckets of a mean": Bucketing(FedAvg(), size=2),
    "buckets of a median": Bucketing(FedMedian(), size=2),
    "buckets of krum": Bucketing(Krum(), size=3),
}


@st.composite
def cohorts(draw):
    """Seven to nine updates within the unit ball, many on the sphere, and one more, in 1 to 3 dimensions."""
    n, d = draw(st.integers(7, 9)) + 1, draw(st.integers(1, 3))
    row = st.lists(st.floats(-1, 1), min_size=d, max_size=d)
    rows = torch.tensor(draw(st.lists(row, min_size=n, max_size=n)), dtype=torch.float64)
    lengths = rows.norm(dim=1, keepdim=True)
    onto = draw(st.booleans())
    return torch.where((lengths > 1) | (onto & (lengths > 1e-3)), rows / lengths, rows)


@pytest.mark.parametrize("rule", BOUNDED.values(), ids=BOUNDED)
@given(rows=cohorts(), seed=st.integers(0, 5))
@settings(max_examples=60)
def test_no_client_moves_the_result_by_more_than_the_sensitivity(rule, rows, seed):
    *cohort, other = rows
    updates = torch.stack(cohort)
    zeroed, replaced, w = updates.clone(), updates.clone(), uniform(len(updates))
    zeroed[0], replaced[0] = 0, other
    rule = told(rule, updates, seed=seed)
    here = rule.reduce(updates, w)
    slope = rule.lipschitz(w)
    for after, relation in ((zeroed, "zero-out"), (replaced, "replace-one")):
        moved = float((rule.reduce(after, w) - here).norm())
        assert moved <= rule.sensitivity(1.0, w, relation) + 1e-6
        if slope is not None:
            assert moved <= slope * float((updates[0] - after[0]).norm()) + 1e-6


@pytest.mark.parametrize(
    ("rule", "before", "relation", "bound"),
    [
        # each moves by its whole bound: from the first row at 1 to 0, or to -1
        (NormBounding(0.5), [1, 1, 0], "zero-out", 0.5 / 3),
        (CentredClipping(5.0, 1), [1, 0, 0, 0], "zero-out", 1 / 4),
        (CentredClipping(0.5, 1), [1, 1, 1, 1], "replace-one", 2 * 0.5 / 4),
        (GeometricMedian(), [1, 1, -1], "replace-one", 2),
        (Bucketing(FedAvg(), size=2), [1, 1, 1, 1], "zero-out", 1 / 4),
        (Bucketing(FedMedian(), size=2), [1, 1, 1, 1, -1, -1], "replace-one", 1),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, list | str | float) else None,
)
def test_bounds_are_reached(rule, before, relation, bound):
    updates, n = f64(*[[v] for v in before]), len(before)
    after = updates.clone()
    after[0] = 0 if relation == "zero-out" else -1
    assert rule.sensitivity(1.0, uniform(n), relation) == pytest.approx(bound)
    assert float((reduce(rule, updates) - reduce(rule, after)).norm()) == pytest.approx(
        bound, rel=2e-5
    )


def test_rules_without_a_bound_are_refused_formal_noise():
    for rule in (NNM(FedAvg(), malicious=1), FLTrust()):
        with pytest.raises(FieldError, match="sensitivity"):
            GlobalDP(rule, noise_multiplier=0.01)
    assert GlobalDP(Bucketing(FedAvg(), size=2), noise_multiplier=0.01).aggregator.columnwise
    for rule in (Bulyan(malicious=2), Krum(malicious=2), Bucketing(Bulyan(malicious=1))):
        assert rule.sensitivity(1.0, uniform(15), "zero-out") >= 2
        assert (
            GlobalDP(rule, noise_multiplier=0.01).aggregator == rule
        )  # which cohort there will be is not known yet


# ---- in a round


def test_silent_clients_do_not_stop_a_rule_that_needs_many():
    # five planned, one of them malicious; three reply. Krum counts the silent ones as zero updates
    result = combine(Plain(Krum(malicious=1)), [5.0], [[0.2], [0.3], [0.1]], cohort=5)
    assert 5 <= result.models.item() <= 5.3
    with pytest.raises(FieldError, match="at most 0 among 4"):
        combine(Plain(Krum(malicious=1)), [5.0], [[0.2], [0.3], [0.1]], cohort=4)


def test_fltrust_in_a_federation_trains_its_server_on_public_data():
    x, y = torch.randn(60, 5), torch.randint(0, 3, (60,))
    clients = [(x[i::4], y[i::4]) for i in range(3)]
    model = nn.Linear(5, 3)
    shared = Shared(public_data=(x[3::4], y[3::4]))
    federation = Federation(model=model, clients=clients, method=FLTrust(), shared=shared)
    history = federation.run(2)
    assert not torch.equal(history.models[0], federation.layout.read(model))
    # by hand: what the server trains in the first round, and the rule on what the clients train
    again = Federation(model=model, clients=clients, method=FLTrust(), shared=shared)
    start = again.models[0]
    own = (
        again.learner.learn(start[None], [ClientData(x[3::4], y[3::4])], [(0, 1, -1)])[
            0
        ].trained.model
        - start
    )
    data = [ClientData(*c) for c in clients]
    learned = again.learner.learn(start[None], data, [(0, 1, i) for i in range(3)])
    updates = torch.stack([found.trained.model for found in learned]) - start
    again.run(1)
    torch.testing.assert_close(
        again.models[0] - start, reduce(told(FLTrust(), updates, own), updates).float()
    )
    with pytest.raises(FieldError, match="public_data"):
        Federation(model=model, clients=clients, method=NNM(FLTrust()))


def test_a_wrapper_keeps_the_optimiser_of_its_rule():
    rule = NNM(FedAdam(lr=0.1), malicious=1)
    assert not rule.identity_step
    updates, state = torch.randn(5, 3), rule.init(3, torch.float32)
    reduced = reduce(rule, updates)
    model, _ = rule.step(torch.zeros(3), reduced, state)
    expected, _ = FedAdam(lr=0.1).step(
        torch.zeros(3), reduced, FedAdam(lr=0.1).init(3, torch.float32)
    )
    assert torch.equal(model, expected)


def test_the_updates_stay_as_they_are_and_the_result_is_a_tensor_of_its_own():
    updates = torch.randn(12, 2000)
    kept = updates.clone()
    for rule in (
        GeometricMedian(),
        CentredClipping(),
        NormBounding(),
        Bulyan(malicious=1),
        Krum(malicious=1),
    ):
        reduce(rule, updates).zero_()
        assert torch.equal(updates, kept)


def test_a_configuration_puts_mixing_and_buckets_before_a_rule():
    from fedveil_lab.config import Config

    def config(**rule):
        values = {"name": "robust", "rounds": 1, "model": {"name": "logistic"}}
        return Config.model_validate(
            {**values, "data": {"name": "digits", "clients": 9}, "aggregator": rule}
        )

    wanted = Bucketing(NNM(Krum(malicious=1), malicious=2), size=3)
    found = config(name="krum", malicious=1, nnm=2, buckets=3)
    assert found.aggregator.build() == wanted
    again = Config.model_validate(tomllib.loads(found.to_toml()))
    assert again.aggregator.build() == wanted
    assert "nnm" not in config(name="krum").differing()["aggregator"]
    with pytest.raises(ValueError, match=r"aggregator\.nnm = -1"):
        config(name="krum", nnm=-1)
