"""Lower bounds of epsilon and mu from attack scores: of many runs, or of the canaries in one run.

Scores with the target come first, scores without it second, as in `fedveil_lab.attacks.statistics`; higher means in.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedveil.errors import FieldError, require_count
from fedveil_lab.attacks.statistics import CONFIDENCE, rate, rates

SHARES = (0.05, 0.2, 0.5, 1.0)  # of the canaries of one run, about which is guessed
DELTAS = (
    1e-5,
    1e-3,
    0.01,
    0.03,
    0.1,
    0.2,
    0.3,
    0.5,
)  # at which rates are set beside a promised curve
_LARGEST = 100.0  # mu or epsilon that is looked at


@dataclass(frozen=True)
class EpsilonBound:
    """Lower bound on epsilon from an attack's error rates.

    Attributes
    ----------
    lower : float
        Lower bound at `confidence`; 0 if nothing is proven.
    ceiling : float
        Bound that this number of runs would prove without any error; no audit of this size proves more.
    delta : float
        Delta of the tested promise.
    confidence : float
        Confidence of the bound.
    """

    lower: float
    ceiling: float
    delta: float
    confidence: float


def epsilon_bound(
    inside: ArrayLike,
    outside: ArrayLike,
    threshold: float,
    *,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
) -> EpsilonBound:
    """Bound epsilon from below by both error rates at a threshold chosen on other runs.

    (epsilon, delta)-DP allows TPR <= e^epsilon FPR + delta, and the same for the complements. With one-sided bounds
    TPR_low and FPR_high, each at half the error, epsilon >= log((TPR_low - delta) / FPR_high), and likewise for (1 -
    FPR_high - delta) / (1 - TPR_low): both rest on the same two events, so the larger one may be taken.

    Raises
    ------
    FieldError
        For a delta outside of [0, 1).
    """
    if not 0 <= delta < 1:
        raise FieldError("delta", delta, "must be at least 0 and below 1")
    true, false = rates(inside, outside, threshold, confidence)
    n, m = np.size(inside), np.size(outside)
    best_true, best_false = rate(n, n, confidence).low, rate(0, m, confidence).high
    return EpsilonBound(
        epsilon_of_rates(true.low, false.high, delta),
        epsilon_of_rates(best_true, best_false, delta),
        delta,
        confidence,
    )


def joint_bound(
    judged: Sequence[tuple[ArrayLike, ArrayLike, float]], *, delta: float = 0.0
) -> EpsilonBound:
    """Bound epsilon by several attacks on the same runs, at 95%: the largest bound, each at its share of the error.

    The largest of k bounds at 95% each does not hold at 95%, so the error is divided among them (Bonferroni).

    Parameters
    ----------
    judged : sequence of (inside, outside, threshold)
        Arguments of `epsilon_bound` for each attack; at least one attack.
    delta : float
        Delta of the joint bound.
    """
    each = 1 - (1 - CONFIDENCE) / require_count("judged", len(judged))
    bounds = [epsilon_bound(*one, delta=delta, confidence=each) for one in judged]
    return EpsilonBound(
        max(b.lower for b in bounds), max(b.ceiling for b in bounds), delta, CONFIDENCE
    )


def epsilon_ceiling(runs: int, delta: float = 0.0) -> float:
    """Largest epsilon that `runs` runs in each world can prove, at 95%."""
    return epsilon_of_rates(rate(runs, runs).low, rate(0, runs).high, delta)


def epsilon_of_rates(true: float, false: float, delta: float = 0.0) -> float:
    """Smallest epsilon that allows true positive rates of at least `true` and false ones of at most `false`."""
    bounds = [0.0]
    for above, below in ((true, false), (1 - false, 1 - true)):
        if above > delta and below > 0:
            bounds.append(math.log((above - delta) / below))
    return max(bounds)


def mu_of_rates(true: float, false: float) -> float:
    """Smallest mu of Gaussian DP that allows these rates; below 0 if they are worse than guessing."""
    return float(
        scipy.special.ndtri(true) - scipy.special.ndtri(false)
    )  # -inf where nothing is sure


@dataclass(frozen=True)
class GameResult:
    """Result of an adversary in the distinguishing game.

    Attributes
    ----------
    mu_lower : float
        Lower bound of mu at the confidence; 0 if the adversary does not beat guessing.
    epsilon_lower : float
        Lower bound of the epsilon of a pure (delta = 0) promise.
    ceiling : float
        Largest mu that this number of runs can prove.
    runs : int
        Number of independent runs of the mechanism in each world.
    confidence : float
        Confidence of the bounds.
    rates : tuple of float
        Lower bound of the true positive rate, and upper bound of the false positive rate, from which both bounds
        follow.
    """

    mu_lower: float
    epsilon_lower: float
    ceiling: float
    runs: int
    confidence: float
    rates: tuple[float, float]

    def beyond(self, epsilon: Callable[[float], float], deltas: Sequence[float] = DELTAS) -> float:
        """Return the most by which the rates exceed a promised curve (delta to epsilon); at most 0 if they never do.

        (epsilon, delta)-DP allows TPR <= e^epsilon FPR + delta at every delta of the curve. Few runs cannot bound small
        rates, so little is found at a small delta.
        """
        true, false = self.rates
        return max(
            (math.log((true - d) / false) - epsilon(d) for d in deltas if d < true and false),
            default=-math.inf,
        )


def bound(inside: ArrayLike, outside: ArrayLike, confidence: float = 0.999) -> GameResult:
    """Bound the Gaussian-DP parameter of a mechanism that was run many times in two worst-case worlds.

    The first half of the scores of each world chooses the threshold, the other half bounds both error rates (Clopper
    and Pearson): mu_lower = Phi^-1(TPR) - Phi^-1(FPR), whatever the noise, and epsilon_lower = log(TPR / FPR) at delta
    0.

    Parameters
    ----------
    inside, outside : array
        Scores [n] and [m] of independent runs, at least 4 each.
    confidence : float
        Confidence of the bounds.

    Raises
    ------
    FieldError
        For fewer than 4 runs.
    """
    first, second = np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    runs = min(len(first), len(second))
    if runs < 4:
        raise FieldError("runs", runs, "must be at least 4: half of them choose the threshold")
    half = runs // 2
    candidates = np.unique(np.concatenate([first[:half], second[:half]]))
    true = 1 - np.searchsorted(np.sort(first[:half]), candidates, side="left") / half
    false = 1 - np.searchsorted(np.sort(second[:half]), candidates, side="left") / half
    # the best separation that is not an accident of one or two runs at the edge
    smoothed = scipy.special.ndtri(true * 0.98 + 0.01) - scipy.special.ndtri(false * 0.98 + 0.01)
    hit, alarm = rates(
        first[half:runs], second[half:runs], candidates[int(np.argmax(smoothed))], confidence
    )
    gap = mu_of_rates(hit.low, alarm.high)
    if hit.low > alarm.high > 0:
        pure = math.log(hit.low / alarm.high)
    else:
        pure = 0.0
    best = rate(runs - half, runs - half, confidence).low
    ceiling = max(0.0, float(2 * scipy.special.ndtri(best)))
    return GameResult(max(0.0, gap), pure, ceiling, runs, confidence, (hit.low, alarm.high))


@dataclass(frozen=True)
class OneRun:
    """Lower bounds that the canaries of one run prove.

    Attributes
    ----------
    mu, epsilon : float
        Lower bounds of the Gaussian-DP parameter, and of epsilon at `delta`; 0 if nothing is proven.
    mu_ceiling, epsilon_ceiling : float
        Largest bounds that this number of canaries can prove.
    correct, guesses : int
        Numbers of right guesses and of all guesses behind the largest bound of mu.
    canaries : int
        Number m of canaries.
    delta, confidence : float
        Delta of the epsilon, and confidence of each bound alone.
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
    """Bound mu and epsilon by the scores of one run's canaries; a fair coin put each of them in or out.

    Sources: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run" (arXiv 2305.08846, theorem
    5.2), for (epsilon, delta); Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run"
    (arXiv 2410.22235, algorithm 3 with abstention), for Gaussian DP; the latter loses less. Both hold whatever the mechanism
    does to the canaries together. The adversary guesses about the canaries with the highest scores (in) and the lowest
    (out). The number of guesses is fixed beforehand, or several numbers share the error (Bonferroni). Equal scores are
    guessed wrong.

    A lower bound can refute a promise, but never proves one. Its ceiling is the bound if all guesses were right.

    Parameters
    ----------
    inside, outside : array
        Scores [n] and [m] of the canaries that are in and out; at least ten in all.
    delta, confidence : float
        Delta and confidence of the bounds.
    shares : sequence of float
        Shares of the canaries about which the adversary guesses, fixed in advance.

    Raises
    ------
    FieldError
        For fewer than ten canaries.
    """
    first, second = (
        np.asarray(inside, dtype=np.float64).reshape(-1),
        np.asarray(outside, dtype=np.float64).reshape(-1),
    )
    guessed = np.concatenate([first, second])
    coins, m = np.arange(len(guessed)) < len(first), len(guessed)
    if m < 10:
        raise FieldError("canaries", m, "must be at least 10, in and out together")
    order = np.argsort(guessed, kind="stable")
    tried = []  # right guesses, and guesses
    for share in shares:
        half = max(1, round(share * m / 2))
        guesses = min(2 * half, m)
        low, high = order[: guesses - guesses // 2], order[m - guesses // 2 :]
        tried.append((int((~coins[low]).sum() + coins[high].sum()), guesses))
    return _of_guesses(tried, m, delta, confidence)


def paired_run(
    differences: ArrayLike,
    *,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
    shares: Sequence[float] = SHARES,
) -> OneRun:
    """Bound mu and epsilon by pairs of one run, where a fair coin put one of each pair in and left the other out.

    A coin with the other result replaces one unit by the other, so the bounds are for replace-one; see `one_run`. The
    adversary guesses about the pairs whose scores differ most: the higher score is in. Equal scores count as wrong.

    Parameters
    ----------
    differences : array
        Score differences [m], in minus out; at least ten.
    delta, confidence : float
        Delta and confidence of the bounds.
    shares : sequence of float
        Shares of the pairs about which the adversary guesses, fixed in advance.

    Raises
    ------
    FieldError
        For fewer than ten pairs.
    """
    found = np.asarray(differences, dtype=np.float64).reshape(-1)
    m = len(found)
    if m < 10:
        raise FieldError("pairs", m, "must be at least 10")
    order = np.argsort(-np.abs(found), kind="stable")
    tried = []  # right guesses, and guesses
    for share in shares:
        guesses = max(1, round(share * m))
        tried.append((int((found[order[:guesses]] > 0).sum()), guesses))
    return _of_guesses(tried, m, delta, confidence)


def _of_guesses(
    tried: Sequence[tuple[int, int]], m: int, delta: float, confidence: float
) -> OneRun:
    """Make the bounds from several pairs (right guesses, all guesses), which share the error."""
    sure = 1 - (1 - confidence) / len(tried)
    mu = [mu_bound_of_guesses(right, n, m, sure) for right, n in tried]
    correct, guesses = tried[int(np.argmax(mu))]
    return OneRun(
        mu=max(mu),
        epsilon=max(epsilon_bound_of_guesses(right, n, m, delta, sure) for right, n in tried),
        mu_ceiling=max(mu_bound_of_guesses(n, n, m, sure) for _, n in tried),
        epsilon_ceiling=max(epsilon_bound_of_guesses(n, n, m, delta, sure) for _, n in tried),
        correct=correct,
        guesses=guesses,
        canaries=m,
        delta=delta,
        confidence=confidence,
    )


def epsilon_bound_of_guesses(
    correct: int, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """Largest epsilon that `correct` right guesses refute (theorem 5.2 of arXiv 2305.08846).

    B is binomial over the guesses, with success probability e^epsilon / (e^epsilon + 1). At least `correct` guesses are
    right with probability at most P[B >= correct] + 2 m delta max_i P[correct > B >= correct - i] / i.
    """
    _check(correct, guesses, canaries)

    def probability(epsilon: float) -> float:
        binomial, law = scipy.stats.binom, (guesses, scipy.special.expit(epsilon))
        tail = float(binomial.sf(correct - 1, *law))
        if delta == 0 or correct == 0:
            return tail
        below = np.cumsum(binomial.pmf(np.arange(correct - 1, -1, -1), *law))
        return tail + 2 * canaries * delta * float((below / np.arange(1, correct + 1)).max())

    return _largest_refuted(lambda e: probability(e) < 1 - confidence)


def mu_bound_of_guesses(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """Largest mu that `correct` right guesses refute (algorithm 3 of arXiv 2410.22235).

    r and h hold the (weighted) probabilities of exactly i right guesses, and of more than i, from `correct` downward.
    If their sum exceeds the share of guesses, the result has probability below 1 - confidence under mu-Gaussian DP.
    """
    _check(correct, guesses, canaries)

    def refuted(mu: float) -> bool:
        r, h = (
            (1 - confidence) * correct / canaries,
            (1 - confidence) * (guesses - correct) / canaries,
        )
        for i in range(correct - 1, -1, -1):
            if r < 1:
                least = max(h, float(scipy.special.ndtr(scipy.special.ndtri(r) - mu)))
            else:
                least = 1.0
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
        raise FieldError(
            "correct", (correct, guesses, canaries), "must be right guesses <= guesses <= canaries"
        )
