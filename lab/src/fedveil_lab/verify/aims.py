"""Rank attacks and worlds by one figure: the bound that the judged runs would show.

Some runs choose, others judge. A bound of the few that choose would hide events that are rare and decisive.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil_lab.attacks.statistics import best_threshold

Floats = NDArray[np.float64]
HALF = 0.5  # of a run that is added to hits and to misses: a rate of few runs is never 0 or 1
TINY = 1e-300
CUTS = 400  # thresholds that are compared at most
NORMAL_CUTS = 200  # the same for two normal laws


@dataclass(frozen=True)
class Aim:
    """What attacks and worlds are chosen for.

    Attributes
    ----------
    figure : str
        What will be bounded: epsilon or mu.
    delta : float
        Delta of the epsilon.
    alpha : float
        Error of the bound.
    runs : int
        Number of runs of each side that will judge.
    """

    figure: str
    delta: float
    alpha: float
    runs: int

    def bounds(self, true: Floats, false: Floats) -> Floats:
        """Compute the bounds [k] that the judged runs show if they have exactly these rates [k]; at most 0 if none."""
        lows, highs = lows_and_highs(true * self.runs, false * self.runs, self.runs, self.alpha / 2)
        if self.figure == "mu":
            found: Floats = scipy.special.ndtri(lows) - scipy.special.ndtri(highs)
        else:
            found = np.maximum(
                log_ratio(lows, highs, self.delta), log_ratio(1 - highs, 1 - lows, self.delta)
            )
        return found

    def at_cuts(self, inside: Floats, outside: Floats, cuts: Floats) -> Floats:
        """Compute the bounds [k] that scores like these promise at thresholds [k]."""
        return self.bounds(rates_above(inside, cuts), rates_above(outside, cuts))

    def of(self, inside: Floats, outside: Floats, threshold: float) -> float:
        """Compute the bound that scores like these promise at a threshold that they did not choose."""
        return float(self.at_cuts(inside, outside, np.array([threshold]))[0])

    def threshold(self, inside: Floats, outside: Floats) -> float:
        """Choose the threshold at which scores like these promise the largest bound."""
        cuts = between(inside, outside)
        if len(cuts) == 0:
            return float(inside[0])
        promised = self.at_cuts(inside, outside, cuts)
        if promised.max() <= 0:
            return best_threshold(inside, outside)
        return float(cuts[int(np.argmax(promised))])

    def of_shift(self, shift: float) -> float:
        """Compute the bound that two normal laws promise whose means lie `shift` deviations apart."""
        return _of_shift(self, round(min(shift, 20.0), 3))


@lru_cache(maxsize=4096)
def _of_shift(aim: Aim, shift: float) -> float:
    cuts = np.linspace(-4.0, shift + 4.0, NORMAL_CUTS)
    promised = aim.bounds(scipy.special.ndtr(shift - cuts), scipy.special.ndtr(-cuts))
    return float(max(0.0, promised.max()))


def log_ratio(more: Floats, less: Floats, delta: float) -> Floats:
    """Compute the epsilons [k] that an event proves which has these two rates; 0 if none."""
    found: Floats = np.log(np.maximum(more - delta, TINY) / np.maximum(less, TINY))
    above: Floats = np.maximum(found, 0.0)
    return above


def lows_and_highs(hits: Floats, alarms: Floats, runs: int, share: float) -> tuple[Floats, Floats]:
    """Lower bounds of true rates and upper bounds of false ones (Clopper and Pearson), for parts of runs, too."""
    lows: Floats = scipy.special.betaincinv(np.maximum(hits, 1e-9), runs - hits + 1, share)
    highs: Floats = scipy.special.betaincinv(alarms + 1, np.maximum(runs - alarms, 1e-9), 1 - share)
    return lows, highs


def rates_above(scores: Floats, cuts: Floats) -> Floats:
    """Estimate how often a score reaches each threshold [k]."""
    hits = len(scores) - np.searchsorted(np.sort(scores), cuts, side="left")
    return np.asarray((hits + HALF) / (len(scores) + 2 * HALF), dtype=np.float64)


def between(inside: Floats, outside: Floats) -> Floats:
    """List thresholds between the scores, at most `CUTS`; none if all scores are equal."""
    pooled = np.unique(np.concatenate([inside, outside]))
    if len(pooled) > CUTS:
        pooled = np.quantile(pooled, np.linspace(0, 1, CUTS), method="nearest")
    below, above = pooled[:-1], pooled[1:]
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = above - below
        cuts: Floats = np.where(np.isfinite(gaps), below + gaps / 2, above)
    return cuts
