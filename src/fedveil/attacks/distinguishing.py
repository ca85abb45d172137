"""The distinguishing game: how well the strongest adversary tells two worst-case worlds apart.

Whoever plays runs a mechanism many times in either world and gives every output a score, higher meaning "the second
world". Half of the scores choose the threshold, the other half bound both error rates (Clopper and Pearson), and
mu_lower = Phi^-1(TPR) - Phi^-1(FPR) bounds the mechanism's Gaussian-DP parameter from below, whatever its noise; so
does epsilon_lower = log(TPR / FPR) its epsilon at delta 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from fedveil.attacks.statistics import rate
from fedveil.errors import FieldError

Scores = np.ndarray[tuple[int], np.dtype[np.float64]]


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


def play(
    first: Callable[[int], float], second: Callable[[int], float], runs: int, confidence: float = 0.999
) -> GameResult:
    """Run both worlds and bound mu.

    Parameters
    ----------
    first, second : callable
        ``run -> score``, each an independent run of the mechanism in that world.
    runs : int
        Runs of each world, at least 4.
    confidence : float
        Of the bound.
    """
    return bound(
        np.array([first(r) for r in range(runs)]), np.array([second(r + runs) for r in range(runs)]), confidence
    )


def bound(first: Scores, second: Scores, confidence: float = 0.999) -> GameResult:
    """Bound mu from scores [runs] of either world; the first half of each chooses the threshold.

    Raises
    ------
    FieldError
        For fewer than 4 runs.
    """
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
