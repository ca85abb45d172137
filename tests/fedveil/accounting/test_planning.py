"""Plans: never above the target, nothing wasted, and words that help where a request is hopeless."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.accounting import compose_mu, epsilon_of_mu, mu_of_epsilon, plan
from fedveil.errors import FieldError

DELTA = 1e-5


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
    half = plan(
        rounds=20, clients=4, delta=DELTA, noise_multiplier=0.01, clip=5.0, relation="replace-one"
    )
    assert half.mu == pytest.approx(2 * made.mu)


@given(
    st.integers(1, 500),
    st.integers(1, 1000),
    st.floats(1e-10, 1e-2),
    st.floats(0.01, 1000),
    st.sampled_from(["zero-out", "add/remove", "replace-one"]),
)
def test_a_plan_never_ends_above_its_target_and_wastes_nothing(
    rounds, clients, delta, epsilon, relation
):
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
    # to reach .3: three times the clients, or a ninth of the parameters, or three times mu: an epsilon of 16.7
    assert (
        "30 clients in every round, or 1,111 trainable parameters, or an epsilon of 16.7"
        in made.advice()
    )
    assert (
        "can work"
        in plan(rounds=1, clients=10, delta=DELTA, noise_multiplier=1.0, dimension=100).advice()
    )
    bare = plan(rounds=1, clients=10, delta=DELTA, noise_multiplier=1.0)
    assert bare.signal_to_noise is None
    assert "at most 1,111 parameters" in bare.advice()


def test_every_way_out_works_by_itself():
    asked = {"rounds": 20, "clients": 10, "delta": DELTA, "epsilon": 4.0, "dimension": 2_000}
    made = plan(**asked)
    assert made.signal_to_noise < 0.3
    found = [int(n) for n in re.findall(r"(\d+) (?:clients|trainable)", made.advice())]
    for change, value in zip(("clients", "dimension"), found, strict=True):
        assert plan(**{**asked, change: value}).signal_to_noise >= 0.3
        short = value - 1 if change == "clients" else value + 1
        assert plan(**{**asked, change: short}).signal_to_noise < 0.3


def test_a_hopeless_request_is_explained():
    # four hospitals, a network of 6.5 million parameters, epsilon 8 whatever a client's data were
    asked = {
        "rounds": 20,
        "clients": 4,
        "delta": DELTA,
        "epsilon": 8.0,
        "clip": 5.0,
        "relation": "replace-one",
    }
    made = plan(**asked, dimension=6_517_476)
    assert made.sigma == pytest.approx(6.71, abs=0.005)
    # 6.71 sqrt(6,517,476) / (5 sqrt(20)) = 766 times as long as 20 updates of length 5
    assert made.signal_to_noise == pytest.approx(1 / 766, rel=1e-3)
    assert made.advice().startswith("hopeless")
    assert re.findall(r"[\d,]+\d", made.advice()) == [
        "766",
        "920",
        "123",
    ]  # times, clients, parameters
    assert re.findall(r"\d+", plan(**asked).advice()) == ["123"]
    assert not re.search(r"\d", plan(**{**asked, "epsilon": 0.01}).advice())  # no model


def test_a_vacuous_plan_says_how_much_noise_would_not_be():
    made = plan(rounds=20, clients=4, delta=DELTA, noise_multiplier=0.01)
    enough = float(re.search(r"to ([\d.]+) for an epsilon of 20", made.advice())[1])
    assert plan(
        rounds=20, clients=4, delta=DELTA, noise_multiplier=enough
    ).epsilon == pytest.approx(20, rel=0.02)


def test_plan_for_rounds_cohort_and_clip():
    # mu(1, 1e-5) = 0.268: (0.268 / 0.02)^2 = 179.6 rounds of z = 50
    made = plan(rounds=None, delta=DELTA, epsilon=1.0, noise_multiplier=50.0)
    assert made.rounds == int((mu_of_epsilon(1.0, DELTA) / 0.02) ** 2) == 179
    assert made.epsilon <= 1.0 < plan(rounds=180, delta=DELTA, noise_multiplier=50.0).epsilon
    # noise length z C sqrt(d) / n = 2 * 100 C / n against an update of length C / 2: .3 needs n = .3 * 200 / .5
    made = plan(
        rounds=1,
        clients=None,
        delta=DELTA,
        noise_multiplier=2.0,
        clip=2.0,
        update_norm=1.0,
        dimension=10_000,
    )
    assert made.clients == 120
    assert made.signal_to_noise == pytest.approx(0.3)
    assert plan(rounds=1, delta=DELTA, noise_multiplier=1.0, update_norm=0.7).clip == 0.7


def test_a_large_delta_is_warned_about():
    assert "1/n" in plan(rounds=1, clients=200, delta=0.01, epsilon=1.0).warnings[0]
    assert plan(rounds=1, clients=50, delta=0.01, epsilon=1.0).warnings == ()
    both = plan(rounds=1, clients=200, delta=0.01, epsilon=1.0, relation="add/remove").warnings
    assert "1/n" in both[0]
    assert "cohort" in both[1]


@pytest.mark.parametrize(
    "asked",
    [
        {"rounds": None, "epsilon": 3.0, "noise_multiplier": 1e300},  # rounds without end
        {"rounds": 3, "noise_multiplier": 1e300, "clip": 1e300},  # sigma overflows
        {"rounds": 3, "noise_multiplier": 1e300, "clients": None, "dimension": 10**20},
        {"rounds": 3, "noise_multiplier": 1e-310},  # mu overflows
    ],
)
def test_numbers_beyond_floats_are_refused(asked):
    with pytest.raises(FieldError):
        plan(delta=DELTA, **asked)


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
