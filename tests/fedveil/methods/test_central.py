import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_kit import assert_deviation, combine, flat, reply, server_facts, silent
from fedveil.accounting import compose_mu
from fedveil.aggregation import AGGREGATORS, FedAdam, FedAvg, FedAvgM, FedMedian, Krum, TrimmedMean
from fedveil.calibration import max_pairwise_distance
from fedveil.clipping import QuantileClip, clip
from fedveil.errors import FieldError, HeuristicError
from fedveil.layout import Layout
from fedveil.mechanisms import MECHANISMS, ReproducibleSource
from fedveil.methods import GlobalDP, MetricPrivacy, Plain, build
from fedveil_lab.attacks import bound

DELTA = 1e-5
THETA = [10.0, 0.0]
# with C = 2.5 the first, of norm 5, becomes (1.5, 2); the second, of norm .5, stays
UPDATES = [[3.0, 4.0], [0.3, 0.4]]
Z, C = 2.0, 2.5


def near(values):
    return pytest.approx(values, rel=3e-6)  # the clip's own shrink is 1e-6


# ---- no privacy


def test_plain_mean():
    result = combine(Plain(), THETA, UPDATES)
    assert result.models.tolist() == [near([11.65, 2.2])]
    assert result.spend.guarantee.status == "none"
    weighted = combine(Plain(FedAvg("examples")), THETA, UPDATES, counts=[1, 3])
    assert weighted.models.tolist() == [near([10 + 0.75 + 0.225, 1.3])]


# ---- global DP


def test_formal_by_hand():
    # a cohort of 4 of which 2 replied: the sum (1.8, 2.4) over 4, and noise z C / 4
    result = combine(GlobalDP(noise_multiplier=Z, clip=C), THETA, UPDATES, cohort=4)
    assert result.models.tolist() == [near([10.45, 0.6])]
    spend = result.spend
    assert (spend.scale, spend.sensitivity) == ((pytest.approx(1.25),), pytest.approx(0.625))
    assert (spend.guarantee.status, spend.guarantee.mu) == ("formal", pytest.approx(0.5))  # 1 / z
    assert (spend.guarantee.unit, spend.guarantee.trust, spend.guarantee.scope) == (
        "client",
        "central",
        "round",
    )
    assert result.report["clients"] == 2
    assert result.report["sigma"] == pytest.approx(1.25)
    assert result.report["clipped_fraction"] == 0.5
    assert result.report["noise_to_clip"] == pytest.approx(1.25 * math.sqrt(2) / 2.5)


def test_printed_by_hand():
    # two valid replies: their mean, noise z C / 2, whatever was planned
    result = combine(
        GlobalDP(noise_multiplier=Z, clip=C, order="printed"), THETA, UPDATES, cohort=4
    )
    assert result.models.tolist() == [near([10.9, 1.2])]
    assert result.spend.scale == (pytest.approx(2.5),)
    assert result.spend.guarantee.status == "conditional"
    assert result.spend.guarantee.conditions == (
        "who replies with a usable model does not depend on private data",
    )
    assert result.spend.guarantee.mu == pytest.approx(1 / Z)


@pytest.mark.parametrize("order", ["formal", "printed"])
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_replace_one_costs_twice_as_much(order, relation):
    side = GlobalDP(noise_multiplier=Z, clip=C, order=order, relation=relation)
    guarantee = combine(side, THETA, UPDATES).spend.guarantee
    assert guarantee.mu == pytest.approx((2 if relation == "replace-one" else 1) / Z)
    assert guarantee.relation == relation


def test_add_remove_holds_for_a_public_divisor_only():
    formal = combine(
        GlobalDP(noise_multiplier=Z, clip=C, relation="add/remove"), THETA, UPDATES, cohort=4
    ).spend
    assert (formal.guarantee.status, formal.guarantee.mu) == ("conditional", pytest.approx(1 / Z))
    assert "cohort stays the same" in formal.guarantee.conditions[0]
    side = GlobalDP(noise_multiplier=Z, clip=C, relation="add/remove", order="printed")
    assert combine(side, THETA, UPDATES).spend.guarantee.status == "heuristic"


def test_weights_by_examples_are_conditional_and_cost_the_largest_weight():
    # weights 1/4 and 3/4 against noise for 1/2: mu = .75 C / (z C / 2)
    side = GlobalDP(FedAvg("examples"), noise_multiplier=Z, clip=C, order="printed")
    guarantee = combine(side, THETA, UPDATES, counts=[1, 3]).spend.guarantee
    assert guarantee.mu == pytest.approx(1.5 / Z)
    assert guarantee.status == "conditional"
    assert "example counts are public" in guarantee.conditions
    # Flower's case: 1, 1, 1, 97 examples, noise for a quarter, influence .97
    four = combine(side, THETA, UPDATES * 2, counts=[1, 1, 1, 97]).spend.guarantee
    assert four.mu == pytest.approx(0.97 * 4 / Z)


def test_formal_weights_by_examples_need_a_declared_bound():
    with pytest.raises(FieldError, match="max_examples"):
        GlobalDP(FedAvg("examples"), noise_multiplier=0.01)
    # 50 of at most 100 examples is half a share of a quarter; 250 count as 100
    side = GlobalDP(FedAvg("examples", max_examples=100), noise_multiplier=Z, clip=C)
    result = combine(side, THETA, UPDATES, counts=[50, 250], cohort=4)
    assert result.models.tolist() == [near([10 + 1.5 / 8 + 0.3 / 4, 2 / 8 + 0.4 / 4])]
    assert result.spend.scale == (pytest.approx(Z * C / 4),)
    assert (result.spend.guarantee.status, result.spend.guarantee.mu) == (
        "formal",
        pytest.approx(1 / Z),
    )


@pytest.mark.parametrize(
    ("n", "printed_mu", "formal_sigma"), [(3, 3 / Z, Z * C), (4, 2 / Z, Z * C / 2)]
)
def test_median_is_not_accounted_as_a_mean(n, printed_mu, formal_sigma):
    # printed: noise z C / n against a sensitivity of C (odd) or C / 2 (even)
    updates = (UPDATES * 2)[:n]
    printed = combine(
        GlobalDP(FedMedian(), noise_multiplier=Z, clip=C, order="printed"), THETA, updates
    )
    assert printed.spend.scale == (pytest.approx(Z * C / n),)
    assert printed.spend.guarantee.mu == pytest.approx(printed_mu)
    assert printed.spend.guarantee.status == "conditional"
    formal = combine(GlobalDP(FedMedian(), noise_multiplier=Z, clip=C), THETA, updates)
    assert formal.spend.scale == (pytest.approx(formal_sigma),)
    assert formal.spend.guarantee.mu == pytest.approx(1 / Z)


def test_absent_clients_are_zero_updates_of_a_median():
    result = combine(
        GlobalDP(FedMedian(), noise_multiplier=Z, clip=C), [0.0], [[1.0], [2.0]], cohort=3
    )
    assert result.models.item() == near(1.0)  # the median of 0, 1, 2


def test_krum_with_absent_clients_stays_finite():
    result = combine(
        GlobalDP(Krum(), noise_multiplier=Z, clip=9.0), [5.0], [[1.0], [8.0]], cohort=5
    )
    assert result.models.item() == 5.0  # three absent clients agree best
    assert result.spend.sensitivity == 18.0


@pytest.mark.parametrize(
    "name", [n for n in AGGREGATORS if n != "fltrust"]
)  # which has no sensitivity
def test_every_rule_formally_costs_one_over_z(name):
    result = combine(
        GlobalDP(AGGREGATORS[name](), noise_multiplier=Z, clip=C), THETA, UPDATES * 3, cohort=7
    )
    assert result.spend.guarantee.status == "formal"
    assert result.spend.guarantee.mu == pytest.approx(1 / Z)
    assert result.spend.sensitivity == pytest.approx(result.spend.scale[0] / Z)


@pytest.mark.parametrize(
    "name", [n for n in AGGREGATORS if n != "fltrust"]
)  # which needs public data
def test_printed_optimisers_are_heuristic(name):
    rule = AGGREGATORS[name]()
    spend = combine(
        GlobalDP(rule, noise_multiplier=Z, clip=C, order="printed"), THETA, UPDATES * 3
    ).spend
    assert spend.guarantee.status == ("conditional" if rule.identity_step else "heuristic")
    assert spend.scale == (pytest.approx(Z * C / 6),)
    if not rule.identity_step:
        with pytest.raises(HeuristicError):
            spend.guarantee.epsilon(DELTA)


def test_a_rule_without_a_bound_is_heuristic_printed_and_refused_formally():
    class Sum(FedMedian):
        def sensitivity(self, clip, weights, relation):
            return None

    with pytest.raises(FieldError, match="Sum"):
        GlobalDP(Sum(), noise_multiplier=0.01)
    assert (
        combine(
            GlobalDP(Sum(), order="printed", noise_multiplier=0.01), THETA, UPDATES
        ).spend.guarantee.status
        == "heuristic"
    )


class Weighing(FedAvg):
    """A rule of somebody else's that weighs as it likes."""

    def planned_weights(self, counts, n, cohort):
        return torch.tensor(self.given[:n], dtype=torch.float64)

    def weights(self, counts, n):
        return self.planned_weights(counts, n, n)


@pytest.mark.parametrize("make", [GlobalDP, MetricPrivacy])
@pytest.mark.parametrize(
    ("order", "given", "rule"),
    [
        ("formal", [1.0, 0.0], "at most 1/2 each"),  # one client weighs what the noise is for two
        ("formal", [0.5, -0.5], "not be negative"),
        ("printed", [3.0, 3.0], "sum to 1"),
        ("printed", [-4.0, 5.0], "not be negative"),  # the largest weight is not the heaviest
        ("printed", [0.9, 0.0], "sum to 1"),
        ("printed", [math.nan, 1.0], "sum to 1"),
    ],
)
def test_weights_that_the_sensitivity_does_not_know_are_refused(make, order, given, rule):
    Weighing.given = [0.5]
    side = make(Weighing(), noise_multiplier=Z, clip=C, order=order)
    Weighing.given = given
    with pytest.raises(FieldError, match=rule) as error:
        combine(side, THETA, UPDATES)
    assert error.value.field == "weights"


def test_a_rule_without_a_bound_for_the_relation_is_refused_when_it_is_made():
    class OneWay(FedMedian):
        def sensitivity(self, clip, weights, relation):
            return (
                None if relation == "replace-one" else super().sensitivity(clip, weights, relation)
            )

    with pytest.raises(FieldError, match="OneWay"):
        GlobalDP(OneWay(), relation="replace-one", noise_multiplier=0.01)
    assert GlobalDP(OneWay(), noise_multiplier=0.01).relation == "zero-out"


@pytest.mark.parametrize("make", [GlobalDP, MetricPrivacy])
def test_the_optimiser_never_sees_an_unnoised_mean_in_formal_order(make):
    rule = FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    d, theta = 20_000, torch.zeros(20_000, dtype=torch.float64)
    updates = torch.randn(2, d, dtype=torch.float64)
    side = make(rule, noise_multiplier=Z, clip=1.0)
    result = combine(side, theta, updates, cohort=2, layout=flat(d), source=ReproducibleSource(1))
    silently = combine(side, theta, updates, cohort=2, layout=flat(d), source=silent())
    noisy, clean = (
        result.state.rule.first / 0.1,
        silently.state.rule.first / 0.1,
    )  # first moment: .1 of what it saw
    assert_deviation(noisy - clean, result.report["sigma"])
    # and the model is that optimiser's step on the noised mean, with nothing added afterwards
    expected, _ = rule.step(theta, noisy, rule.init(d, torch.float64))
    torch.testing.assert_close(result.models[0], expected)


@pytest.mark.parametrize("make", [GlobalDP, MetricPrivacy])
def test_printed_noise_goes_on_the_output(make):
    d = 20_000
    rule = FedAvgM(lr=0.1, momentum=0.5)
    side = make(rule, noise_multiplier=Z, clip=1.0, order="printed")
    theta, updates = torch.zeros(d, dtype=torch.float64), torch.randn(3, d, dtype=torch.float64)
    noisy = combine(side, theta, updates, layout=flat(d), source=ReproducibleSource(1))
    clean = combine(side, theta, updates, layout=flat(d), source=silent())
    assert_deviation(noisy.models[0] - clean.models[0], noisy.report["sigma"])  # not a tenth of it
    torch.testing.assert_close(noisy.state.rule.velocity, clean.state.rule.velocity)


@pytest.mark.parametrize("order", ["formal", "printed"])
def test_rounding_to_the_model_s_digits_comes_after_the_noise(order):
    # at 1 a float32 has steps of 1.2e-7: the mean of 99 clients is a hair below half a step, and the hundredth carries
    # it across. Rounded before the noise (of 6e-10), the model would show every time whether that client was there
    side = GlobalDP(noise_multiplier=1.0, clip=6e-8, order=order)
    theta, facts = torch.ones(1), server_facts([1.0], 100)
    facts = replace(facts, broadcast=replace(facts.broadcast, models=theta[None]))
    here, gone = ((theta + 2.0**-23,) * 99 + (last,) for last in (theta + 2.0**-23, theta))
    mean = float(
        side.combine([reply(m) for m in here], facts, side.init(1, torch.float32), silent()).models
        - 1
    )
    assert mean == 2.0**-23
    source = ReproducibleSource(5)

    def score(world):
        return float(
            side.combine(
                [reply(m) for m in world], facts, side.init(1, torch.float32), source
            ).models
            - 1
        )

    found = bound(*np.array([[score(world) for _ in range(200)] for world in (gone, here)])[::-1])
    assert found.ceiling > 2
    assert found.mu_lower <= 1.0


@pytest.mark.parametrize(
    "rule", [FedAvg(), FedMedian(), TrimmedMean()], ids=["mean", "median", "trimmed"]
)
@pytest.mark.parametrize("order", ["formal", "printed"])
def test_the_release_carries_the_stated_noise(rule, order):
    d, theta = 20_000, torch.zeros(20_000, dtype=torch.float64)
    updates = 50 * torch.randn(5, d, dtype=torch.float64)
    side = GlobalDP(rule, noise_multiplier=0.3, clip=1.0, order=order)
    noisy = combine(side, theta, updates, source=ReproducibleSource(3))
    clean = combine(side, theta, updates, source=silent())
    assert (
        float(clean.models.norm()) <= 1.0
    )  # no rule of clipped updates leaves the ball of radius C here
    assert_deviation(noisy.models - clean.models, noisy.spend.scale[0])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", 0),
        ("noise_multiplier", float("nan")),
        ("clip", -1.0),
        ("clip", float("inf")),
        ("order", "papers"),
        ("relation", "remove"),
    ],
)
def test_bad_parameters_are_refused_by_name(field, value):
    for make in (GlobalDP, MetricPrivacy):
        with pytest.raises(FieldError) as error:
            make(**{"noise_multiplier": 1.0, field: value})
        assert error.value.field == field


def test_more_replies_than_the_cohort_are_refused():
    with pytest.raises(FieldError, match="cohort"):
        combine(GlobalDP(noise_multiplier=0.01), THETA, UPDATES, cohort=1)


# ---- a clipping norm that adapts


def test_quantile_clip_by_hand():
    # of norms .5, 2, 3, 4 one is within C = 1: share 1/4; C moves by exp(-.2 (1/4 - 1/2))
    rule = QuantileClip(initial=1.0, quantile=0.5, lr=0.2, bit_noise=2.0)
    lengths = torch.tensor([0.5, 2.0, 3.0, 4.0])
    assert rule.next(1.0, lengths, 0.0) == pytest.approx(math.exp(0.05))
    # noise of +1 deviation adds 2 to the sum of bits, 1/2 to the share
    assert rule.next(1.0, lengths, 1.0) == pytest.approx(math.exp(-0.05))


@pytest.mark.parametrize("start", [1e-3, 1e3])
def test_quantile_clip_converges_to_the_quantile(start):
    rule, bound = QuantileClip(initial=start, quantile=0.8), start
    lengths = torch.linspace(0.01, 1, 100)
    for _ in range(400):
        bound = rule.next(bound, lengths, 0.0)
    assert bound == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("noise", [1.0, -1.0])
def test_noise_that_carries_the_norm_out_of_the_floats_is_refused(noise):
    with pytest.raises(FieldError, match="bit_noise"):
        QuantileClip(bit_noise=1e6).next(1.0, torch.ones(4), noise)


def test_an_adaptive_norm_is_used_paid_for_and_carried_on():
    rule = QuantileClip(initial=2.5, bit_noise=4.0)
    side = GlobalDP(noise_multiplier=Z, clip=rule)
    result = combine(side, THETA, UPDATES, cohort=4)
    assert result.models.tolist() == [near([10.45, 0.6])]  # as with the fixed C = 2.5
    assert result.spend.guarantee.mu == pytest.approx(compose_mu([1 / Z, 1 / 4]))
    # one of two replies within 2.5, and two absent clients as zero updates: share 3/4
    assert result.state.clip == pytest.approx(2.5 * math.exp(-0.2 * 0.25))
    replaced = GlobalDP(noise_multiplier=Z, clip=rule, relation="replace-one")
    assert combine(replaced, THETA, UPDATES).spend.guarantee.mu == pytest.approx(
        compose_mu([2 / Z, 1 / 4])
    )
    # the next round clips to the state's norm
    again = combine(side, THETA, UPDATES, cohort=4, state=replace(result.state, clip=0.5))
    assert again.models.tolist() == [near([10 + (0.3 + 0.3) / 4, (0.4 + 0.4) / 4])]
    assert again.spend.scale == (pytest.approx(Z * 0.5 / 4),)


def test_an_adaptive_norm_has_no_curve_over_distance():
    # an update that moves ever so little across C flips its bit, which costs the same whatever the distance
    fixed = combine(GlobalDP(noise_multiplier=Z, clip=2.5), THETA, UPDATES).spend.guarantee
    assert fixed.epsilon_at(0.0, DELTA) == 0.0
    moving = combine(
        GlobalDP(noise_multiplier=Z, clip=QuantileClip(initial=2.5)), THETA, UPDATES
    ).spend.guarantee
    with pytest.raises(HeuristicError, match="distance"):
        moving.epsilon_at(0.0, DELTA)


# ---- the curve over distance


@pytest.mark.parametrize(
    ("rule", "slope"),
    [(FedAvg(), 1 / 4), (FedMedian(), 1 / 2), (TrimmedMean(0.25), 1 / 2), (Krum(), None)],
)
def test_curve_over_distance(rule, slope):
    # a cohort of four; the noise is z times the zero-out sensitivity
    guarantee = combine(
        GlobalDP(rule, noise_multiplier=Z, clip=C), THETA, UPDATES * 2
    ).spend.guarantee
    if slope is None:  # Krum jumps: another client may be selected
        assert guarantee.bound.slope == 0
        return
    sigma = Z * rule.sensitivity(C, torch.full((4,), 0.25), "zero-out")
    assert guarantee.bound.mu_per_distance == pytest.approx(slope / sigma)
    assert guarantee.epsilon_at(C, DELTA) == pytest.approx(
        guarantee.epsilon(DELTA)
    )  # moving by C is a zero-out


def test_private_counts_leave_no_curve_over_the_updates_distance():
    # the count alone moves the release: from e to e, weights 1/200 and 1/2 put the outputs .495 apart
    side = GlobalDP(FedAvg("examples", max_examples=100), noise_multiplier=Z, clip=C)
    for counts in ([1, 2], [99, 100]):
        guarantee = combine(side, THETA, UPDATES, counts=counts).spend.guarantee
        assert guarantee.mu == pytest.approx(1 / Z)
        assert guarantee.bound.slope == 0


# ---- discrete noise


@pytest.mark.parametrize("relation", ["zero-out", "add/remove", "replace-one"])
def test_discrete_noise_by_hand(relation):
    # the same deviation z C / cohort, stated in concentrated DP: rho = (sensitivity / sigma)^2 / 2
    side = GlobalDP(noise_multiplier=Z, clip=C, noise="discrete", relation=relation)
    spend = combine(side, THETA, UPDATES, cohort=4).spend
    assert spend.scale == (pytest.approx(1.25),)
    assert spend.guarantee.mu is None
    assert spend.guarantee.bound.rho == pytest.approx(
        (2 if relation == "replace-one" else 1) ** 2 / Z**2 / 2
    )
    assert spend.guarantee.bound.slope == 0


def test_discrete_noise_has_its_deviation_and_lies_on_a_grid():
    d, theta = 20_000, torch.zeros(20_000, dtype=torch.float64)
    updates = 50 * torch.randn(3, d, dtype=torch.float64)
    side = GlobalDP(noise_multiplier=0.3, clip=1.0, noise="discrete")
    noisy = combine(side, theta, updates, cohort=4, source=ReproducibleSource(3))
    clean = (
        combine(Plain(), theta, clip(updates, 1.0)).models * 3 / 4
    )  # rounding to the grid is a thousandth of sigma
    sigma = 0.3 / 4
    assert_deviation(noisy.models - clean, sigma)
    steps = noisy.models / (sigma / 1024)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-6)


def test_discrete_noise_is_for_uniform_means_in_formal_order():
    for bad in (
        {"order": "printed"},
        {"aggregator": FedMedian()},
        {"aggregator": FedAvg("examples", max_examples=9)},
    ):
        with pytest.raises(FieldError, match="discrete"):
            GlobalDP(noise="discrete", **bad, noise_multiplier=0.01)


# ---- metric privacy

LAYOUT = Layout.from_shapes({"a.weight": (2,), "a.bias": (1,), "b.weight": (1,)}, torch.float64)
MODELS = [[0.0, 0, 0, 0], [3, 4, 12, 0], [0, 0, 0, 9]]  # distances by hand in test_calibration
NEAR_ONE = [[0.0, 0, 0, 1], [0.6, 0.8, 0, 0], [0, 0, 1, 0]]  # all of norm 1


def metric(updates, cohort=None, **options):
    side = MetricPrivacy(**{"noise_multiplier": Z, "clip": 100.0, "order": "printed", **options})
    return combine(side, [0.0] * 4, updates, layout=LAYOUT, cohort=cohort)


@pytest.mark.parametrize(
    ("options", "distance"),
    [
        ({}, (1 + 1 + 0) / 3),  # pair 1-2 or any other: two layers differ by norm 1
        ({"grouping": "module"}, (1 + 1) / 2),
        ({"distance": "euclidean"}, math.sqrt(2)),
        ({"distance_on": "clipped", "clip": 0.5}, (0.5 + 0.5) / 3),
        ({"distance_on": "raw", "clip": 0.5}, (1 + 1) / 3),
    ],
)
def test_metric_scale_by_hand(options, distance):
    result = metric(NEAR_ONE, **options)
    assert result.report["distance"] == near(distance)
    bound = options.get("clip", 100.0)
    assert result.report["sigma"] == near(Z * bound / (3 * distance))
    assert result.spend.scale == (result.report["sigma"],)
    assert result.report["global_fallback"] == result.report["outliers"] == 0
    more = metric(NEAR_ONE, direction="more", **options)
    assert more.report["sigma"] == near(Z * bound / 3 * distance)


def test_metric_formal_order_divides_by_the_cohort_and_stays_heuristic():
    result = metric(NEAR_ONE, cohort=6, order="formal")
    assert result.report["sigma"] == near(Z * 100 / 6 / (2 / 3))
    assert result.models[0].tolist() == near([0.1, 0.8 / 6, 1 / 6, 1 / 6])


@pytest.mark.parametrize("order", ["formal", "printed"])
def test_metric_privacy_never_has_an_epsilon(order):
    guarantee = metric(NEAR_ONE, order=order).spend.guarantee
    assert guarantee.status == "heuristic"
    with pytest.raises(HeuristicError, match="unprotected models"):
        guarantee.epsilon(DELTA)


@pytest.mark.parametrize("n", [2, 3, 4, 10])
def test_one_client_cannot_switch_the_noise_off(n):
    layout, honest = flat(50), torch.randn(n, 50, dtype=torch.float64)
    attacked = honest.clone()
    attacked[-1] *= 1e6
    side = MetricPrivacy(noise_multiplier=Z, clip=1.0, order="printed")
    theta = [0.0] * 50
    result = combine(side, theta, attacked, layout=layout)
    assert result.report["outliers"] == 1
    if n == 2:  # nothing left to compare: the global scale
        assert result.report["global_fallback"] == 1
        assert result.report["sigma"] == pytest.approx(Z / 2)
    else:
        d = max_pairwise_distance(honest[:-1], layout)
        assert result.report["sigma"] == pytest.approx(Z / (n * d))
    # without the guard the noise would be about a million times smaller
    assert result.report["sigma"] > 1e4 * Z / (n * max_pairwise_distance(attacked, layout))


def test_two_outliers_of_five_are_left_out():
    updates = torch.randn(5, 50, dtype=torch.float64)
    d = max_pairwise_distance(updates[:3], flat(50))
    updates[3:] *= 1e6
    side = MetricPrivacy(noise_multiplier=Z, clip=1.0, order="printed")
    result = combine(side, [0.0] * 50, updates, layout=flat(50))
    assert result.report["outliers"] == 2
    assert result.report["distance"] == pytest.approx(d)


@given(st.lists(st.floats(1.0, 10.0), min_size=2, max_size=8))
def test_the_guard_does_nothing_within_ten_medians(lengths):
    # the shortest is 1 and the longest at most 10, so none is beyond ten times the median
    directions = torch.randn(len(lengths), 4, dtype=torch.float64)
    updates = (
        directions
        / directions.norm(dim=1, keepdim=True)
        * torch.tensor(lengths, dtype=torch.float64)[:, None]
    )
    result = metric(updates)
    assert result.report["outliers"] == 0
    assert result.report["distance"] == pytest.approx(
        max_pairwise_distance(updates, LAYOUT), rel=1e-9
    )


def test_the_guard_begins_beyond_ten_medians():
    for length, outliers in ((9.999, 0), (10.001, 1)):
        updates = [[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, length, 0]]
        assert metric(updates).report["outliers"] == outliers


@pytest.mark.parametrize(
    "updates",
    [
        [[1.0, 2, 3, 4]],
        [[1.0, 2, 3, 4]] * 3,
        [[0.0] * 4] * 3,
        [[0.0] * 4, [0.0] * 4, [0, 0, 1e9, 0]],
    ],
)
def test_without_a_distance_the_scale_is_the_global_one(updates):
    result = metric(updates)
    assert result.report["global_fallback"] == 1
    assert result.report["distance"] == 0
    assert result.report["sigma"] == pytest.approx(Z * 100 / len(updates))


def test_metric_noise_is_added():
    d, theta = 20_000, torch.zeros(20_000, dtype=torch.float64)
    updates = torch.randn(4, d, dtype=torch.float64)
    side = MetricPrivacy(noise_multiplier=0.3, clip=1.0)
    noisy, clean = (
        combine(side, theta, updates, source=s) for s in (ReproducibleSource(3), silent())
    )
    distance = max_pairwise_distance(updates, flat(d))
    assert_deviation(noisy.models - clean.models, 0.3 / (4 * distance))


def test_released_distance_by_hand():
    # first round: nothing was released, the global scale; then d is how far the model moved, its noise taken off
    side = MetricPrivacy(
        noise_multiplier=Z, clip=100.0, distance_on="released", released_range=(0.5, 4.0)
    )
    first = combine(side, [0.0] * 4, NEAR_ONE, layout=LAYOUT, cohort=3)
    assert first.report["sigma"] == pytest.approx(Z * 100 / 3)
    assert first.spend.guarantee.status == "formal"
    assert first.spend.guarantee.mu == pytest.approx(
        4.0 / Z
    )  # the public worst case: a distance of 4
    state = replace(first.state, sigma=0.0)
    for theta, moved in (
        ([3.0, 4, 2, 1], 8 / 3),
        ([0.03, 0.04, 0, 0], 0.5),
        ([300.0, 0, 0, 0], 4.0),
    ):
        later = combine(side, theta, NEAR_ONE, layout=LAYOUT, cohort=3, state=state)
        assert later.report["distance"] == pytest.approx(moved)
        sigma = Z * 100 / 3 / moved
        assert later.report["sigma"] == pytest.approx(sigma)
        assert later.spend.charge == pytest.approx(
            (100 / 3) / sigma
        )  # the sensitivity over what was drawn
        assert later.spend.guarantee.mu == pytest.approx(4.0 / Z)
    # the clients' own models change nothing about the scale
    others = combine(
        side, [3.0, 4, 2, 1], [[9.0, 9, 9, 9]] * 3, layout=LAYOUT, cohort=3, state=state
    )
    assert others.report["sigma"] == pytest.approx(Z * 100 / 3 / (8 / 3))
    # noise of deviation 1: of the layers' squares 25, 4, 1 the sizes 2, 1, 1 are taken off
    noisy = combine(
        side, [3.0, 4, 2, 1], NEAR_ONE, layout=LAYOUT, state=replace(first.state, sigma=1.0)
    )
    assert noisy.report["distance"] == pytest.approx((math.sqrt(23) + math.sqrt(3) + 0) / 3)


@pytest.mark.parametrize("field", ["distance", "grouping", "distance_on", "direction"])
def test_bad_metric_options_are_refused_by_name(field):
    with pytest.raises(FieldError) as error:
        MetricPrivacy(**{field: "unknown"})
    assert error.value.field in (field, "metric")


def test_global_dp_without_a_noise_that_somebody_chose_is_refused_with_how_to_plan_one():
    for make in (GlobalDP, lambda: build(*["global"])):
        with pytest.raises(
            FieldError, match=r"noise_multiplier is missing: .*fedveil plan --epsilon"
        ):
            make()


def test_a_mechanism_of_the_user_s_is_drawn_and_proves_nothing(monkeypatch):
    class Uniform:
        def __init__(self, sigma):
            self.sigma = sigma

        def add_to(self, vector, *, source):
            return vector.add_(self.sigma)

    monkeypatch.setitem(MECHANISMS, "uniform", Uniform)
    side = GlobalDP(noise_multiplier=Z, clip=C, order="printed", noise="uniform")
    found = combine(side, THETA, UPDATES)
    assert found.models.tolist() == [near([10.9 + 2.5, 1.2 + 2.5])]
    assert found.spend.guarantee.status == "heuristic"
    assert found.spend.mechanism == "uniform"
    with pytest.raises(FieldError, match="noise"):
        GlobalDP(noise_multiplier=1.0, noise="unifrom")
