"""Attacks and worlds are ranked by the bound that the judged runs would show, whatever the number that ranked them."""

import numpy as np
import pytest
import scipy

from fedveil_lab.verify import PrivacyClaim
from fedveil_lab.verify.aims import Aim, between, rates_above
from fedveil_lab.verify.attackers import beyond_thresholds, few_values, fit_all, seen
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.isolation import RunOutcome, SameProcess
from fedveil_lab.verify.measuring import at_threshold
from fedveil_lab.verify.playing import play
from fedveil_lab.verify.worlds import Sizes, library

RECORD = PrivacyClaim.parse("eps=1 delta=0 add/remove record total central")


def aim(figure="epsilon", delta=0.0, runs=600):
    return Aim(figure, delta, 0.01, runs)


@pytest.mark.parametrize("figure", ["epsilon", "mu"])
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_a_promise_is_the_bound_that_runs_with_these_rates_prove(figure, delta):
    inside = np.array([1.0] * 300 + [0.0] * 300)
    outside = np.array([1.0] * 60 + [0.0] * 540)
    bounds = at_threshold(inside, outside, 0.5, delta=delta, alpha=0.01)
    proven = next(one.value for one in bounds if one.figure == figure)
    promised = aim(figure, delta).bounds(np.array([0.5]), np.array([0.1]))
    assert float(promised[0]) == pytest.approx(proven, rel=1e-9)


def test_few_runs_promise_what_more_would_prove():
    """4 of 40 runs against none prove nothing; 60 of 600 against 7 (half a run of 40) prove epsilon ln(.0715/.0258)."""
    rare = np.array([1.0] * 4 + [0.0] * 36)
    never = np.zeros(40)
    assert at_threshold(rare, never, 0.5, delta=0.0, alpha=0.01)[0].value == 0
    true, false = 4.5 / 41, 0.5 / 41
    low = scipy.stats.beta.ppf(0.005, true * 600, 600 - true * 600 + 1)
    high = scipy.stats.beta.ppf(0.995, false * 600 + 1, 600 - false * 600)
    assert aim().of(rare, never, 0.5) == pytest.approx(np.log(low / high))
    assert aim().of(rare, never, 0.5) > aim().of_shift(0.7)


def test_a_shift_promises_more_if_it_is_larger_or_more_runs_judge():
    found = [aim().of_shift(shift) for shift in (0.0, 0.3, 1.0, 3.0, 1e6)]
    assert found[0] == 0
    assert found == sorted(found)
    assert aim(runs=60).of_shift(1.0) < found[2]
    best = at_threshold(np.ones(600), np.zeros(600), 0.5, delta=0.0, alpha=0.01)[0].ceiling
    assert found[-1] == pytest.approx(best, rel=1e-3)
    assert 0.6 < aim("mu").of_shift(1.0) < 1.0


def test_a_threshold_parts_the_scores_that_it_saw():
    inside, outside = np.array([3.0, 4.0, 1.0]), np.array([1.0, 0.0, 2.0])
    assert between(inside, outside).tolist() == [0.5, 1.5, 2.5, 3.5]
    assert rates_above(inside, np.array([2.5])).tolist() == [2.5 / 4]
    assert aim().threshold(np.full(40, 3.0), np.full(40, 1.0)) == 2.0
    assert aim().threshold(np.ones(4), np.ones(4)) == 1.0
    assert np.isfinite(aim().threshold(np.array([1e308, -1e308]), np.array([0.0, np.inf])))


def test_thresholds_are_tried_on_runs_that_did_not_choose_them():
    """Ten scores of one law: the best threshold parts them by chance, and promises little on others."""
    rng = np.random.default_rng(0)
    flattered, tried = [], []
    for _ in range(40):
        inside, outside = rng.normal(size=20), rng.normal(size=20)
        flattered.append(aim().of(inside, outside, aim().threshold(inside, outside)))
        parts = beyond_thresholds(inside, outside, aim())
        tried.append(aim().of(*(np.concatenate(side) for side in zip(*parts, strict=True)), 0.0))
    assert np.mean(tried) < np.mean(flattered) / 3
    assert len(beyond_thresholds(np.ones(3), np.zeros(3), aim())) == 1


def choices(chances, runs, seed):
    """Runs that each return the number of one of several candidates, with these chances."""
    drawn = np.random.default_rng(seed).choice(len(chances), runs, p=chances).astype(float)
    return seen([RunOutcome("ok", "(1,)", np.array([one]), "", "", 0.0) for one in drawn], "(1,)")


def test_a_choice_that_both_worlds_make_is_scored_by_how_often_each_makes_it():
    inside, outside = choices([0.25, 0.5, 0.25], 400, 0), choices([0.4, 0.2, 0.4], 400, 1)
    exact = fit_all(inside, outside)["exact values"]
    fresh = exact(choices([0.25, 0.5, 0.25], 2000, 3)), exact(choices([0.4, 0.2, 0.4], 2000, 4))
    rates = [float((one > 0).mean()) for one in fresh]
    assert rates == pytest.approx([0.5, 0.2], abs=0.04)


def test_few_different_answers_are_no_normal_law():
    rng = np.random.default_rng(0)
    assert few_values(rng.integers(0, 4, 40).astype(float))
    assert few_values(rng.integers(0, 2, (80, 3)).astype(float))
    assert not few_values(rng.normal(size=40))
    assert not few_values(rng.normal(size=(40, 3)))


def exceeding(noise_on_counts):
    """Which counts exceed one noisy threshold, or the first that does if counts have noise, too."""

    def mechanism(data, seed):
        rng = np.random.default_rng(seed)
        rows = np.concatenate(data)
        largest = np.argmax(np.nan_to_num(rows), axis=1)
        counts = np.bincount(largest, minlength=rows.shape[1])
        threshold = 1.5 + rng.laplace(0, 2.0)
        if not noise_on_counts:
            return (counts > threshold).astype(float)
        above = np.flatnonzero(counts + rng.laplace(0, 4.0, counts.shape) > threshold)
        return float(above[0]) if len(above) else -1.0

    return mechanism


def test_a_rare_event_that_decides_is_found():
    """Sparse vectors without noise on what is compared: a pattern of bits that no run without the unit shows."""
    worlds = library(RECORD, Sizes())
    wrong = play(SameProcess(exceeding(False)), worlds, RECORD, Effort(runs=2400))
    assert wrong.refuted
    assert wrong.measured.best("epsilon").value > 1.5
    right = play(SameProcess(exceeding(True)), worlds, RECORD, Effort(runs=600))
    assert not right.refuted
