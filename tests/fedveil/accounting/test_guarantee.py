import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.accounting import (
    Filter,
    Gaussian,
    Guarantee,
    LeakageFilter,
    ParticipationFilter,
    Spend,
    StepFilter,
    compose_mu,
    epsilon_of_mu,
    mu_of_epsilon,
    nothing,
    total,
    unprotected,
)
from fedveil.accounting.events import FACTOR
from fedveil.errors import FieldError, HeuristicError

DELTA = 1e-5


def formal(mu=1.0, **changes):
    values = {
        "unit": "client",
        "relation": "zero-out",
        "trust": "central",
        "status": "formal",
        "scope": "round",
    }
    return Guarantee.from_dict({**values, "mu": mu, **changes})


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
    assert (
        formal(1.0).describe(DELTA)
        == "formal eps=4.378 at delta=1e-05 (zero-out, client, central, round)"
    )
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
    assert "eps=1.02e+05" in papers.describe(DELTA)


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
    for guarantee in (
        formal(),
        heuristic(),
        metric_private(),
        formal(status="conditional", conditions=("a", "b")),
    ):
        assert Guarantee.from_dict(guarantee.to_dict()) == guarantee
    spend = Spend(
        guarantee=formal(), mechanism="gaussian", scale=(0.1, 2.0), sensitivity=5.0, leakage=None
    )
    for made in (spend, nothing("local")):
        assert Spend.from_dict({**vars(made), "guarantee": json.loads(made.guarantee.text)}) == made


# ---- totals


def test_totals_by_hand():
    assert total([formal(3.0), formal(4.0)]) == formal(5.0, scope="total")
    assert total([metric_private(0.5), metric_private(0.25)]).bound.epsilon_per_distance == 0.75


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
        [formal(), formal(unit="record", public_size=True)],
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


def test_a_total_is_the_budget_only_while_the_filter_held():
    # five rounds of mu = 1: a filter that allowed each of them promises its budget, a later and smaller one nothing
    spends = [Spend(guarantee=formal(1.0), charge=0.1)] * 5
    worst = total(s.guarantee for s in spends)
    budget = Filter(epsilon_of_mu(0.3, DELTA), DELTA)
    assert all(budget.admit_spend(s) for s in spends)
    assert budget.held(worst, spends).mu == pytest.approx(0.3)
    lowered = Filter(epsilon_of_mu(0.2, DELTA), DELTA)  # .1 sqrt(5) = .22 was spent
    assert lowered.held(worst, spends) == worst


def test_leakage_filter():
    stop = LeakageFilter(1.0)
    assert [stop.admit(0.1) for _ in range(11)] == [True] * 10 + [
        False
    ]  # ten tenths are one, not a bit more
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


def test_a_budget_counts_promises_of_one_unit_under_one_relation():
    event = Gaussian(1.0)
    for made in (lambda: Filter(99.0, DELTA), lambda: StepFilter(event, 9)):
        spends = {
            relation: Spend(guarantee=formal(FACTOR[relation], relation=relation))
            for relation in FACTOR
        }
        for spend in spends.values():
            for other in spends.values():
                limited = made()
                assert limited.admit_spend(spend)
                if other is spend:
                    assert limited.admit_spend(other)
                else:
                    with pytest.raises(FieldError) as refused:
                        limited.admit_spend(other)
                    assert refused.value.field == "filter"
