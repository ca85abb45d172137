"""What a run's figures say of learning, and what choosing among runs costs: by hand."""

import math

import pytest

from fedveil.accounting.composition import epsilon
from fedveil.accounting.events import Gaussian, Poisson
from fedveil.gdp import epsilon_of_mu, mu_of_epsilon
from fedveil_lab.report.choosing import cost_of_choosing
from fedveil_lab.report.learned import chance_level, price_unreadable, unstable
from fedveil_lab.runs.summary import Summary


def summary(method="record", low=0.4, value=0.6, high=0.8, deviation=0.01, **more) -> Summary:
    figure = {"value": value, "low": low, "high": high}
    values = {
        "setting": method,
        "method": method,
        "classes": 2,
        "classified": {"pooled": {"figures": {"balanced_accuracy": figure, "accuracy": figure}}},
        "last_rounds": {
            name: {"deviation": deviation} for name in ("accuracy", "balanced_accuracy")
        },
        **more,
    }
    return Summary(values, [])


def numbers(rmse: float, base: float, rows: float) -> Summary:
    return Summary({"mean_rmse": base, "metrics": {"rmse": rmse, "examples": rows}}, [])


@pytest.mark.parametrize(("low", "said"), [(0.45, True), (0.5, True), (0.51, False)])
def test_what_reaches_down_to_one_class_is_named(low, said) -> None:
    assert bool(chance_level([summary(low=low)])) is said


def test_of_several_seeds_the_mean_interval_counts() -> None:
    assert not chance_level([summary(low=0.45), summary(low=0.57)])
    assert chance_level([summary(low=0.45), summary(low=0.53)])


def test_an_error_has_to_lie_evidently_below_the_means() -> None:
    # of 98 rows 1.96 / sqrt(196) = .14: .7 may be .798, and .9 may be 1.026
    assert not chance_level([numbers(0.7, 1.0, 98)])
    assert chance_level([numbers(0.9, 1.0, 98)])


def test_what_moves_more_than_its_rows_explain_is_unstable() -> None:
    # an interval .4 wide is explained by a deviation of .4 / 3.92 = .102
    assert not unstable([summary(deviation=0.10)])
    assert unstable([summary(deviation=0.11)])


def test_a_price_is_read_off_a_baseline_that_stands_still_alone() -> None:
    assert price_unreadable({"plain": [summary("vanilla", low=0.6)]}) == []
    assert len(price_unreadable({"plain": [summary("vanilla", low=0.6, deviation=0.2)]})) == 1
    assert len(price_unreadable({"plain": [summary("vanilla", low=0.4)]})) == 1
    assert price_unreadable({"noisy": [summary("record", low=0.4, deviation=0.2)]}) == []


def private(**more) -> Summary:
    promise = {"unit": "record", "relation": "zero-out", "delta": 1e-5, "status": "formal", **more}
    return Summary({"guarantees": {"worst client": promise}}, [])


def test_three_epsilons_cost_what_their_mus_add_up_to() -> None:
    runs = [private(mu=mu_of_epsilon(e, 1e-5)) for e in (8.0, 4.0, 1.0)]
    [said] = cost_of_choosing(runs)
    assert "9.53" in said
    assert "zero-out" in said
    twice = epsilon_of_mu(math.sqrt(2) * mu_of_epsilon(4.0, 1e-5), 1e-5)
    [said] = cost_of_choosing([private(mu=mu_of_epsilon(4.0, 1e-5))] * 2)
    assert float(said.split("epsilon ")[1].split(" ")[0]) == pytest.approx(twice, rel=1e-3)


def test_sampled_runs_are_composed_by_the_distribution_of_all_their_steps() -> None:
    """Ten runs of ten lots are a hundred lots."""
    lots = Poisson(rate=0.01, event=Gaussian(noise_multiplier=0.6))
    listed = {
        "kind": "Poisson",
        "rate": 0.01,
        "event": {"kind": "Gaussian", "noise_multiplier": 0.6},
    }
    [said] = cost_of_choosing([private(events=[[listed, 10]], delta=1e-8)] * 10)
    total = float(said.split("epsilon ")[1].split(" ")[0])
    assert total == pytest.approx(epsilon([(lots, 100)], 1e-8), rel=1e-3)


def test_a_single_private_run_or_other_promises_say_nothing() -> None:
    assert cost_of_choosing([private(mu=1.0), private(status="none")]) == []
    assert cost_of_choosing([private(mu=1.0), private(mu=1.0, unit="client")]) == []
    assert cost_of_choosing([private(status="heuristic"), private(status="heuristic")]) == []
    assert cost_of_choosing([private(status="heuristic", mu=1.0)] * 2) == []
