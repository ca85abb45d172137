import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedveil import gdp
from fedveil.accounting.filters import Filter
from fedveil.errors import FieldError
from fedveil.gdp import (
    compose_mu,
    delta_of_mu,
    epsilon_of_mu,
    log_delta,
    mu_of_epsilon,
    noise_of_epsilon,
)
from fedveil.mechanisms import gaussian_sigma

MU = st.floats(0.01, 300)
DELTA = st.floats(1e-12, 0.1)


def test_golden_numbers():
    # roots of delta(epsilon) = Phi(1/2 - epsilon) - e^epsilon Phi(-1/2 - epsilon) and its twin, by mpmath in 50 digits
    assert gaussian_sigma(1.0, 1e-5) == pytest.approx(3.730631635, rel=1e-9)
    assert epsilon_of_mu(1.0, 1e-5) == pytest.approx(4.377178096, rel=1e-9)


def test_against_the_formula_where_it_does_not_underflow():
    for mu, epsilon in ((0.5, 0.1), (1.0, 1.0), (2.0, 3.0)):
        expected = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )
        assert delta_of_mu(mu, epsilon) == pytest.approx(expected, rel=1e-10)
        assert epsilon_of_mu(mu, expected) == pytest.approx(epsilon, rel=1e-9)


def test_large_mu_works():
    # epsilon / mu^2 tends to 1/2; the next term is mu * z with Phi(z) = 1 - delta
    epsilon = epsilon_of_mu(1000.0, 1e-5)
    assert epsilon == pytest.approx(1000**2 / 2 + 1000 * norm.isf(1e-5), rel=1e-4)
    assert mu_of_epsilon(epsilon, 1e-5) == pytest.approx(1000.0, rel=1e-8)


@pytest.mark.parametrize("mu", [1e6, 1e8, 1e9, 1e12, 1e40])
def test_no_mu_is_too_large_to_be_counted_whole(mu):
    # epsilon = mu (mu/2 - a), with Phi(a) nearly delta: never below the mean loss mu^2/2, but for the last digit
    epsilon = epsilon_of_mu(mu, 1e-5)
    assert epsilon == pytest.approx(mu * (mu / 2 + 4.26489), rel=1e-9)
    assert epsilon >= mu**2 / 2 * (1 - 1e-15)
    assert mu_of_epsilon(epsilon, 1e-5) == pytest.approx(mu, rel=1e-12)


@pytest.mark.parametrize("delta", [1e-15, 1e-12, 0.1, 0.999999])
@pytest.mark.parametrize("mu", [1e-6, 0.03, 1.0, 40.0, 1e5])
def test_against_fifty_digits(mu, delta):
    mp = pytest.importorskip("mpmath")
    epsilon = epsilon_of_mu(mu, delta)

    def log_ratio(e):
        with mp.workdps(400):
            m, e = mp.mpf(mu), mp.mpf(e)
            return float(
                mp.log((mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)) / delta)
            )

    assert log_ratio(epsilon * (1 + 1e-8)) < 0
    assert epsilon == 0 or log_ratio(epsilon * (1 - 1e-8)) > 0


def test_no_mu_is_no_epsilon():
    assert epsilon_of_mu(0.0, 1e-5) == 0.0
    assert delta_of_mu(0.0, 1.0) == 0.0
    assert (
        epsilon_of_mu(1e-9, 1e-5) == 0.0
    )  # delta(0) is about mu / sqrt(2 pi), already below the target


def test_composition_by_hand():
    assert compose_mu([3.0, 4.0]) == 5.0
    assert compose_mu([0.5] * 4) == 1.0
    assert compose_mu([]) == 0.0


@pytest.mark.parametrize("delta", [0, 1, 2, -1e-5, float("nan"), "1e-5"])
def test_bad_deltas_are_refused(delta):
    for call in (lambda: epsilon_of_mu(1.0, delta), lambda: mu_of_epsilon(1.0, delta)):
        with pytest.raises(FieldError, match="delta") as error:
            call()
        assert error.value.field == "delta"


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True, None])
def test_bad_parameters_are_refused(value):
    with pytest.raises(FieldError, match="mu"):
        epsilon_of_mu(value, 1e-5)
    with pytest.raises(FieldError, match="mu"):
        compose_mu([1.0, value])
    for epsilon in (value, 0.0):
        with pytest.raises(FieldError, match="epsilon"):
            mu_of_epsilon(epsilon, 1e-5)
        with pytest.raises(FieldError, match="epsilon"):
            gaussian_sigma(epsilon, 1e-5)
    with pytest.raises(FieldError, match="sensitivity"):
        gaussian_sigma(1.0, 1e-5, sensitivity=value)


def test_sigma_is_proportional_to_sensitivity():
    assert gaussian_sigma(2.0, 1e-6, 10.0) == pytest.approx(
        10 * gaussian_sigma(2.0, 1e-6), rel=1e-14
    )


@given(st.floats(1e-3, 1e5), DELTA)
def test_inverse(epsilon, delta):
    mu = mu_of_epsilon(epsilon, delta)
    assert epsilon_of_mu(mu, delta) == pytest.approx(epsilon, rel=1e-8, abs=1e-8)


@given(MU, st.floats(1.001, 3.0), DELTA)
def test_more_mu_costs_more(mu, factor, delta):
    small, large = epsilon_of_mu(mu, delta), epsilon_of_mu(mu * factor, delta)
    assert large >= small
    assert large > small or large == 0.0


@given(MU, DELTA, st.floats(1.01, 10.0))
def test_a_smaller_delta_costs_more(mu, delta, factor):
    assert epsilon_of_mu(mu, delta / factor) >= epsilon_of_mu(mu, delta)


@given(MU, st.floats(0, 100), st.floats(0.01, 10))
def test_delta_falls_with_epsilon(mu, epsilon, more):
    assert log_delta(epsilon + more, mu) <= log_delta(epsilon, mu) <= 0


@given(st.lists(st.floats(0, 100), max_size=8))
def test_composition_is_the_euclidean_norm(mus):
    assert compose_mu(mus) == pytest.approx(math.hypot(*mus), rel=1e-12)
    assert compose_mu(mus) >= max(mus, default=0.0) * (1 - 1e-15)


@pytest.mark.parametrize(("sigma", "rounds"), [(0.5, 1), (1.0, 1), (3.0, 1), (20.0, 1), (4.0, 10)])
def test_agrees_with_an_independent_accountant(sigma, rounds):
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_distribution

    pld = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=1e-4
    )
    theirs = pld.self_compose(rounds).get_epsilon_for_delta(
        1e-5
    )  # rounds up: never below the truth
    ours = epsilon_of_mu(compose_mu([1 / sigma] * rounds), 1e-5)
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours <= theirs * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-9, 1e-4, 4.0, 1e6])
@pytest.mark.parametrize("delta", [1e-15, 1e-5])
def test_what_is_printed_stays_within_a_budget_after_few_tries_whatever_the_processor_rounds(
    monkeypatch, epsilon, delta
):
    """Steps of one size took hours where a processor's logarithm left epsilon a part in 10,000 above."""
    tries, plain = [], gdp.epsilon_of_mu

    def worse(mu, delta):
        tries.append(mu)
        return plain(mu, delta) * (1 + 1e-4)

    monkeypatch.setattr(gdp, "epsilon_of_mu", worse)
    monkeypatch.setattr("fedveil.accounting.filters.epsilon_of_mu", worse)
    assert worse(1 / noise_of_epsilon(epsilon, delta), delta) <= epsilon
    assert worse(Filter(epsilon, delta).budget, delta) <= epsilon
    assert len(tries) < 100
