"""The distinguishing game: an attacker who knows everything but one bit wins no more often than mu allows.

Two worlds that differ in one client, as far apart as the relation permits. The attacker sees the released model, scores
it along the known difference, chooses a threshold on one half of the runs and is judged on the other: with
Clopper-Pearson bounds at 99.9% on both error rates, mu_lower = Phi^-1(TPR) - Phi^-1(FPR) bounds the true mu from below.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from core_kit import ScaledSource, broadcast_of, reply, server_party
from fedveil.engines.answers import RoundAnswers
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import GlobalDP

CONFIDENCE = 0.999
Z = 1.0


def worlds(relation, d, n=3):
    """Updates [n, d] of the two worlds: the first client at +C in one, gone or at -C in the other."""
    direction = torch.ones(d, dtype=torch.float64) / d**0.5
    others = torch.zeros(n - 1, d, dtype=torch.float64)
    other = 0.0 if relation == "zero-out" else -1.0
    return (
        torch.cat([direction[None], others]),
        torch.cat([other * direction[None], others]),
        direction,
    )


def play(relation, d, source, runs):
    """Scores [2, runs] of both worlds, and the mu that was claimed."""
    side = GlobalDP(noise_multiplier=Z, clip=1.0, relation=relation)
    *pair, direction = worlds(relation, d)
    theta, scores, claimed = torch.zeros(d, dtype=torch.float64), np.zeros((2, runs)), 0.0
    for world, updates in enumerate(pair):
        replies = {p: reply(u) for p, u in enumerate(updates)}
        for run in range(runs):
            server = server_party(
                side, d, source=source.child("world", world, run)
            )  # every run is one of its own
            after, log = server.combine(
                broadcast_of(theta, 1, cohort=len(updates)), RoundAnswers(replies)
            )
            scores[world, run] = float(after.models[0] @ direction)
            claimed = log.spend.guarantee.mu
    return scores, claimed


def mu_lower(scores):
    """A lower bound on mu that holds with the stated confidence."""
    inside, outside = np.array_split(scores, 2, axis=1)
    candidates = np.quantile(inside, np.linspace(0.02, 0.98, 97))
    gains = [(inside[0] > t).mean() - (inside[1] > t).mean() for t in candidates]
    threshold = candidates[int(np.argmax(gains))]
    runs, (hits, alarms) = outside.shape[1], (outside > threshold).sum(axis=1)
    rest = (1 - CONFIDENCE) / 2
    true_positive = stats.beta.ppf(rest, hits, runs - hits + 1) if hits else 0.0
    false_positive = stats.beta.ppf(1 - rest, alarms + 1, runs - alarms) if alarms < runs else 1.0
    return stats.norm.ppf(true_positive) - stats.norm.ppf(false_positive)


LONG = pytest.param(4000, 0.75, marks=pytest.mark.slow)
GAMES = pytest.mark.parametrize(("relation", "d"), [("zero-out", 1), ("replace-one", 11)])


@pytest.mark.few(1)
@GAMES
@pytest.mark.parametrize(("runs", "share"), [(500, 0.2), LONG])
def test_the_attacker_does_not_beat_the_claim(relation, d, runs, share):
    scores, claimed = play(relation, d, ReproducibleSource(d), runs)
    assert claimed == pytest.approx((2 if relation == "replace-one" else 1) / Z)
    bound = mu_lower(scores)
    assert bound <= claimed
    assert bound > share * claimed  # and the game is a real one: with enough runs it comes close


@pytest.mark.parametrize(("runs", "factor"), [(500, 0.5), LONG])
def test_too_little_noise_is_found_out(runs, factor):
    scores, claimed = play("zero-out", 11, ScaledSource(11, factor), runs)
    assert mu_lower(scores) > claimed


def test_without_noise_the_attacker_wins():
    scores, claimed = play("zero-out", 11, ScaledSource(0, 0.0), 100)
    assert mu_lower(scores) > 2 * claimed


class Stuck(ReproducibleSource):
    """A broken source: every stream is the same one."""

    def child(self, *key):
        return Stuck(5)


def test_reused_noise_is_found_out():
    # the noise is there, and has the right size; but whoever saw it once can subtract it
    scores, claimed = play("zero-out", 1, Stuck(5), 100)
    assert mu_lower(scores) > 2 * claimed
