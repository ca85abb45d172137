"""No printed privacy figure lies below what it stands for; none is printed that has no float; labels are true."""

import re
from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.accounting import Filter, Guarantee, Spend, epsilon_of_mu, plan, total
from fedveil.aggregation import FedAdam, FedAvg, FedOpt
from fedveil.errors import FieldError
from fedveil.evidence import plan_table
from fedveil.gdp import meaning_of_mu, rounded_down, rounded_up
from fedveil.methods import SGALDP, GlobalDP
from fedveil.methods.publishing import Publishing

DELTA = 1e-5
MU = st.floats(1e-3, 1e4)


def guarantee(**values):
    fixed = {
        "unit": "client",
        "relation": "zero-out",
        "trust": "central",
        "status": "formal",
        "scope": "total",
    }
    return Guarantee.from_dict({**fixed, **values})


@given(st.floats(1e-300, 1e300), st.integers(1, 8))
def test_the_last_printed_digit_is_rounded_up(value, digits):
    printed = rounded_up(value, digits)
    assert Decimal(printed) >= Decimal(value)
    assert float(printed) >= value
    assert float(printed) <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)
    assert len(re.sub(r"e.*|[^0-9]", "", printed).lstrip("0").rstrip("0")) <= digits


@given(st.floats(0, 1e6), st.integers(0, 5))
def test_what_an_attack_has_proven_is_rounded_down(value, decimals):
    printed = Decimal(rounded_down(value, decimals))
    assert Decimal(value) - Decimal(10) ** -decimals <= printed <= Decimal(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.377178, "4.378"),
        (4.377, "4.377"),
        (0.0, "0"),
        (20.0, "20"),
        (19.9999, "20"),
        (1e5 + 1, "1.001e+05"),
    ],
)
def test_by_hand(value, text):
    assert rounded_up(value) == text


@given(MU)
def test_a_guarantee_never_says_less_than_its_epsilon(mu):
    by_mu, by_rho, apart = guarantee(mu=mu), guarantee(rho=mu), guarantee(epsilon_per_distance=mu)
    assert float(re.search("mu=([^ ]+)", by_mu.describe())[1]) >= mu
    assert float(re.search("rho=([^ ]+)", by_rho.describe())[1]) >= mu
    assert float(re.search(r" ([^ ]+)-d-private", apart.describe())[1]) >= mu
    for found in (by_mu, by_rho):
        assert float(re.search("eps=([^ ]+)", found.describe(DELTA))[1]) >= found.epsilon(DELTA)


@given(MU)
def test_what_it_means_is_not_played_down(mu):
    meaning = meaning_of_mu(mu)
    figures = [float(f) / 100 for f in re.findall(r"([0-9][0-9.e-]*)%", meaning.describe())]
    accuracy, _, *found = figures  # 50% is a coin
    power = found[::2]  # each beside its rate of false alarms
    assert accuracy >= meaning.accuracy
    assert all(shown >= true for shown, true in zip(power, meaning.power, strict=True))


@given(epsilon=st.floats(0.01, 1e4), rounds=st.integers(1, 500))
def test_a_plan_s_table_promises_no_less_noise_than_its_epsilon_needs(epsilon, rounds):
    made = plan(epsilon=epsilon, delta=DELTA, rounds=rounds)
    shown = dict(plan_table(made).rows)
    assert float(shown["epsilon"].split()[0]) >= made.epsilon
    assert float(shown["mu"].split()[0]) >= made.mu
    z = float(shown["noise multiplier"].split()[0])  # what somebody types in again
    assert epsilon_of_mu(rounds**0.5 / z, DELTA) <= epsilon


@given(st.floats(0.01, 1e4))
def test_a_total_held_by_a_budget_is_printed_as_that_budget_or_more(epsilon):
    budget = Filter(epsilon, DELTA)
    spend = Spend(
        guarantee=guarantee(mu=2 * budget.budget, scope="round"), charge=budget.budget / 2
    )
    held = budget.held(total([spend.guarantee] * 4), [spend] * 4)
    assert held.epsilon(DELTA) <= epsilon
    assert held.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("z", [1e-308, 1e-200, 0.0, -1.0, float("nan"), float("inf")])
def test_a_noise_multiplier_whose_epsilon_has_no_float_is_refused(z):
    for make in (
        lambda: GlobalDP(noise_multiplier=z),
        lambda: Publishing(noise_multiplier=z),
        lambda: plan(noise_multiplier=z, rounds=1, delta=DELTA),
    ):
        with pytest.raises(FieldError, match="noise_multiplier"):
            make()
    assert "inf" not in plan(noise_multiplier=1e-6, rounds=10**6, delta=DELTA).advice()


def test_mu_without_an_epsilon_is_refused():
    with pytest.raises(FieldError, match="mu"):
        epsilon_of_mu(1e200, DELTA)


# ---- labels


def test_static_local_noise_has_its_own_cost_and_composes():
    static = SGALDP(epsilon_min=5.0, epsilon_max=5.0, delta=DELTA)
    one = static._spend((), 5.0).guarantee
    assert one.proven
    assert (one.relation, one.trust) == ("replace-one", "local")
    # "SGA-LDP at epsilon 5 for 100 rounds composes to 346 with sensitivity 2C", computed apart from this code
    assert total([one] * 100).epsilon(DELTA) == pytest.approx(346, abs=1)
    assert (
        SGALDP(epsilon_min=4.999, epsilon_max=5.0)._spend((), 5.0).guarantee.status == "heuristic"
    )


def test_fedopt_at_rate_1_has_the_status_of_fedavg():
    plain, same, other = (
        GlobalDP(rule, noise_multiplier=1.0, order="printed")
        for rule in (FedAvg(), FedOpt(lr=1.0), FedOpt(lr=0.5))
    )
    assert same.may_be_proven
    assert not other.may_be_proven
    assert not GlobalDP(FedAdam(lr=1.0), order="printed", noise_multiplier=0.01).may_be_proven
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    assert same._spend(0.25, 1.0, weights, 4) == plain._spend(0.25, 1.0, weights, 4)
    assert other._spend(0.25, 1.0, weights, 4).guarantee.status == "heuristic"
