"""Statistics of attacks: against oracles, on simulated nulls, and where they must refuse to speak."""

import math
import re
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import auc as area
from sklearn.metrics import roc_auc_score

from fedveil.errors import FieldError
from fedveil_lab.attacks import SequentialEvidence, ThreatModel, bound, decide, judge
from fedveil_lab.attacks.bounds import epsilon_bound, epsilon_ceiling, joint_bound
from fedveil_lab.attacks.participation.weighing import boundaries
from fedveil_lab.attacks.statistics import (
    advantage,
    auc,
    auc_interval,
    best_threshold,
    rate,
    roc,
    runs_for_rate,
    true_rate_at,
)
from fedveil_studies.metric_privacy.printed import multi_round, single_shot


def test_the_area_and_the_curve_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    inside, outside = (
        rng.integers(0, 6, 40).astype(float),
        rng.integers(0, 5, 25).astype(float),
    )  # with ties
    truth, scores = np.r_[np.ones(40), np.zeros(25)], np.r_[inside, outside]
    assert auc(inside, outside) == pytest.approx(roc_auc_score(truth, scores))
    false, true = roc(inside, outside)
    assert area(false, true) == pytest.approx(roc_auc_score(truth, scores))


@pytest.mark.parametrize(("hits", "runs"), [(0, 10), (3, 10), (10, 10), (29, 30)])
def test_rates_have_exact_intervals(hits, runs):
    expected = binomtest(hits, runs).proportion_ci(0.95, method="exact")
    found = rate(hits, runs)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_with_the_target_in_neither_world_the_interval_covers_one_half():
    rng = np.random.default_rng(1)
    found = [
        auc_interval(rng.normal(size=30), rng.normal(size=30), resamples=400, seed=i)
        for i in range(400)
    ]
    covered = np.mean([e.low <= 0.5 <= e.high for e in found])
    assert 0.90 <= covered <= 0.98  # 95% wanted; 400 nulls have a standard error of 1.1%
    assert np.mean([e.point for e in found]) == pytest.approx(0.5, abs=0.02)


@pytest.mark.few(0)
def test_the_paper_s_interval_over_the_rounds_of_one_run_does_not():
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(60):  # rounds of a run share what the run was dealt
        runs = rng.normal(size=2)[:, None] + 0.7 * rng.normal(size=(2, 20))
        found = multi_round("null", *runs)
        missed += not found.auc.low <= 0.5 <= found.auc.high
    assert missed / 60 > 0.5
    assert found.replication == "a round of one run, as printed"
    assert "not independent" in found.notes[0]


@pytest.mark.few(1)
@pytest.mark.parametrize(("deviation", "area"), [(1.0, 0.95), (3.0, 0.98), (1.0, 0.98)])
def test_near_one_the_interval_still_covers_where_the_bootstrap_does_not(deviation, area):
    rng, gap = np.random.default_rng(6), NormalDist().inv_cdf(area) * math.hypot(1, deviation)
    held, alone = [], []
    for i in range(200):
        inside, outside = rng.normal(gap, 1, 30), rng.normal(0, deviation, 30)
        found = auc_interval(inside, outside, resamples=300, seed=i)
        held.append(found.low <= area <= found.high)
        wins = (inside[:, None] > outside).astype(float)
        resampled = [
            wins[rng.integers(0, 30, 30)][:, rng.integers(0, 30, 30)].mean() for _ in range(100)
        ]
        alone.append(np.quantile(resampled, 0.025) <= area <= np.quantile(resampled, 0.975))
    assert np.mean(held) > 0.97
    assert np.mean(alone) < 0.94
    assert auc_interval(outside, inside).high == pytest.approx(
        1 - auc_interval(inside, outside).low, abs=0.02
    )


def test_perfect_separation_has_an_exact_bound_instead_of_a_degenerate_bootstrap():
    found = auc_interval(np.arange(20) + 100.0, np.arange(30.0))
    assert (found.point, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 20))
    turned = auc_interval(np.arange(30.0), np.arange(20) + 100.0)
    assert (turned.point, turned.low) == (0.0, 0.0)
    assert turned.high == pytest.approx(1 - 0.025 ** (1 / 20))


@pytest.mark.parametrize(
    ("runs", "ceiling"), [(20, 1.6), (50, 2.6), (100, 3.3), (300, 4.4), (1000, 5.6)]
)
def test_the_ceiling_of_epsilon_follows_from_the_number_of_runs(runs, ceiling):
    miss = 1 - 0.025 ** (1 / runs)  # upper bound of a rate of which no case was seen
    assert epsilon_ceiling(runs) == pytest.approx(math.log((1 - miss) / miss))
    assert round(epsilon_ceiling(runs), 1) == ceiling
    assert epsilon_bound(np.ones(runs), np.zeros(runs), 0.5).lower == pytest.approx(
        epsilon_ceiling(runs)
    )


def test_the_bound_on_epsilon_holds_and_is_not_idle():
    rng, truth = np.random.default_rng(3), 1.0
    yes = math.exp(truth) / (1 + math.exp(truth))  # randomised response, the worst case of epsilon
    bounds = [
        epsilon_bound(
            (rng.random(200) < yes).astype(float), (rng.random(200) < 1 - yes).astype(float), 0.5
        ).lower
        for _ in range(300)
    ]
    assert np.mean(np.array(bounds) > truth) < 0.05
    assert np.mean(bounds) > 0.5
    null = [
        epsilon_bound(rng.normal(size=100), rng.normal(size=100), 0.0).lower for _ in range(200)
    ]
    assert np.mean(np.array(null) > 0) < 0.05
    with_delta = epsilon_bound(np.ones(100), np.zeros(100), 0.5, delta=0.1).lower
    assert 0 < with_delta < epsilon_ceiling(100)


def test_several_attacks_prove_together_at_most_what_the_best_proves_alone():
    rng, truth = np.random.default_rng(7), 1.0
    yes, wrong = math.exp(truth) / (1 + math.exp(truth)), 0
    for _ in range(300):  # ten attacks on mechanisms of this epsilon
        rows = [
            ((rng.random(40) < yes).astype(float), (rng.random(40) < 1 - yes).astype(float), 0.5)
            for _ in range(10)
        ]
        found = joint_bound(rows).lower
        assert found <= max(epsilon_bound(*row).lower for row in rows)
        wrong += found > truth
    assert wrong / 300 < 0.05
    best = (np.ones(40), np.zeros(40), 0.5)
    assert joint_bound([best]) == epsilon_bound(*best)
    found = joint_bound([best] * 9 + [(np.ones(40), np.ones(40), 0.5)])
    assert 0 < found.lower == found.ceiling < epsilon_ceiling(40)
    with pytest.raises(FieldError, match="judged = 0"):
        joint_bound([])


def test_the_threshold_is_the_middle_of_the_gap_between_rehearsed_worlds():
    assert best_threshold([5.0, 6.0, 9.0], [0.0, 1.0]) == pytest.approx(3.0)
    found = advantage([4.0, 2.0, 8.0], [3.5, 1.0], 3.0)
    assert found.point == pytest.approx(2 / 3 - 1 / 2)
    assert found.low < found.point < found.high


def test_true_positive_rates_need_ten_expected_alarms():
    rng = np.random.default_rng(4)
    inside, outside = rng.normal(2, 1, 100), rng.normal(0, 1, 100)
    assert [runs_for_rate(a) for a in (0.1, 0.01, 0.001)] == [100, 1000, 10000]
    assert true_rate_at(inside, outside[:99], 0.1) is None
    found = true_rate_at(inside, outside, 0.1)
    assert (outside > np.sort(outside)[::-1][10]).mean() <= 0.1
    assert found.point == np.mean(inside > np.sort(outside)[::-1][10])
    result = judge("x", "y", inside[:30], outside[:30])
    assert set(result.true_rates.values()) == {None}
    assert any({"0.1", "100"} <= set(re.findall(r"[\d.]*\d", note)) for note in result.notes)


def test_below_chance_is_said_and_never_flipped():
    rng = np.random.default_rng(5)
    result = judge(
        "x", "y", rng.normal(-2, 1, 20), rng.normal(0, 1, 20), rehearsed=([1.0, 2.0], [0.0, -1.0])
    )
    assert result.point < 0.5
    assert not result.succeeds
    assert any("below chance" in note and "not fitted" in note for note in result.notes)
    assert result.epsilon.lower >= 0
    assert result.n == 40
    nothing = judge("x", "y", [math.nan] * 4, [0.0] * 4)
    assert nothing.point == 0.0  # what is not a number cannot say IN


def test_the_single_shot_figure_is_the_paper_s():
    found = single_shot(
        "vanilla", 1.182, 1.032
    )  # table 10, FedAvg: printed 12.719 from unrounded losses
    assert found.point == pytest.approx(12.719, abs=0.05)
    assert "no run without the target" in found.notes[0]


def gaussian_worlds(n, rounds, gap, seed):
    """Runs whose scores have a common part, so that rounds are correlated at 1/2."""
    g = torch.Generator().manual_seed(seed)
    common, own = torch.randn(n, 1, 1, generator=g), torch.randn(n, rounds, 1, generator=g)
    return (gap + (common + own) / 2**0.5).double()


def test_evidence_is_the_likelihood_ratio_after_every_round():
    inside, outside = gaussian_worlds(4000, 6, 0.5, 1), gaussian_worlds(4000, 6, 0.0, 2)
    fitted = SequentialEvidence.fit(inside, outside)
    runs = gaussian_worlds(300, 6, 0.5, 3)
    covariance = torch.full((6, 6), 0.5, dtype=torch.float64) + 0.5 * torch.eye(6)
    law = [
        torch.distributions.MultivariateNormal(torch.full((6,), m, dtype=torch.float64), covariance)
        for m in (0.5, 0)
    ]
    exact = law[0].log_prob(runs[..., 0]) - law[1].log_prob(runs[..., 0])
    assert torch.corrcoef(torch.stack([fitted.weigh(runs)[:, -1], exact]))[0, 1] > 0.99
    assert torch.allclose(fitted.weigh(runs[:, :3]), fitted.weigh(runs)[:, :3])
    with pytest.raises(FieldError, match="at least 4 runs each"):
        SequentialEvidence.fit(inside[:3], outside)


def test_few_rehearsals_give_evidence_that_errs_about_as_often_as_wanted():
    fitted = SequentialEvidence.fit(
        gaussian_worlds(15, 20, 1.0, 4), gaussian_worlds(15, 20, 0.0, 5)
    )
    out = decide(fitted.weigh(gaussian_worlds(1000, 20, 0.0, 6)))
    into = decide(fitted.weigh(gaussian_worlds(1000, 20, 1.0, 7)))
    assert out.said.count(1) / 1000 < 0.15
    assert into.said.count(0) / 1000 < 0.15
    null = SequentialEvidence.fit(gaussian_worlds(15, 20, 0.0, 8), gaussian_worlds(15, 20, 0.0, 9))
    verdicts = (
        null.weigh(gaussian_worlds(200, 20, 0.0, 10))[:, -1],
        null.weigh(gaussian_worlds(200, 20, 0.0, 11))[:, -1],
    )
    assert auc(*verdicts) == pytest.approx(0.5, abs=0.08)


def test_steady_scores_are_weighed_better_by_few_rehearsals_if_it_is_known_that_they_are():
    def worlds(n, rounds, pattern, seed):
        g = torch.Generator().manual_seed(seed)
        return (0.3 * pattern + torch.randn(n, rounds, 1, generator=g)).double()

    def reached(pattern, steady):
        found = []
        for seed in range(0, 60, 4):
            fitted = SequentialEvidence.fit(
                worlds(15, 20, pattern, seed), worlds(15, 20, 0 * pattern, seed + 1), steady
            )
            test = worlds(100, 20, pattern, seed + 2), worlds(100, 20, 0 * pattern, seed + 3)
            found.append(auc(*(fitted.weigh(t)[:, -1] for t in test)))
        return np.mean(found)

    level, turning = torch.ones(20, 1), 3 * torch.tensor([1.0, -1.0]).repeat(10)[:, None]
    best = NormalDist().cdf(0.3 * math.sqrt(20 / 2))
    assert reached(level, True) > best - 0.02
    assert reached(level, True) > reached(level, False) + 0.01
    assert reached(turning, False) > 0.95
    assert reached(turning, True) < 0.6


def test_a_steady_gap_is_never_taken_to_be_negative():
    inside, outside = gaussian_worlds(6, 5, -1.0, 12), gaussian_worlds(6, 5, 0.0, 13)
    fitted = SequentialEvidence.fit(inside, outside)
    assert fitted.weigh(fitted.middle.view(1, 5, 1) + 1.0)[0, -1] > 0
    turned = SequentialEvidence.fit(inside, outside, steady=False)
    assert turned.weigh(turned.middle.view(1, 5, 1) + 1.0)[0, -1] < 0


def test_decisions_stop_at_the_first_boundary():
    low, high = boundaries()
    assert (low, high) == pytest.approx((math.log(0.05 / 0.95), math.log(0.95 / 0.05)))
    found = decide(torch.tensor([[0.0, 3.0, -9.0], [-1.0, -2.0, -3.0], [0.0, 1.0, 2.0]]))
    assert found.said == (1, 0, -1)
    assert found.rounds == (2, 3, 3)


def test_unknown_capabilities_are_refused_with_the_nearest_name():
    with pytest.raises(FieldError, match="did you mean 'shadow'"):
        ThreatModel("client", frozenset({"shadows"}))


@pytest.mark.parametrize("runs", [4, 30])
def test_nothing_less_than_perfect_separation_is_surer_than_perfect_separation(runs):
    outside = np.arange(runs, dtype=float)
    perfect = auc_interval(outside + runs, outside)
    inside = outside + runs
    inside[0] = outside[-1] - 0.5  # one pair out of order
    nearly = auc_interval(inside, outside)
    assert nearly.point == 1 - 1 / runs**2
    assert nearly.low <= perfect.low
    assert auc_interval(outside, inside).high >= 1 - perfect.low


def test_the_runs_that_choose_the_threshold_do_not_judge():
    one, other = np.ones(50), np.zeros(50)
    assert (
        bound(np.concatenate([one, other]), np.concatenate([other, one])).mu_lower == 0
    )  # told apart in half alone
    assert bound(np.concatenate([one, one]), np.concatenate([other, other])).mu_lower > 2
