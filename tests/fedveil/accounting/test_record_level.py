"""What record-level promises say: composed loss distributions, groups, meanings, counted steps, the noise to plan."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from fedveil.accounting import (
    FixedSize,
    Gaussian,
    Guarantee,
    Laplace,
    Mixture,
    Poisson,
    Spend,
    StepFilter,
    epsilon,
    least_noise,
    mu_of_epsilon,
    step_event,
    total,
)
from fedveil.accounting.bounds import GDP, ZCDP, Heuristic
from fedveil.accounting.composition import curve
from fedveil.accounting.events import events_to_list
from fedveil.errors import FieldError, HeuristicError
from fedveil.gdp import delta_of_mu, meaning_of_curve

DELTA = 1e-5
SAMPLED = Poisson(0.05, Gaussian(2.0))


def promise(**values):
    base = {
        "unit": "record",
        "relation": "zero-out",
        "trust": "local",
        "status": "formal",
        "scope": "round",
        "public_size": True,
    }
    if "events" in values:
        values["events"] = events_to_list(values["events"])
    return Guarantee.from_dict({**base, **values})


def test_events_compose_by_their_loss_distribution():
    one = promise(events=((SAMPLED, 1),))
    whole = total([one] * 200)
    assert whole.bound.events == ((SAMPLED, 200),)
    assert whole.epsilon(DELTA) == pytest.approx(epsilon([(SAMPLED, 200)], DELTA))
    assert "composed by PLD" in whole.describe()
    with_mu = total([whole, promise(mu=0.5)])  # mu .5 is a Gaussian of multiplier 2
    assert with_mu.epsilon(DELTA) == pytest.approx(
        epsilon([(SAMPLED, 200), (Gaussian(2.0), 1)], DELTA)
    )
    doubled = total(
        [
            promise(relation="replace-one", events=((SAMPLED, 3),)),
            promise(relation="replace-one", mu=0.5),
        ]
    )
    assert doubled.bound.events == (
        (SAMPLED, 3),
        (Gaussian(4.0), 1),
    )  # replace-one doubles what a record moves


def test_a_total_keeps_units_trust_and_groups_apart():
    client = Guarantee(
        unit="client", relation="zero-out", trust="central", scope="round", bound=GDP(1.0)
    )
    record = promise(mu=1.0)
    for other in (
        client,
        promise(mu=1.0, trust="trusted sum"),
        promise(mu=1.0, public_size=False),
        record.of_group(2),
    ):
        with pytest.raises(FieldError, match="guarantees"):
            total([record, other])


def test_records_say_whether_their_number_is_public_and_clients_do_not():
    with pytest.raises(FieldError, match="public_size"):
        promise(mu=1.0, public_size=None)
    with pytest.raises(FieldError, match="public_size"):
        promise(mu=1.0, unit="client")
    with pytest.raises(FieldError, match="status"):
        promise(mu=1.0, events=((SAMPLED, 1),))


@pytest.mark.parametrize(
    "values", [{"mu": 1.0}, {"events": ((SAMPLED, 7), (Mixture(2.0, (0.0, 1.0), (0.5, 0.5)), 2))}]
)
def test_a_guarantee_survives_json(values):
    kept = promise(**values).of_group(1)
    assert Guarantee.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept


# Issue 15: accuracy, and true positives at 1% and .1% false positives
@pytest.mark.parametrize(
    ("eps", "found"),
    [(8, (0.80, 0.255, 0.077)), (4, (0.68, 0.081, 0.015)), (1, (0.553, 0.020, 0.002))],
)
def test_what_an_epsilon_of_gaussian_steps_means(eps, found):
    meaning = promise(mu=mu_of_epsilon(eps, DELTA)).meaning()
    assert (meaning.accuracy, *meaning.power) == pytest.approx(found, abs=0.0026)


def test_meaning_agrees_with_riskcal():
    analysis = pytest.importorskip("riskcal.analysis")
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = pld.from_gaussian_mechanism(2.0, sampling_prob=0.05).self_compose(200)
    meaning = promise(events=((SAMPLED, 200),)).meaning()
    misses = np.asarray(analysis.get_beta_from_pld(composed, alpha=np.array([0.01, 0.001])))
    assert np.array(meaning.power) == pytest.approx(1 - misses, rel=5e-3)
    assert meaning.accuracy == pytest.approx(
        (1 + analysis.get_advantage_from_pld(composed)) / 2, abs=1e-5
    )


@given(st.floats(0.05, 5.0))
def test_a_curve_gives_the_gaussian_meaning_from_above(mu):
    epsilons = np.linspace(0, mu * (mu / 2 + 7), 1000)
    found = meaning_of_curve(epsilons, np.array([delta_of_mu(mu, float(e)) for e in epsilons]))
    exact = promise(mu=mu).meaning()
    assert found.accuracy == pytest.approx(exact.accuracy, abs=1e-9)
    for bound, value in zip(found.power, exact.power, strict=True):
        assert value - 1e-12 <= bound <= value * 1.01 + 1e-4


def test_meaning_never_comes_from_one_epsilon():
    whole = promise(events=((SAMPLED, 200),))
    fitted = mu_of_epsilon(whole.epsilon(DELTA), DELTA)
    assert whole.meaning().power[1] != pytest.approx(
        promise(mu=fitted).meaning().power[1], rel=0.01
    )


def test_meaning_of_other_kinds():
    rho = Guarantee(
        unit="client", relation="zero-out", trust="central", scope="total", bound=ZCDP(0.5)
    )
    assert rho.meaning().accuracy >= norm.cdf(
        0.5
    )  # rho = mu^2 / 2 with mu = 1 bounds no better than that
    epsilons, deltas = curve([(Laplace(1.0), 1)])
    assert meaning_of_curve(epsilons, deltas).accuracy == pytest.approx(
        1 - math.exp(-0.5) / 2, abs=1e-3
    )
    heuristic = Guarantee(
        unit="client", relation="zero-out", trust="central", scope="round", bound=Heuristic()
    )
    with pytest.raises(HeuristicError):
        heuristic.meaning()


def test_k_records_of_one_person():
    one = promise(mu=mu_of_epsilon(1, DELTA))
    ten = one.of_group(10)
    assert ten.epsilon(DELTA) == pytest.approx(14.43, abs=0.01)  # issue 15
    assert "10 records" in ten.describe(DELTA)
    with pytest.raises(FieldError, match="group"):
        ten.of_group(2)


def test_groups_under_sampling_are_mixtures():
    whole = promise(events=((Poisson(0.05, Gaussian(10.0)), 200),))
    ((mixture, count),) = whole.of_group(2).bound.events
    assert (mixture.sensitivities, count) == ((0.0, 1.0, 2.0), 200)
    assert mixture.probabilities == pytest.approx((0.9025, 0.095, 0.0025))
    two = whole.of_group(2).epsilon(DELTA)
    assert (
        whole.epsilon(DELTA) < two < epsilon([(Poisson(0.05, Gaussian(5.0)), 200)], DELTA)
    )  # never both or neither
    replaced = promise(relation="replace-one", events=((SAMPLED, 2),)).of_group(3)
    assert replaced.bound.events == ((Gaussian(2 / 3), 2),)
    with pytest.raises(FieldError, match="group"):
        promise(events=((FixedSize(1, 10, Gaussian(1.0)), 1),)).of_group(2)


@pytest.mark.parametrize(("eps", "steps", "rate"), [(4, 60, 1.0), (1, 1, 1.0), (0.5, 50, 0.2)])
def test_the_least_noise_meets_its_target_and_no_less_does(eps, steps, rate):
    z = least_noise(eps, DELTA, steps, rate=rate)
    assert epsilon([(step_event(z, rate), steps)], DELTA) <= eps
    assert epsilon([(step_event(z * 0.999, rate), steps)], DELTA) > eps


def test_known_noise():
    assert least_noise(1, DELTA, 1) == pytest.approx(
        3.730631635
    )  # privacy.md, the analytic Gaussian mechanism
    assert least_noise(1, DELTA, 1, relation="replace-one") == pytest.approx(2 * 3.730631635)


def test_an_epsilon_that_no_noise_reaches_is_refused():
    with pytest.raises(FieldError, match="no noise reaches"):
        least_noise(1e-9, 1e-12, 10)
    for bad in ({"epsilon": 0.0}, {"delta": 1.0}, {"steps": 0}, {"rate": 0.0}, {"rate": 1.5}):
        with pytest.raises(FieldError):
            least_noise(**{"epsilon": 1.0, "delta": DELTA, "steps": 10, **bad})


def test_a_step_filter_counts_steps_of_its_event_alone():
    book = StepFilter(SAMPLED, 5)
    two = Spend(guarantee=promise(events=((SAMPLED, 2),)))
    assert [book.admit_spend(two) for _ in range(3)] == [True, True, False]
    assert book.spent == 4
    assert book.admit_spend(Spend(guarantee=promise(events=((SAMPLED, 1),))))
    with pytest.raises(FieldError, match="filter"):
        book.admit_spend(Spend(guarantee=promise(events=((Poisson(0.06, Gaussian(2.0)), 1),))))
    full = StepFilter(Gaussian(2.0), 4)
    assert full.admit_spend(Spend(guarantee=promise(mu=0.5 * math.sqrt(3))))
    assert full.spent == 3
    with pytest.raises(FieldError, match="filter"):
        full.admit_spend(Spend(guarantee=promise(mu=0.4)))


def test_a_step_filter_within_a_budget():
    book = StepFilter.within(Gaussian(10.0), 4, DELTA)
    assert (
        epsilon([(Gaussian(10.0), book.steps)], DELTA)
        <= 4
        < epsilon([(Gaussian(10.0), book.steps + 1)], DELTA)
    )
    assert StepFilter.within(Gaussian(0.1), 1, DELTA).steps == 0


def test_lots_that_find_no_place_are_charged_to_delta():
    """Under add/remove the size of a lot is private: what exceeds its places is lost with a chance that is charged."""
    from fedveil.accounting import epsilon, least_places
    from fedveil.accounting.events import SPARE, SPILLED

    steps, event = 10**4, step_event(4.0, 0.01)
    assert epsilon([(event, steps)], 1.5e-14, "add/remove") > epsilon(
        [(event, steps)], 1.5e-14, "zero-out"
    )
    with pytest.raises(FieldError, match="too large"):
        epsilon([(event, steps)], 1e-14, "add/remove")
    for n, rate in ((10, 0.5), (1000, 0.01), (100_000, 0.1)):
        places = least_places(n, rate, SPILLED)
        tail = binom(n, rate).sf
        assert tail(places) <= SPILLED
        assert places == 1 or tail(places - 1) > SPILLED
    sampled = promise(relation="add/remove", public_size=False, events=((event, 1),))
    assert sampled.of_group(SPARE).epsilon(DELTA) > sampled.epsilon(DELTA)
    with pytest.raises(FieldError, match="group"):
        sampled.of_group(SPARE + 1)
