"""One run with many canaries: what its guesses prove, whatever the mechanism does to the canaries together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedveil.attacks.statistics import CONFIDENCE
from fedveil.errors import FieldError, require_count

SHARES = (0.05, 0.2, 0.5, 1.0)  # of the canaries of one run, about which is guessed
_LARGEST = 100.0  # mu or epsilon that is looked at


@dataclass(frozen=True)
class OneRun:
    """What one run proves.

    Attributes
    ----------
    mu, epsilon : float
        Lower bounds of the Gaussian-DP parameter, and of epsilon at `delta`; 0 if nothing is proven.
    mu_ceiling, epsilon_ceiling : float
        The largest that so many canaries can prove.
    correct, guesses : int
        At the number of guesses that proved the most mu.
    canaries : int
        m.
    delta, confidence : float
        Of the bounds (each by itself).
    """

    mu: float
    epsilon: float
    mu_ceiling: float
    epsilon_ceiling: float
    correct: int
    guesses: int
    canaries: int
    delta: float
    confidence: float


def one_run(
    inside: ArrayLike,
    outside: ArrayLike,
    *,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
    shares: Sequence[float] = SHARES,
) -> OneRun:
    """Bounds from the scores of the canaries of one run, each of which was put in or left out by a coin of its own.

    Sources: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run" (arXiv 2305.08846, theorem
    5.2), for (epsilon, delta); Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run"
    (arXiv 2410.22235, algorithm 3 with abstention), for Gaussian DP, which loses less. Both hold whatever the mechanism
    does to the canaries together. The adversary guesses about those with the highest scores (in) and the lowest (out);
    how many is fixed beforehand, or several numbers share the error (Bonferroni). Equal scores are guessed wrong.

    A bound is a lower one: it may refute a promise, and never proves one. It has a ceiling: what the same number of
    guesses would have proven, had all been right.

    Parameters
    ----------
    inside, outside : array
        [n] and [m] scores of the canaries that are in and out; at least ten in all.
    delta, confidence : float
        Of the bounds.
    shares : sequence of float
        Of the canaries, about which is guessed.

    Raises
    ------
    FieldError
        For fewer than ten canaries.
    """
    first, second = np.asarray(inside, dtype=np.float64).reshape(-1), np.asarray(outside, dtype=np.float64).reshape(-1)
    found = np.concatenate([first, second])
    coins, m = np.arange(len(found)) < len(first), len(found)
    if m < 10:
        raise FieldError("canaries", m, "must be at least 10, in and out together")
    order, error = np.argsort(found, kind="stable"), (1 - confidence) / len(shares)
    tried = []
    for share in shares:
        half = max(1, round(share * m / 2))
        guesses = min(2 * half, m)
        low, high = order[: guesses - guesses // 2], order[m - guesses // 2 :]
        correct = int((~coins[low]).sum() + coins[high].sum())
        mu, best_mu = (mu_bound_of_guesses(c, guesses, m, 1 - error) for c in (correct, guesses))
        epsilon, best = (epsilon_bound_of_guesses(c, guesses, m, delta, 1 - error) for c in (correct, guesses))
        tried.append((mu, epsilon, best_mu, best, correct, guesses))
    most = max(tried, key=lambda t: t[0])
    return OneRun(
        mu=most[0],
        epsilon=max(t[1] for t in tried),
        mu_ceiling=max(t[2] for t in tried),
        epsilon_ceiling=max(t[3] for t in tried),
        correct=most[4],
        guesses=most[5],
        canaries=m,
        delta=delta,
        confidence=confidence,
    )


def epsilon_bound_of_guesses(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The largest epsilon that so many right guesses refute (theorem 5.2 of 2305.08846).

    With B binomial over the guesses at e^epsilon / (e^epsilon + 1), so many or more are right with a probability of at
    most P[B >= correct] + 2 m delta max_i P[correct > B >= correct - i] / i.
    """
    _check(correct, guesses, canaries)

    def probability(epsilon: float) -> float:
        law = scipy.stats.binom(guesses, scipy.special.expit(epsilon))
        tail = float(law.sf(correct - 1))
        if delta == 0 or correct == 0:
            return tail
        below = np.cumsum(law.pmf(np.arange(correct - 1, -1, -1)))
        return tail + 2 * canaries * delta * float((below / np.arange(1, correct + 1)).max())

    return _largest_refuted(lambda e: probability(e) < 1 - confidence)


def mu_bound_of_guesses(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """The largest mu that so many right guesses refute (algorithm 3 of 2410.22235).

    r and h hold the probabilities of exactly i (weighted) and of more right guesses, from `correct` downward; if they
    would have to sum to more than the share of guesses, mu-Gaussian DP makes such luck rarer than 1 - confidence.
    """
    _check(correct, guesses, canaries)

    def refuted(mu: float) -> bool:
        r, h = (1 - confidence) * correct / canaries, (1 - confidence) * (guesses - correct) / canaries
        for i in range(correct - 1, -1, -1):
            least = max(h, float(scipy.special.ndtr(scipy.special.ndtri(r) - mu))) if r < 1 else 1.0
            if least == h:
                break
            r, h = min(1.0, r + i / (guesses - i) * (least - h)), least
        return r + h > guesses / canaries

    return _largest_refuted(refuted)


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST and refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check(correct: int, guesses: int, canaries: int) -> None:
    require_count("canaries", canaries)
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise FieldError("correct", (correct, guesses, canaries), "must be right guesses <= guesses <= canaries")
