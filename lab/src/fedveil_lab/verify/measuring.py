"""Compute lower bounds of epsilon and mu from an attack's scores with the target and without.

A lower bound may refute a claim. It never shows that one is true: with more runs, or a better attack, it may rise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedveil.errors import FieldError, kind_of, require_choice, require_number
from fedveil_lab.attacks.bounds import epsilon_of_rates, mu_of_rates, one_run
from fedveil_lab.attacks.statistics import (
    Estimate,
    auc_interval,
    best_threshold,
    rate,
    rate_highs,
    rate_lows,
    rates,
    true_rate_at,
)
from fedveil_lab.verify.aims import Floats, between

Rows = Literal["runs", "canaries", "records"]

ALPHA = 0.01  # of all that one command says
ALPHAS = (0.1, 0.01, 0.001)  # false positive rates at which a true one is given
ROWS = {
    "runs": "each score is of a run of its own, with the target or without",
    "canaries": "all scores are of one run, of canaries each of which a coin of its own put in or left out",
    "records": "all scores are of one run, of records that nobody drew by a coin: they bound no epsilon",
}
UNFAIR = 1e-6  # the chance of so uneven a division of canaries by fair coins, below which they are refused
_PAIRS = 4_000_000  # pairs of scores for which an interval of the area is worth its time


@dataclass(frozen=True)
class LowerBound:
    """Lower bound of epsilon or mu that one method proves.

    Attributes
    ----------
    method : str
        Name of the method.
    figure : str
        What is bounded: epsilon or mu.
    value : float
        The bound; 0 if nothing is proven.
    ceiling : float
        Bound that the same number of scores would prove if all guesses were right.
    delta : float or None
        Delta of the epsilon; None for mu.
    confidence : float
        Confidence of this bound alone.
    """

    method: str
    figure: str
    value: float
    ceiling: float
    delta: float | None
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Measurement:
    """Lower bounds and attack rates that follow from scores.

    Attributes
    ----------
    rows : str
        What a score is of: runs, canaries or records.
    inside, outside : int
        Numbers of scores with the target and without.
    area : Estimate
        AUC with its 95% interval.
    true_rates : dict of float to (Estimate or None)
        True positive rate by false positive rate; None if there are too few scores.
    bounds : tuple of LowerBound
        Bounds that hold together at `confidence`.
    confidence : float
        Of all bounds together.
    """

    rows: str
    inside: int
    outside: int
    area: Estimate
    true_rates: dict[float, Estimate | None]
    bounds: tuple[LowerBound, ...]
    confidence: float

    def best(self, figure: str) -> LowerBound | None:
        """Return the largest bound of epsilon or mu; of equal ones, the one with the highest ceiling."""
        own = [one for one in self.bounds if one.figure == figure]
        return max(own, key=lambda one: (one.value, one.ceiling), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        found: dict[str, dict[str, float] | None] = {}
        for alpha, estimate in self.true_rates.items():
            found[f"{alpha:g}"] = None if estimate is None else dict(vars(estimate))
        return {
            "rows": self.rows,
            "inside": self.inside,
            "outside": self.outside,
            "auc": dict(vars(self.area)),
            "true_positive_rates": found,
            "bounds": [one.to_dict() for one in self.bounds],
            "confidence": self.confidence,
        }


def measure(
    inside: ArrayLike, outside: ArrayLike, *, rows: str, delta: float = 1e-5, alpha: float = ALPHA
) -> Measurement:
    """Compute lower bounds of epsilon and mu by every method that fits; higher scores mean in.

    Parameters
    ----------
    inside, outside : array
        [n] and [m] scores with the target and without.
    rows : {"runs", "canaries", "records"}
        What one score belongs to, see `ROWS`. Scores of one run are not independent runs. Records that no coin put in
        or out prove no bound.
    delta : float
        Delta at which epsilon is bounded.
    alpha : float
        Probability that any of the bounds is too large.

    Raises
    ------
    FieldError
        For too few scores, or if all scores are NaN.
    """
    require_choice("rows", rows, ROWS)
    require_number("delta", delta, lambda d: 0 <= d < 1, "must be at least 0 and below 1")
    require_number("alpha", alpha, lambda a: 0 < a < 0.5, "must be above 0 and below 0.5")
    first, second = scores_of("inside", inside), scores_of("outside", outside)
    if rows == "runs":
        bounds: Sequence[LowerBound] = [
            *of_threshold(first, second, delta=delta, alpha=alpha / 2),
            *of_ranks(first, second, delta=delta, alpha=alpha / 2),
        ]
    elif rows == "canaries":
        bounds = of_canaries(first, second, delta=delta, alpha=alpha / 2)
    else:
        bounds = []
    return measurement(first, second, rows, bounds, alpha)


def measurement(
    inside: Floats, outside: Floats, rows: str, bounds: Sequence[LowerBound], alpha: float
) -> Measurement:
    """Put bounds together with the rates that describe the scores."""
    some, others = _at_most(inside, _PAIRS), _at_most(outside, _PAIRS)
    return Measurement(
        rows=rows,
        inside=len(inside),
        outside=len(outside),
        area=auc_interval(some, others, resamples=200 if len(some) * len(others) > 1e6 else 1000),
        true_rates={one: true_rate_at(inside, outside, one) for one in ALPHAS},
        bounds=tuple(bounds),
        confidence=1 - alpha,
    )


def scores_of(name: str, values: ArrayLike, lowest: float = -math.inf) -> Floats:
    """Convert scores to an array [n]; NaN becomes `lowest`.

    Raises
    ------
    FieldError
        For fewer than ten scores, or values that are not numbers.
    """
    try:
        scores = np.asarray(values, dtype=np.float64).reshape(-1)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # of torch: a tensor that asks for gradients
        raise FieldError(name, kind_of(values), f"must be scores ({error})") from error
    if len(scores) < 10:
        raise FieldError(name, len(scores), "must be at least 10 scores: fewer prove nothing")
    if np.isnan(scores).all():
        raise FieldError(name, "nan", "holds no score that is a number")
    return np.where(np.isnan(scores), lowest, scores)


def of_threshold(
    inside: Floats, outside: Floats, *, delta: float, alpha: float
) -> list[LowerBound]:
    """Bound by a threshold chosen on one half of the runs, with Clopper-Pearson rates on the other half.

    The halves are drawn at random, as a file may be sorted.
    """
    rng = np.random.default_rng(0)
    inside, outside = rng.permutation(inside), rng.permutation(outside)
    half_in, half_out = len(inside) // 2, len(outside) // 2
    threshold = chosen_threshold(inside[:half_in], outside[:half_out], delta, alpha)
    return at_threshold(inside[half_in:], outside[half_out:], threshold, delta=delta, alpha=alpha)


def chosen_threshold(inside: Floats, outside: Floats, delta: float, alpha: float) -> float:
    """Choose the threshold whose bound would be the largest if these runs were the ones to judge."""
    cuts = between(inside, outside)
    if len(cuts) == 0:
        return float(inside[0])
    proven = worths(inside, outside, cuts, delta, alpha)
    if proven.max() <= 0:
        return best_threshold(inside, outside)
    return float(cuts[int(np.argmax(proven))])


def worths(inside: Floats, outside: Floats, cuts: Floats, delta: float, alpha: float) -> Floats:
    """Compute the epsilons that these runs prove at thresholds [k] that they did not choose."""
    n, m = len(inside), len(outside)
    hits = n - np.searchsorted(np.sort(inside), cuts, side="left")
    alarms = m - np.searchsorted(np.sort(outside), cuts, side="left")
    pairs = zip(rate_lows(hits, n, alpha / 2), rate_highs(alarms, m, alpha / 2), strict=True)
    return np.array([epsilon_of_rates(float(true), float(false), delta) for true, false in pairs])


def at_threshold(
    inside: Floats, outside: Floats, threshold: float, *, delta: float, alpha: float
) -> list[LowerBound]:
    """Bound epsilon and mu at a threshold that these scores did not choose."""
    true, false = rates(inside, outside, threshold, 1 - alpha)
    best_true, best_false = (
        rate(len(inside), len(inside), 1 - alpha).low,
        rate(0, len(outside), 1 - alpha).high,
    )
    return _both(
        "held-out threshold", (true.low, false.high), (best_true, best_false), delta, 1 - alpha
    )


def of_ranks(inside: Floats, outside: Floats, *, delta: float, alpha: float) -> list[LowerBound]:
    """Bound by thresholds at fixed ranks of the scores, so that all runs judge.

    A fresh score exceeds the k-th largest of m independent scores with some probability. Whatever the law of the
    scores, this probability is at most Beta(k, m - k + 1) distributed. Given that threshold, the other scores are
    independent of it. So both rates have exact bounds at k = 1, 2, 4, ..., and the error is divided among all of them
    (Bonferroni).
    """
    tries = [
        (inside, outside, False),
        (-outside, -inside, True),
    ]  # the second one guesses who is out
    share = alpha / sum(2 * len(_ranks(len(nulls))) for _, nulls, _ in tries)
    found: list[tuple[float, float]] = []
    best: list[tuple[float, float]] = []
    for signals, nulls, _ in tries:
        n, m, sorted_nulls = len(signals), len(nulls), np.sort(nulls)[::-1]
        for k in _ranks(m):
            hits = int((signals > sorted_nulls[k - 1]).sum())
            false = float(scipy.special.betaincinv(k, m - k + 1, 1 - share))
            found.append((float(rate_lows(hits, n, share)), false))
            best.append((float(rate_lows(n, n, share)), false))
    name, confidence = "ranks", 1 - alpha
    epsilons = [epsilon_of_rates(*one, delta) for one in found]
    epsilon_ceilings = [epsilon_of_rates(*one, delta) for one in best]
    mus = [mu_of_rates(*one) for one in found]
    mu_ceilings = [mu_of_rates(*one) for one in best]
    return [
        LowerBound(name, "epsilon", max(epsilons), max(epsilon_ceilings), delta, confidence),
        LowerBound(name, "mu", max(0.0, *mus), max(0.0, *mu_ceilings), None, confidence),
    ]


def of_canaries(inside: Floats, outside: Floats, *, delta: float, alpha: float) -> list[LowerBound]:
    """Bound by guesses about the canaries of one run; epsilon and mu each have a share of the error.

    Raises
    ------
    FieldError
        If fair coins would hardly ever put this many canaries in.
    """
    count = len(inside) + len(outside)
    if scipy.stats.binomtest(len(inside), count).pvalue < UNFAIR:
        accepted = f"{len(outside)} are out: fair coins divide {count} canaries more evenly, and only these are judged so"
        raise FieldError("canaries that are in", len(inside), accepted)
    found = one_run(inside, outside, delta=delta, confidence=1 - alpha)
    return [
        LowerBound(
            "guesses (Steinke et al. 2023)",
            "epsilon",
            found.epsilon,
            found.epsilon_ceiling,
            delta,
            found.confidence,
        ),
        LowerBound(
            "guesses (Mahloujifar et al. 2024)",
            "mu",
            found.mu,
            found.mu_ceiling,
            None,
            found.confidence,
        ),
    ]


def _both(
    name: str,
    found: tuple[float, float],
    best: tuple[float, float],
    delta: float,
    confidence: float,
) -> list[LowerBound]:
    """Make the bounds of epsilon and mu from the same two events; one confidence covers both."""
    return [
        LowerBound(
            name,
            "epsilon",
            epsilon_of_rates(*found, delta),
            epsilon_of_rates(*best, delta),
            delta,
            confidence,
        ),
        LowerBound(
            name,
            "mu",
            max(0.0, mu_of_rates(*found)),
            max(0.0, mu_of_rates(*best)),
            None,
            confidence,
        ),
    ]


def _ranks(count: int) -> list[int]:
    """Ranks 1, 2, 4, ... up to half of the scores."""
    return [2**power for power in range(max(1, int(math.log2(max(2, count // 2))) + 1))]


def _at_most(scores: Floats, pairs: float) -> Floats:
    """Thin scores evenly, so that an interval can be resampled in reasonable time; only for descriptive figures."""
    most = math.isqrt(int(pairs))
    if len(scores) <= most:
        return scores
    chosen: Floats = scores[np.linspace(0, len(scores) - 1, most).astype(int)]
    return chosen


def refuted_by(bounds: Sequence[LowerBound], figure: str, most: float) -> LowerBound | None:
    """Return a bound that exceeds what a claim allows, or None."""
    above = [one for one in bounds if one.figure == figure and one.value > most]
    return max(above, key=lambda one: one.value, default=None)
