"""The benchmarks of calibration: equal totals, banded noise beside jax-privacy, and what correlated noise cannot win."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from benchmarks import calibration, correlated
from benchmarks.calibration_tasks import Units

from fedveil.accounting import Gaussian, Poisson, epsilon
from fedveil.gdp import mu_of_epsilon

FILE = Path(__file__).parents[1] / "results" / "formal-calibration" / "jax-privacy.json"
THEIRS = json.loads(FILE.read_text()) if FILE.exists() else {"factors": (), "costs": ()}
present = pytest.mark.skipif(not FILE.exists(), reason="results/ are part of the repository alone")


def units(count, each, width=5, classes=3, seed=0):
    """Units of 1 to `each` examples."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, each, width)).astype(np.float32)
    targets = np.eye(classes, dtype=np.float32)[draw.integers(classes, size=(count, each))]
    absent = np.arange(each) > draw.integers(each, size=(count, 1))
    x[absent], targets[absent] = 0, 0
    return Units(x, targets)


@pytest.mark.parametrize("each", [1, 4])
def test_a_unit_is_clipped_as_a_whole(each):
    some = units(6, each)
    weights = np.random.default_rng(1).normal(size=(2, 5, 3)).astype(np.float32)
    clips = np.array([0.05, 3.0], np.float32)
    found = some.clipped_sums(weights, clips)
    for one, clip, total in zip(weights, clips, found, strict=True):
        expected = np.zeros((5, 3))
        for x, targets in zip(some.x, some.targets, strict=True):
            there = targets.any(1)
            scores = np.exp(x[there] @ one)
            rest = scores / scores.sum(1, keepdims=True) - targets[there]
            mean = x[there].T @ rest / there.sum()
            expected += mean * min(1.0, clip / np.linalg.norm(mean))
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", calibration.SCHEDULES)
def test_every_schedule_spends_the_same_total(schedule):
    mu, steps = 0.8, 9
    play = calibration.Play(units(20, 3), 20.0, steps, mu, 1.0)
    draws = calibration.draws_of(0, steps, 5, 3)[None]
    shape = np.linspace(1.0, 3.0, steps)[None]
    _, spent = calibration.trained(play, schedule, [(0.5, 0.1)], draws, shape)
    assert (spent > 0).all()
    assert math.sqrt(spent.sum()) == pytest.approx(mu)


def test_a_filter_that_follows_releases_stops_before_the_total():
    draw, remaining = np.random.default_rng(0), np.ones(50)
    for left in range(12, 0, -1):
        signal, first = draw.lognormal(sigma=3.0, size=(2, 50))
        cost = calibration.adaptive(remaining, left, signal, first, 1.0)
        assert (cost <= remaining).all()
        assert (cost > 0).all()
        remaining = remaining - cost
    assert (remaining == 0).all()


def test_fitted_noise_is_the_best_for_the_final_model():
    """To first order sum w^2 sigma^2 at a given sum of 1 / sigma^2 is least at sigma^2 ~ 1 / |w|."""
    draw = np.random.default_rng(0)
    left = draw.lognormal(size=10)

    def error(shape):
        return float((left**2 / calibration.costs(shape, 1.0)).sum())

    best = error(left**-0.5)
    assert best == pytest.approx(left.sum() ** 2)
    assert all(error(draw.lognormal(size=10)) > best for _ in range(50))


def test_in_every_round_no_factor_beats_independent_noise_for_the_last_sum():
    """With aligned contributions (sum |w|)^2 / mu^2 bounds correlated noise, too; independent noise reaches it."""
    draw, rounds = np.random.default_rng(0), 12
    mu = mu_of_epsilon(2.0, correlated.DELTA)
    weights = draw.lognormal(size=rounds)
    for _ in range(50):
        factor = np.tril(draw.normal(size=(rounds, rounds))) + 3 * np.eye(rounds)
        noise = correlated.full_noise(2.0, factor)
        last = np.linalg.solve(factor.T, np.ones(rounds))
        assert noise * np.linalg.norm(last) >= rounds / mu * (1 - 1e-9)
    fitted = 1 / np.sqrt(calibration.costs(weights**-0.5, mu))
    assert np.linalg.norm(weights * fitted) == pytest.approx(weights.sum() / mu)


@pytest.mark.parametrize("bands", [1, 3, 5])
def test_rounds_of_a_unit_that_lie_a_band_apart_add_up_as_single_ones(bands):
    """Vector-valued contributions of length 1, whatever their directions; one round nearer they may add up to more."""
    draw, rounds = np.random.default_rng(0), 15
    factor = correlated.strategy(bands, rounds, False)
    np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0)
    for count in range(1, math.ceil(rounds / bands) + 1):
        rows = np.zeros((rounds, 4))
        given = draw.normal(size=(count, 4))
        rows[: count * bands : bands][:count] = given / np.linalg.norm(given, axis=1)[:, None]
        assert np.linalg.norm(factor @ rows) ** 2 == pytest.approx(count)
    if bands > 1:
        near = np.zeros((rounds, 1))
        near[[0, bands - 1]] = 1.0
        assert np.linalg.norm(factor @ near) ** 2 > 2.1


def test_a_unit_is_drawn_in_rounds_of_its_bucket_alone():
    every = correlated.lots(400, 0.1, 40, 4, seed=3)
    rounds = {unit: {t % 4 for t, lot in enumerate(every) if unit in lot} for unit in range(400)}
    assert max(len(found) for found in rounds.values()) == 1
    assert sum(map(len, every)) / 40 == pytest.approx(40, rel=0.15)  # q n units a round


@present
@pytest.mark.parametrize("theirs", THEIRS["factors"])
def test_banded_factors_are_those_of_jax_privacy(theirs):
    workload = correlated.prefix(theirs["rounds"])
    found = correlated.best_factor(theirs["bands"], workload)
    error, _ = correlated.error_of(found, workload)
    assert error == pytest.approx(theirs["mean squared error"], rel=1e-6)
    assert found == pytest.approx(theirs["coefficients"], abs=2e-4)


@present
@pytest.mark.few(1)
@pytest.mark.parametrize("theirs", THEIRS["costs"])
def test_banded_lots_cost_what_they_cost_in_jax_privacy(theirs):
    bands = theirs["bands"]
    rate = bands * theirs["batch"] / THEIRS["units"]
    event = Poisson(rate, Gaussian(theirs["noise"]))
    steps = math.ceil(theirs["rounds"] / bands)
    found = epsilon([(event, steps)], THEIRS["delta"], "add/remove")
    assert found == pytest.approx(theirs["epsilon"], rel=5e-3)
