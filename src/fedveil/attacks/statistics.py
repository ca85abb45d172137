"""What scores of attacks of every family say: areas, rates, lower bounds of epsilon and mu, with their uncertainty.

Everywhere the first array holds the scores of what is in (runs with the target, members, canaries that are in), the
second those of what is out, and higher means in: the direction is fixed before. Thresholds come from elsewhere
(rehearsals, or the first half in `bound`): on what is judged nothing is fitted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fedveil.errors import FieldError, require_count

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 4000
EXPECTED_ALARMS = 10  # a rate of true positives is given where so many non-members are expected above the threshold


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval that the number of runs allows."""

    point: float
    low: float
    high: float


@dataclass(frozen=True)
class EpsilonBound:
    """What error rates prove about epsilon.

    Attributes
    ----------
    lower : float
        Lower bound at `confidence`; 0 if nothing is proven.
    ceiling : float
        What so many runs without a single error would have proven: no audit of this size can say more.
    delta : float
        Of the promise that is tested.
    confidence : float
        Of the bound.
    """

    lower: float
    ceiling: float
    delta: float
    confidence: float


def auc(inside: ArrayLike, outside: ArrayLike) -> float:
    """The probability that a run with the target scores above one without it; ties count half."""
    return float(wins(_scores("inside", inside), _scores("outside", outside)).mean())


def auc_interval(
    inside: ArrayLike,
    outside: ArrayLike,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    widened: bool = True,
) -> Estimate:
    """The area under the ROC curve with a percentile bootstrap over runs, each world resampled by itself.

    Near 0 and 1 few resamples hold a pair that is out of order, and the bootstrap is too narrow: at 30 + 30 runs and a
    true area of .98 it held it in 81 to 90% of 400 simulated audits. The interval is therefore widened to that of
    Newcombe (2006, method 5, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic"),
    with which it held it in over 99%.

    Where the worlds are separated perfectly the bound is exact: among min(n, m) disjoint pairs each is in order with
    probability AUC, so AUC^min(n, m) is at least the probability of what was seen, and (alpha / 2)^(1 / min(n, m)) is
    the least AUC that cannot be ruled out, whatever the laws of the scores. Nothing less than perfect separation rules
    out more, so no interval ends closer to its side.

    Parameters
    ----------
    inside, outside : array
        [n] and [m] scores, one a run; at least two each.
    seed : int
        Of the bootstrap.
    resamples : int
        Of the bootstrap.
    confidence : float
        Of the interval.
    widened : bool
        False leaves the bare percentile bootstrap, which is too narrow: for statistics that are defined by it.
    """
    first, second = _scores("inside", inside), _scores("outside", outside)
    won, share = wins(first, second), (1 - confidence) / 2
    point = float(won.mean())
    certain = share ** (1 / min(len(first), len(second)))
    if widened and point in (0.0, 1.0):
        return Estimate(point, certain, 1.0) if point == 1 else Estimate(point, 0.0, 1 - certain)
    rng = np.random.default_rng(seed)
    rows = rng.multinomial(len(first), np.full(len(first), 1 / len(first)), size=resamples) / len(first)
    columns = rng.multinomial(len(second), np.full(len(second), 1 / len(second)), size=resamples) / len(second)
    found = np.einsum("bi,ij,bj->b", rows, won, columns, optimize=True)
    low, high = np.quantile(found, [share, 1 - share])
    if not widened:
        return Estimate(point, float(low), float(high))
    wide = _newcombe(point, len(first), len(second), -float(scipy.special.ndtri(share)))
    return Estimate(point, min(float(low), wide[0], certain), max(float(high), wide[1], 1 - certain))


def roc(inside: ArrayLike, outside: ArrayLike) -> tuple[Floats, Floats]:
    """False and true positive rates at every threshold, from (0, 0) to (1, 1)."""
    first, second = np.sort(_scores("inside", inside)), np.sort(_scores("outside", outside))
    cuts = np.unique(np.concatenate([first, second]))[::-1]
    true = 1 - np.searchsorted(first, cuts, side="left") / len(first)
    false = 1 - np.searchsorted(second, cuts, side="left") / len(second)
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def best_threshold(inside: ArrayLike, outside: ArrayLike) -> float:
    """The threshold (a score at or above it says IN) of the least sum of error rates, for runs that are not judged.

    The middle of the widest gap among equals, so that it does not sit on a run.
    """
    first, second = np.sort(_scores("inside", inside)), np.sort(_scores("outside", outside))
    values = np.unique(np.concatenate([first, second]))
    cuts = np.concatenate([[values[0]], (values[1:] + values[:-1]) / 2])
    gaps = np.concatenate([[0.0], np.diff(values)])
    true = 1 - np.searchsorted(first, cuts, side="left") / len(first)
    false = 1 - np.searchsorted(second, cuts, side="left") / len(second)
    best = np.flatnonzero(np.isclose(true - false, (true - false).max()))
    return float(cuts[best[int(np.argmax(gaps[best]))]])


def rate(hits: int, runs: int, confidence: float = CONFIDENCE) -> Estimate:
    """A rate with its exact interval (Clopper and Pearson 1934)."""
    require_count("runs", runs)
    if not 0 <= hits <= runs:
        raise FieldError("hits", hits, f"must be 0 to {runs}")
    share = (1 - confidence) / 2
    low = float(scipy.special.betaincinv(hits, runs - hits + 1, share)) if hits else 0.0
    high = float(scipy.special.betaincinv(hits + 1, runs - hits, 1 - share)) if hits < runs else 1.0
    return Estimate(hits / runs, low, high)


def advantage(inside: ArrayLike, outside: ArrayLike, threshold: float, confidence: float = CONFIDENCE) -> Estimate:
    """True less false positive rate at a threshold from elsewhere; the interval holds both exact ones (Bonferroni)."""
    each = 1 - (1 - confidence) / 2
    true, false = _rates(inside, outside, threshold, each)
    return Estimate(true.point - false.point, true.low - false.high, true.high - false.low)


def epsilon_bound(
    inside: ArrayLike, outside: ArrayLike, threshold: float, *, delta: float = 0.0, confidence: float = CONFIDENCE
) -> EpsilonBound:
    """Lower bound of epsilon from both error rates at a threshold from elsewhere.

    (epsilon, delta)-DP allows TPR <= e^epsilon FPR + delta, and the same for the complements. With one-sided bounds
    TPR_low and FPR_high, each at half the error, epsilon >= log((TPR_low - delta) / FPR_high), and likewise for
    (1 - FPR_high - delta) / (1 - TPR_low): the same two events, so that the larger one may be taken.

    Raises
    ------
    FieldError
        For a delta outside of [0, 1).
    """
    if not 0 <= delta < 1:
        raise FieldError("delta", delta, "must be at least 0 and below 1")
    true, false = _rates(inside, outside, threshold, confidence)
    n, m = np.size(inside), np.size(outside)
    best_true, best_false = rate(n, n, confidence).low, rate(0, m, confidence).high
    return EpsilonBound(
        _epsilon(true.low, false.high, delta), _epsilon(best_true, best_false, delta), delta, confidence
    )


def joint_bound(
    judged: Sequence[tuple[ArrayLike, ArrayLike, float]], *, delta: float = 0.0, confidence: float = CONFIDENCE
) -> EpsilonBound:
    """What several attacks on the same runs prove together: the largest bound, each at its share of the error.

    The largest of k bounds at 95% is none at 95% (Bonferroni): the more attacks are tried, the sooner one is lucky.

    Parameters
    ----------
    judged : sequence of (inside, outside, threshold)
        As for `epsilon_bound`, one an attack; at least one.
    delta, confidence : float
        Of the joint bound.
    """
    each = 1 - (1 - confidence) / require_count("judged", len(judged))
    bounds = [epsilon_bound(*one, delta=delta, confidence=each) for one in judged]
    return EpsilonBound(max(b.lower for b in bounds), max(b.ceiling for b in bounds), delta, confidence)


def epsilon_ceiling(runs: int, delta: float = 0.0, confidence: float = CONFIDENCE) -> float:
    """The largest epsilon that so many runs in each world can prove."""
    return _epsilon(rate(runs, runs, confidence).low, rate(0, runs, confidence).high, delta)


def runs_for_rate(alpha: float) -> int:
    """Runs without the target that a true positive rate at a false positive rate of alpha needs."""
    return math.ceil(EXPECTED_ALARMS / alpha - 1e-9)


def true_rate_at(inside: ArrayLike, outside: ArrayLike, alpha: float) -> Estimate | None:
    """True positive rate where the false one is at most alpha; None where too few runs could tell.

    The threshold is the empirical quantile of the runs without the target, so the interval is that of the true
    positives alone.
    """
    first, second = _scores("inside", inside), _scores("outside", outside)
    if len(second) < runs_for_rate(alpha):
        return None
    allowed = math.floor(alpha * len(second) + 1e-9)
    threshold = np.sort(second)[::-1][allowed]  # strictly above it lie at most `allowed` of them
    return rate(int((first > threshold).sum()), len(first))


def log_roc(inside: ArrayLike, outside: ArrayLike, points: int = 100) -> tuple[Floats, Floats]:
    """False and true positive rates for logarithmic axes.

    The false ones go from 10 / m to 1 in equal ratios: below that, fewer than ten non-members decide.
    """
    false, true = roc(inside, outside)
    grid = np.geomspace(min(1.0, EXPECTED_ALARMS / np.size(outside)), 1.0, points)
    at = np.searchsorted(false, grid, side="right") - 1  # the step: no rate between two thresholds is reached
    return grid, true[at]


def balanced_accuracy(inside: ArrayLike, outside: ArrayLike) -> float:
    """Mean of both rates on every second score, at the best threshold of the others; NaN for fewer than 4 of a kind."""
    first, second = np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    if min(len(first), len(second)) < 4:
        return float("nan")
    cut = best_threshold(first[::2], second[::2])
    return float(((first[1::2] >= cut).mean() + (second[1::2] < cut).mean()) / 2)


def mean_interval(values: ArrayLike, *, shares: bool = False, seed: int = 0, resamples: int = 2000) -> Estimate:
    """The mean of independent figures [n] with a percentile bootstrap; of rates that are all 0 or 1, exact.

    Parameters
    ----------
    values : array
        [n], one a unit.
    shares : bool
        Whether they are rates.
    seed, resamples : int
        Of the bootstrap.
    """
    found = np.asarray(values, dtype=np.float64)
    if shares and bool(np.isin(found, (0.0, 1.0)).all()):
        return rate(round(float(found.sum())), len(found))
    draws, point = np.random.default_rng(seed).choice(found, (resamples, len(found))).mean(1), float(found.mean())
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(point, min(float(low), point), max(float(high), point))


def student_interval(values: ArrayLike) -> Estimate | None:
    """The mean of figures [n] of independent runs with Student's interval; None for fewer than three."""
    found = np.asarray(values, dtype=np.float64)
    n, point = len(found), float(np.mean(found))
    if n < 3:
        return None
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.std(found, ddof=1) / n**0.5)
    return Estimate(point, point - half, point + half)


@dataclass(frozen=True)
class GameResult:
    """What the adversary reached.

    Attributes
    ----------
    mu_lower : float
        Lower bound of mu at the confidence; 0 if the adversary does not beat guessing.
    epsilon_lower : float
        Lower bound of the epsilon of a pure (delta = 0) promise.
    ceiling : float
        The largest mu that so many runs can certify.
    runs : int
        Independent runs of the mechanism in each world (the unit of replication).
    confidence : float
        Of the bound.
    """

    mu_lower: float
    epsilon_lower: float
    ceiling: float
    runs: int
    confidence: float


def bound(inside: ArrayLike, outside: ArrayLike, confidence: float = 0.999) -> GameResult:
    """Bound the Gaussian-DP parameter of a mechanism that was run many times in two worst-case worlds.

    The first half of the scores of each world chooses the threshold, the other half bounds both error rates (Clopper
    and Pearson): mu_lower = Phi^-1(TPR) - Phi^-1(FPR), whatever the noise, and epsilon_lower = log(TPR / FPR) at delta
    0.

    Parameters
    ----------
    inside, outside : array
        [n] and [m] scores, one an independent run; at least 4 each.
    confidence : float
        Of the bound.

    Raises
    ------
    FieldError
        For fewer than 4 runs.
    """
    first, second = np.asarray(outside, dtype=np.float64), np.asarray(inside, dtype=np.float64)
    if min(len(first), len(second)) < 4:
        raise FieldError("runs", min(len(first), len(second)), "must be at least 4: half of them choose the threshold")
    half = min(len(first), len(second)) // 2
    rest = min(len(first), len(second)) - half  # runs that judge
    candidates = np.unique(np.concatenate([first[:half], second[:half]]))
    miss = np.searchsorted(np.sort(second[:half]), candidates, side="left") / half
    alarm = 1 - np.searchsorted(np.sort(first[:half]), candidates, side="left") / half
    # the best separation that is not an accident of one or two runs at the edge
    smoothed = scipy.special.ndtri((1 - miss) * 0.98 + 0.01) - scipy.special.ndtri(alarm * 0.98 + 0.01)
    threshold = candidates[int(np.argmax(smoothed))]
    hits = int((second[half : half + rest] >= threshold).sum())
    alarms = int((first[half : half + rest] >= threshold).sum())
    true_rate, false_rate = rate(hits, rest, confidence).low, rate(alarms, rest, confidence).high
    rates = true_rate > 0 and false_rate < 1
    found = float(scipy.special.ndtri(true_rate) - scipy.special.ndtri(false_rate)) if rates else 0.0
    best = rate(rest, rest, confidence).low
    pure = math.log(true_rate / false_rate) if true_rate > false_rate > 0 else 0.0
    return GameResult(max(0.0, found), pure, max(0.0, float(2 * scipy.special.ndtri(best))), half + rest, confidence)


def _rates(inside: ArrayLike, outside: ArrayLike, threshold: float, confidence: float) -> tuple[Estimate, Estimate]:
    first, second = _scores("inside", inside), _scores("outside", outside)
    true = rate(int((first >= threshold).sum()), len(first), confidence)
    return true, rate(int((second >= threshold).sum()), len(second), confidence)


def _newcombe(point: float, n: int, m: int, z: float) -> tuple[float, float]:
    """Areas whose own standard error, by the shape of two exponential laws, puts `point` z of them away."""
    most = (n + m) / 2 - 1

    def excess(area: float) -> float:
        shape = 1 + most * ((1 - area) / (2 - area) + area / (1 + area))
        return (point - area) ** 2 - z * z * area * (1 - area) * shape / (n * m)

    return float(scipy.optimize.brentq(excess, 0.0, point)), float(scipy.optimize.brentq(excess, point, 1.0))


def _epsilon(true: float, false: float, delta: float) -> float:
    found = [0.0]
    for above, below in ((true, false), (1 - false, 1 - true)):
        if above > delta and below > 0:
            found.append(math.log((above - delta) / below))
    return max(found)


def wins(inside: Floats, outside: Floats) -> Floats:
    """Whether each score of the first [n] lies above each of the second [m]; ties count half. Their mean is the AUC."""
    found: Floats = (inside[:, None] > outside[None]) + 0.5 * (inside[:, None] == outside[None])
    return found


def _scores(name: str, values: ArrayLike) -> Floats:
    """Scores as an array [n]; one that is not a number cannot say IN."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or len(found) < 2:
        raise FieldError(name, found.shape, "must be one score a run, of at least 2 runs")
    return np.where(np.isnan(found), -np.inf, found)
