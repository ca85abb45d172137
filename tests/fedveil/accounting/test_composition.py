"""The accountant against closed forms, numerical integration and three independent libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fedveil import accounting as acc
from fedveil.accounting.composition import _renyi
from fedveil.accounting.euclidean_laplace import delta_of_shift
from fedveil.accounting.events import FACTOR, count_events
from fedveil.errors import FieldError
from fedveil.gdp import epsilon_of_mu, epsilon_of_rho

DELTA = 1e-5


def renyi_epsilon(events: list, delta: float, relation: acc.Relation = "zero-out") -> float:
    """By Renyi DP alone: looser, an independent check."""
    counts = count_events(events)
    gaussian = {event: count for event, count in counts.items() if isinstance(event, acc.Gaussian)}
    mu = math.hypot(
        *(FACTOR[relation] / e.noise_multiplier * math.sqrt(c) for e, c in gaussian.items())
    )
    others = {event: count for event, count in counts.items() if event not in gaussian}
    return _renyi(others, mu, FACTOR[relation], delta, relation)


def test_gaussians_of_changing_scale_compose_in_closed_form() -> None:
    # mu^2 = 3 (1/2)^2 + (1/1)^2 = 7/4
    events = [(acc.Gaussian(2.0), 3), (acc.Gaussian(1.0), 1)]
    assert acc.epsilon(events, DELTA) == pytest.approx(
        epsilon_of_mu(math.sqrt(1.75), DELTA), rel=1e-12
    )


def test_replace_one_doubles_the_sensitivity_of_a_gaussian() -> None:
    assert acc.epsilon([(acc.Gaussian(1.0), 1)], DELTA, "replace-one") == pytest.approx(
        9.9973, abs=1e-4
    )
    # the same through Renyi DP, where the library by itself would say 4.73
    assert renyi_epsilon([(acc.Gaussian(1.0), 1)], DELTA, "replace-one") > 9.9973


def test_poisson_sampling_agrees_with_three_libraries() -> None:
    from opacus.accountants import RDPAccountant
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    events = [(acc.Poisson(0.01, acc.Gaussian(1.0)), 1000)]
    ours = acc.epsilon(events, DELTA, "add/remove")
    assert ours == pytest.approx(1.8282, abs=1e-4)
    prv = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(noise_multiplier=1.0, sampling_probability=0.01)],
        max_self_compositions=[1000],
        eps_error=0.01,
        delta_error=1e-10,
    )
    lower, _, upper = prv.compute_epsilon(DELTA, [1000])
    assert lower <= ours <= upper
    opacus = RDPAccountant()
    opacus.history = [(1.0, 0.01, 1000)]
    assert renyi_epsilon(events, DELTA, "add/remove") == pytest.approx(
        opacus.get_epsilon(DELTA), rel=1e-3
    )
    assert ours <= renyi_epsilon(events, DELTA, "add/remove")


@pytest.mark.parametrize("relation", ["zero-out", "add/remove", "replace-one"])
def test_one_sampled_gaussian_agrees_with_numerical_integration(relation: str) -> None:
    q, z, target = 0.2, 3.0, 0.2
    there = lambda x: (1 - q) * norm.pdf(x) + q * norm.pdf(x, 1 / z)  # noqa: E731
    opposite = -1 / z if relation == "replace-one" else 0.0
    away = lambda x: (1 - q) * norm.pdf(x) + q * norm.pdf(x, opposite)  # noqa: E731
    one = quad(lambda x: max(0.0, there(x) - math.exp(target) * away(x)), -12, 12, limit=400)[0]
    two = quad(lambda x: max(0.0, away(x) - math.exp(target) * there(x)), -12, 12, limit=400)[0]
    ours = acc.epsilon([(acc.Poisson(q, acc.Gaussian(z)), 1)], max(one, two), relation)  # type: ignore[arg-type]
    assert ours == pytest.approx(target, abs=2e-3)


def test_fixed_size_sampling_costs_more_than_poisson_sampling() -> None:
    fixed = acc.epsilon([(acc.FixedSize(10, 1000, acc.Gaussian(4.0)), 100)], DELTA, "replace-one")
    poisson = acc.epsilon([(acc.Poisson(0.01, acc.Gaussian(4.0)), 100)], DELTA, "replace-one")
    assert fixed > poisson
    # taking everybody is no sampling at all
    everybody = acc.epsilon([(acc.FixedSize(5, 5, acc.Gaussian(1.0)), 1)], DELTA, "replace-one")
    assert everybody == acc.epsilon([(acc.Gaussian(1.0), 1)], DELTA, "replace-one")


def test_fixed_size_sampling_dominates_the_true_divergence_under_replacement() -> None:
    # one of two units is sampled, C = 1: sums of +1 or -1 against 1 or 1 (the second unit flips its sign)
    z, delta = 2.0, 1e-3
    bound = acc.epsilon([(acc.FixedSize(1, 2, acc.Gaussian(z)), 1)], delta, "replace-one")
    mixed = lambda x: 0.5 * norm.pdf(x, 1, z) + 0.5 * norm.pdf(x, -1, z)  # noqa: E731
    same = lambda x: norm.pdf(x, 1, z)  # noqa: E731
    for p, r in ((mixed, same), (same, mixed)):
        truth = quad(lambda x: max(0.0, p(x) - math.exp(bound) * r(x)), -30, 30, limit=400)[0]  # noqa: B023
        assert truth <= delta


def test_laplace_and_mixtures() -> None:
    assert acc.epsilon([(acc.Laplace(1.0), 3)], 1e-9) == pytest.approx(3.0, abs=1e-3)
    assert acc.epsilon([(acc.Laplace(1.0), 1)], 1e-9, "replace-one") == pytest.approx(2.0, abs=1e-3)
    # contributing C with probability .1 is Poisson sampling
    mixture = acc.epsilon([(acc.Mixture(40.0, (0.0, 1.0), (0.9, 0.1)), 1000)], DELTA)
    assert mixture == pytest.approx(
        acc.epsilon([(acc.Poisson(0.1, acc.Gaussian(40.0)), 1000)], DELTA), abs=1e-3
    )


def test_discrete_gaussian_is_accounted_as_concentrated_dp() -> None:
    ours = acc.epsilon([(acc.DiscreteGaussian(2.0), 8)], DELTA)
    assert ours == pytest.approx(epsilon_of_rho(8 / (2 * 4), DELTA), rel=2e-2)
    assert ours >= epsilon_of_mu(math.sqrt(2.0), DELTA)


def test_euclidean_laplace_is_exact() -> None:
    # n = 1 is the ordinary Laplace: delta(e) = 1 - exp((e - s) / 2)
    for target in (0.0, 0.3, 0.9):
        assert delta_of_shift(1, 1.0, np.array([target]))[0] == pytest.approx(
            1 - math.exp((target - 1) / 2)
        )
    rng = np.random.default_rng(0)
    n, s, target = 7, 2.5, 1.0
    r, u = rng.gamma(n, size=400_000), 2 * rng.beta((n - 1) / 2, (n - 1) / 2, size=400_000) - 1
    loss = np.sqrt(r * r + 2 * r * s * u + s * s) - r
    sample = np.maximum(0, 1 - np.exp(target - loss))
    exact = float(delta_of_shift(n, s, np.array([target]))[0])
    assert abs(exact - sample.mean()) < 5 * sample.std() / math.sqrt(len(sample))


def test_euclidean_laplace_composes_far_better_than_linearly() -> None:
    n = 1_200_000
    s = math.sqrt(n)  # nu = sqrt(n): a loss that is nearly that of a Gaussian with mu = 1
    assert acc.epsilon([(acc.EuclideanLaplace(n, s), 1)], DELTA) == pytest.approx(
        epsilon_of_mu(1.0, DELTA), rel=1e-3
    )
    rounds = acc.epsilon([(acc.EuclideanLaplace(n, s), 100)], DELTA)
    assert rounds == pytest.approx(91.82, abs=0.05)
    assert 100 * s == pytest.approx(109_545, abs=1)


def test_events_of_several_kinds_compose() -> None:
    parts = [
        (acc.Poisson(0.1, acc.Gaussian(4.0)), 10),
        (acc.Gaussian(8.0), 2),
        (acc.EuclideanLaplace(5, 0.5), 1),
    ]
    together = acc.epsilon(parts, DELTA)
    apart = sum(acc.epsilon([part], DELTA / 3) for part in parts)
    assert max(acc.epsilon([part], DELTA) for part in parts) < together < apart


SAMPLED = (acc.Poisson(0.2, acc.Gaussian(6.0)), 8)
SEVERAL = [SAMPLED, (acc.Gaussian(4.0), 3), (acc.Laplace(6.0), 2)]


@pytest.mark.parametrize("relation", ["zero-out", "add/remove", "replace-one"])
@pytest.mark.parametrize(
    "events", [[SAMPLED], [(acc.Gaussian(2.0), 5)], [(acc.Laplace(6.0), 2)]], ids=str
)
def test_exact_is_at_most_pld_is_at_most_rdp(events: list, relation: acc.Relation) -> None:
    ours = acc.epsilon(events, DELTA, relation)
    event, count = events[0]
    if isinstance(
        event, acc.Gaussian
    ):  # the same through a loss distribution: a part that costs next to nothing
        assert ours <= acc.epsilon([*events, (acc.Laplace(1e6), 1)], DELTA, relation)
    if (
        not isinstance(event, acc.Poisson) or relation != "replace-one"
    ):  # which has no Renyi bound here
        assert ours <= renyi_epsilon(events, DELTA, relation)
    if isinstance(event, acc.Poisson):  # and sampling helps
        assert ours <= acc.epsilon([(event.event, count)], DELTA, relation)


@pytest.mark.parametrize(
    "events", [[SAMPLED], SEVERAL, [(acc.Gaussian(2.0), 5)], [(acc.DiscreteGaussian(2.0), 5)]]
)
def test_replacing_costs_no_less_than_adding_or_removing(events: list) -> None:
    less, more = (
        acc.epsilon(events, DELTA, relation) for relation in ("add/remove", "replace-one")
    )
    assert less < more
    assert acc.epsilon(events, DELTA, "zero-out") == pytest.approx(less, rel=1e-3)


def test_more_noise_a_larger_delta_and_fewer_rounds_cost_less() -> None:
    cost = lambda z, delta, rounds: acc.epsilon(  # noqa: E731
        [(acc.Poisson(0.2, acc.Gaussian(z)), rounds)], delta
    )
    base = cost(6.0, DELTA, 8)
    assert cost(6.4, DELTA, 8) < base
    assert cost(6.0, 2 * DELTA, 8) < base
    assert cost(6.0, DELTA, 7) < base


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("event", "least", "most"),
    [
        # within the closed form without sampling, and above what a sampled unit is known to cost: T mu^2 / 2 at q = 1/2
        (
            acc.Poisson(0.5, acc.Gaussian(0.01)),
            10 * 0.5 * 100**2 / 2,
            epsilon_of_mu(100 * math.sqrt(10), DELTA),
        ),
        (
            acc.Poisson(0.5, acc.Gaussian(1e-5)),
            10 * 0.5 * 1e5**2 / 2,
            epsilon_of_mu(1e5 * math.sqrt(10), DELTA),
        ),
        (
            acc.Mixture(1e-5, (0.0, 2.0), (0.5, 0.5)),
            10 * 2e10 / 2,
            epsilon_of_mu(2e5 * math.sqrt(10), DELTA),
        ),
        (acc.Laplace(1e-7), 10 * 0.99e7, 1e8),
        (acc.Poisson(0.5, acc.Laplace(1e-4)), 10 * 0.49e4, 1e5),
        (acc.EuclideanLaplace(11, 1e5), 10 * 0.49e5, 1e6),
        (
            acc.EuclideanLaplace(1000, 300.0),
            10 * 300**2 / 2000,
            3000,
        ),  # about a Gaussian of mu = s / sqrt(n),
    ],
)
def test_vast_losses_are_bounded_without_vast_grids(
    event: acc.Event, least: float, most: float
) -> None:
    ours = acc.epsilon([(event, 10)], DELTA)
    assert least <= ours <= most * (1 + 1e-9)
    assert ours <= acc.epsilon([(event, 10), (acc.Gaussian(1e-4), 1)], DELTA) < math.inf


def test_a_vast_loss_is_added_to_what_the_rest_costs() -> None:
    rest = acc.epsilon([SAMPLED], DELTA)
    assert acc.epsilon([(acc.Laplace(1e-3), 2), SAMPLED], DELTA) == pytest.approx(
        2000 + rest
    )  # holds at delta 0
    # a vast Gaussian leaves the others no grid: all are counted as if everybody were sampled
    whole = epsilon_of_mu(math.hypot(1000, math.sqrt(8) / 6), DELTA)
    assert acc.epsilon(
        [(acc.Poisson(0.5, acc.Gaussian(1e-3)), 1), SAMPLED], DELTA
    ) == pytest.approx(whole)
    assert acc.epsilon([(acc.Gaussian(1e-3), 1), SAMPLED], DELTA) == pytest.approx(whole)


def test_a_million_releases_need_no_vast_grid_either() -> None:
    mu = 100 * 1000  # z = .01, a million times: a grid of the sum would take tens of gigabytes
    ours = acc.epsilon([(acc.Poisson(0.5, acc.Gaussian(0.01)), 10**6)], DELTA)
    assert mu**2 / 4 <= ours <= epsilon_of_mu(mu, DELTA) * (1 + 1e-9)
    assert acc.epsilon([(acc.Laplace(2e-3), 10**6)], DELTA) == pytest.approx(500 * 10**6)
    # where sampling makes the loss rare the sum is not vast, and sampling counts
    assert acc.epsilon([(acc.Poisson(1e-9, acc.Gaussian(1.0)), 10**6)], DELTA) < 6


@pytest.mark.few(0)
@settings(max_examples=20)
@given(
    st.floats(0.5, 5.0),
    st.floats(1.01, 3.0),
    st.integers(1, 50),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_gaussian_epsilon_is_monotone(z: float, factor: float, rounds: int, delta: float) -> None:
    base = acc.epsilon([(acc.Gaussian(z), rounds)], delta)
    assert acc.epsilon([(acc.Gaussian(z * factor), rounds)], delta) < base
    assert acc.epsilon([(acc.Gaussian(z), rounds + 1)], delta) > base
    assert acc.epsilon([(acc.Gaussian(z), rounds)], delta * 10) < base
    assert acc.epsilon([(acc.Gaussian(z), rounds)], delta, "replace-one") > base
    assert base <= renyi_epsilon([(acc.Gaussian(z), rounds)], delta)


@pytest.mark.parametrize("delta", [0, -1, 1, float("nan"), float("inf"), True])
def test_bad_deltas_are_refused(delta: float) -> None:
    with pytest.raises(FieldError, match="delta"):
        acc.epsilon([(acc.Gaussian(1.0), 1)], delta)


def test_what_cannot_be_bounded_is_refused() -> None:
    with pytest.raises(FieldError, match="count"):
        acc.epsilon([(acc.Gaussian(1.0), 0)], DELTA)
    with pytest.raises(FieldError, match="relation"):
        acc.epsilon([(acc.FixedSize(1, 10, acc.Gaussian(1.0)), 1)], DELTA, "add/remove")
    with pytest.raises(FieldError, match="relation"):
        acc.epsilon([(acc.Mixture(1.0, (1.0,), (1.0,)), 1)], DELTA, "replace-one")
    with pytest.raises(FieldError, match="relation"):
        acc.epsilon(
            [(acc.Poisson(0.5, acc.Laplace(1e-9)), 1)], DELTA, "replace-one"
        )  # however vast
    for bad in ((0.0, 0.0), ()):
        with pytest.raises(FieldError, match=r"sensitivities|probabilities"):
            acc.Mixture(1.0, bad, (0.5, 0.5))
    with pytest.raises(FieldError, match="sum to 1"):
        acc.Mixture(1.0, (0.0, 1.0), (0.5, 0.6))
    with pytest.raises(FieldError, match="sample"):
        acc.FixedSize(11, 10, acc.Gaussian(1.0))
    with pytest.raises(FieldError, match="rate"):
        acc.Poisson(1.5, acc.Gaussian(1.0))
    with pytest.raises(FieldError, match="events"):
        acc.epsilon([("gaussian", 1)], DELTA)  # type: ignore[list-item]
