import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.accounting import (
    Filter,
    Guarantee,
    LeakageFilter,
    ParticipationFilter,
    Spend,
    compose_mu,
    epsilon_of_mu,
    mu_of_epsilon,
    nothing,
    plan,
    total,
    unprotected,
)
from fedveil.errors import FieldError, HeuristicError

DELTA = 1e-5


def formal(mu=1.0, **changes):
    values = {"unit": "client", "relation": "zero-out", "trust": "central", "status": "formal", "scope": "round"}
    return Guarantee(**{**values, "mu": mu, **changes})


def heuristic(reason="the scale is private"):
    return formal(mu=None, status="heuristic", reason=reason)


def metric_private(epsilon=0.5):
    return formal(mu=None, epsilon_per_distance=epsilon)


# ---- what a guarantee says


def test_epsilon_of_a_formal_guarantee():
    assert formal(1.0).epsilon(DELTA) == pytest.approx(4.377178096, rel=1e-9)  # see test_gdp


def test_a_heuristic_has_no_epsilon_anywhere():
    weak = heuristic()
    with pytest.raises(HeuristicError, match="the scale is private"):
        weak.epsilon(DELTA)
    with pytest.raises(HeuristicError, match="no noise"):
        unprotected().epsilon(DELTA)
    for guarantee in (weak, unprotected(), total([weak, weak])):
        assert "eps" not in guarantee.describe(DELTA)
        assert guarantee.to_dict()["mu"] is None
        assert not guarantee.proven


def test_a_distance_curve_has_no_epsilon_without_a_distance():
    with pytest.raises(HeuristicError, match="distance"):
        metric_private().epsilon(DELTA)


def test_describe():
    assert formal(1.0).describe() == "formal mu=1 (zero-out, client, central, round)"
    assert formal(1.0).describe(DELTA) == "formal eps=4.377 at delta=1e-05 (zero-out, client, central, round)"
    assert heuristic().describe(DELTA) == "heuristic (client, central, round)"
    assert unprotected().describe(DELTA) == "none"
    assert metric_private().describe(DELTA) == "formal 0.5-d-private (client, central, round)"


def test_a_large_epsilon_is_printed_and_flagged():
    at_twenty = mu_of_epsilon(20.0, DELTA)
    assert "vacuous" not in formal(at_twenty * 0.999).describe(DELTA)
    assert "vacuous" in formal(at_twenty * 1.001).describe(DELTA)
    # z = .01, 20 rounds (the metric-privacy paper's setting): mu = sqrt(20) / .01 = 447.2
    papers = formal(447.2135955)
    assert papers.epsilon(DELTA) == pytest.approx(101906.3, rel=1e-6)
    assert "eps=1.019e+05" in papers.describe(DELTA)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "heuristic"},  # with a mu
        {"status": "none"},
        {"mu": None},  # formal without a number
        {"epsilon_per_distance": 1.0},  # two numbers
        {"status": "conditional"},  # without conditions
        {"conditions": ("counts are public",)},  # formal with conditions
        {"mu": -1.0},
        {"mu": float("nan")},
        {"mu": float("inf")},
        {"status": "proven"},
    ],
)
def test_a_guarantee_that_contradicts_itself_is_refused(changes):
    with pytest.raises(FieldError):
        formal(**changes)


def test_round_trip():
    for guarantee in (formal(), heuristic(), metric_private(), formal(status="conditional", conditions=("a", "b"))):
        assert Guarantee.from_dict(guarantee.to_dict()) == guarantee
    spend = Spend(guarantee=formal(), mechanism="gaussian", scale=(0.1, 2.0), sensitivity=5.0, leakage=None)
    assert Spend.from_dict(spend.to_dict()) == spend
    assert Spend.from_dict(nothing("local").to_dict()) == nothing("local")


# ---- totals


def test_totals_by_hand():
    assert total([formal(3.0), formal(4.0)]) == formal(5.0, scope="total")
    assert total([metric_private(0.5), metric_private(0.25)]).epsilon_per_distance == 0.75


def test_one_release_without_proof_makes_a_total_without_proof():
    assert total([formal(), heuristic(), formal()]).status == "heuristic"
    assert total([formal(), heuristic(), unprotected()]).status == "none"
    assert total([heuristic()]).scope == "total"


def test_conditions_are_collected():
    parts = [formal(1.0), formal(1.0, status="conditional", conditions=("a",))]
    parts += [formal(1.0, status="conditional", conditions=("b", "a"))]
    whole = total(parts)
    assert (whole.status, whole.conditions) == ("conditional", ("a", "b"))
    assert whole.mu == pytest.approx(3**0.5)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [formal(), formal(relation="replace-one")],
        [formal(), formal(trust="local")],
        [formal(), formal(unit="record")],
        [formal(), metric_private()],
    ],
)
def test_what_does_not_compose_is_refused(parts):
    with pytest.raises(FieldError):
        total(parts)


# ---- filters


def spend_of(mu):
    return Spend(guarantee=formal(mu))


def test_filter_is_as_tight_as_composition():
    # 25 rounds at mu = budget / 5 compose to exactly the budget
    budget = mu_of_epsilon(8.0, DELTA)
    stop = Filter(8.0, DELTA)
    assert [stop.admit(budget / 5) for _ in range(26)] == [True] * 25 + [False]
    assert epsilon_of_mu(stop.spent, DELTA) == pytest.approx(8.0, rel=1e-9)


def test_filter_refuses_without_charging_and_remembers():
    stop = Filter(1.0, DELTA)
    part = stop.budget * 0.6
    assert stop.admit(part)
    assert not stop.admit(stop.budget)
    assert stop.spent == part
    assert stop.admit(stop.budget * 0.8)  # .6, .8, 1
    assert not stop.admit(stop.budget * 1e-3)


@given(st.lists(st.floats(0, 3), max_size=30))
def test_filter_never_admits_more_than_its_budget(mus):
    stop = Filter(4.0, DELTA)
    admitted = [mu for mu in mus if stop.admit(mu)]
    assert epsilon_of_mu(compose_mu(admitted), DELTA) <= 4.0 * (1 + 1e-9)
    assert stop.spent == pytest.approx(compose_mu(admitted), rel=1e-12)


def test_leakage_filter():
    stop = LeakageFilter(1.0)
    assert [stop.admit(0.1) for _ in range(11)] == [True] * 10 + [False]  # ten tenths are one, not a bit more
    assert stop.spent == pytest.approx(1.0)
    assert stop.admit(0.0)


def test_participation_filter():
    stop = ParticipationFilter(2)
    heuristics = Spend(guarantee=heuristic())
    assert [stop.admit_spend(heuristics) for _ in range(3)] == [True, True, False]
    assert stop.spent == 2


def test_filters_take_spends_of_their_kind_only():
    stop = Filter(4.0, DELTA)
    assert stop.admit_spend(spend_of(0.5))
    assert stop.spent == 0.5
    with pytest.raises(FieldError, match="cannot hold a heuristic"):
        stop.admit_spend(Spend(guarantee=heuristic()))
    with pytest.raises(FieldError, match="cannot hold a none"):
        stop.admit_spend(nothing())
    leak = LeakageFilter(4.0)
    assert leak.admit_spend(Spend(guarantee=heuristic(), leakage=3.0))
    assert leak.spent == 3.0
    with pytest.raises(FieldError, match="leakage"):
        leak.admit_spend(spend_of(0.5))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), None])
def test_filters_refuse_bad_numbers(bad):
    for make in (lambda: Filter(bad, DELTA), lambda: Filter(1.0, bad), lambda: LeakageFilter(bad)):
        with pytest.raises(FieldError):
            make()
    for admit in (Filter(1.0, DELTA).admit, LeakageFilter(1.0).admit):
        with pytest.raises(FieldError):
            admit(bad)
    with pytest.raises(FieldError, match="cap"):
        ParticipationFilter(bad)
    with pytest.raises(FieldError, match="cap"):
        ParticipationFilter(1.5)


# ---- planning


def test_plan_by_hand():
    # mu(8, 1e-5) = 1.66603; replace-one doubles the sensitivity: z = 2 sqrt(20) / 1.66603 = 5.3686, sigma = z 5 / 4
    made = plan(rounds=20, clients=4, delta=DELTA, epsilon=8.0, clip=5.0, relation="replace-one")
    assert made.mu == pytest.approx(1.66603, rel=1e-5)
    assert made.noise_multiplier == pytest.approx(5.36861, rel=1e-5)
    assert made.sigma == pytest.approx(6.7, abs=0.02)
    assert made.sigma == pytest.approx(made.noise_multiplier * 5 / 4)


def test_plan_for_a_noise():
    made = plan(rounds=20, clients=4, delta=DELTA, noise_multiplier=0.01, clip=5.0)
    assert made.mu == pytest.approx(447.2135955)
    assert made.vacuous
    assert "vacuous" in made.advice()
    assert made.epsilon == pytest.approx(101906.3, rel=1e-6)
    half = plan(rounds=20, clients=4, delta=DELTA, noise_multiplier=0.01, clip=5.0, relation="replace-one")
    assert half.mu == pytest.approx(2 * made.mu)


@given(
    st.integers(1, 500),
    st.integers(1, 1000),
    st.floats(1e-10, 1e-2),
    st.floats(0.01, 1000),
    st.sampled_from(["zero-out", "add/remove", "replace-one"]),
)
def test_a_plan_never_ends_above_its_target_and_wastes_nothing(rounds, clients, delta, epsilon, relation):
    made = plan(rounds=rounds, clients=clients, delta=delta, epsilon=epsilon, relation=relation)
    assert made.epsilon <= epsilon
    assert made.epsilon == pytest.approx(epsilon, rel=1e-6)
    # what the rounds really compose to, from the sensitivity of a mean
    change = (2 if relation == "replace-one" else 1) / clients
    assert epsilon_of_mu(compose_mu([change / made.sigma] * rounds), delta) <= epsilon * (1 + 1e-9)


def test_advice_by_hand():
    # sigma = z C / n = 1 / 10; noise norm .1 sqrt(10^4) = 10 against C = 1
    made = plan(rounds=1, clients=10, delta=DELTA, noise_multiplier=1.0, dimension=10_000)
    assert made.signal_to_noise == pytest.approx(0.1)
    # to reach .3: three times the clients, or a ninth of the parameters
    assert "30 clients, or 1111 trainable parameters" in made.advice()
    assert "can work" in plan(rounds=1, clients=10, delta=DELTA, noise_multiplier=1.0, dimension=100).advice()
    assert plan(rounds=1, clients=10, delta=DELTA, noise_multiplier=1.0).signal_to_noise is None


def test_plan_for_rounds_cohort_and_clip():
    # mu(1, 1e-5) = 0.268: (0.268 / 0.02)^2 = 179.6 rounds of z = 50
    made = plan(rounds=None, delta=DELTA, epsilon=1.0, noise_multiplier=50.0)
    assert made.rounds == int((mu_of_epsilon(1.0, DELTA) / 0.02) ** 2) == 179
    assert made.epsilon <= 1.0 < plan(rounds=180, delta=DELTA, noise_multiplier=50.0).epsilon
    # noise length z C sqrt(d) / n = 2 * 100 C / n against an update of length C / 2: .3 needs n = .3 * 200 / .5
    made = plan(rounds=1, clients=None, delta=DELTA, noise_multiplier=2.0, clip=2.0, update_norm=1.0, dimension=10_000)
    assert made.clients == 120
    assert made.signal_to_noise == pytest.approx(0.3)
    assert plan(rounds=1, delta=DELTA, noise_multiplier=1.0, update_norm=0.7).clip == 0.7


def test_a_large_delta_is_warned_about():
    assert "1/n" in plan(rounds=1, clients=200, delta=0.01, epsilon=1.0).warnings[0]
    assert plan(rounds=1, clients=50, delta=0.01, epsilon=1.0).warnings == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": None},
        {"noise_multiplier": 1.0},
        {"rounds": None},
        {"rounds": None, "noise_multiplier": 0.01},
        {"clients": None},
        {"update_norm": 0.0},
        {"rounds": 0},
        {"clients": 2.5},
        {"delta": 0},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"clip": -1},
        {"relation": "neighbours"},
        {"dimension": 0},
    ],
)
def test_bad_plans_are_refused(changes):
    with pytest.raises(FieldError):
        plan(**{"rounds": 1, "clients": 2, "delta": DELTA, "epsilon": 1.0, **changes})
