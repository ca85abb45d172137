"""Say what more runs would show: the ceiling of a longer test, and how many runs half the noise takes to be seen."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedveil.gdp import mu_of_epsilon
from fedveil_lab.verify.aims import Aim
from fedveil_lab.verify.budget import LEAST, MOST, Effort, ceiling_of, two_digits
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.player import FASTEST

LONGER = 600.0  # seconds of the longer test, or ten times the seconds that were given
CUTS = 200  # thresholds between two Laplace laws


@dataclass(frozen=True)
class Spent:
    """What a test has used.

    Attributes
    ----------
    judged : int
        Judged runs of each side.
    runs : int
        Runs in all.
    seconds : float
        Seconds in all.
    """

    judged: int
    runs: int
    seconds: float


def what_more_shows(claim: PrivacyClaim, effort: Effort, spent: Spent) -> list[str]:
    """Say what these runs can show, what a longer test could, and how many runs half the noise takes.

    Parameters
    ----------
    claim : PrivacyClaim
        A claim that was not refuted.
    effort : Effort
        Limits of the test.
    spent : Spent
        Runs and time of the test, from which the longer one is extrapolated.
    """
    alpha = effort.alpha
    ceiling = ceiling_of(spent.judged, claim, alpha)
    told = f"{spent.judged:,} judged runs of each side show {claim.figure} {ceiling:.2f} at most"
    seconds = max(LONGER, 10 * (effort.seconds or 0.0))
    growth = seconds / max(spent.seconds, FASTEST * spent.runs)
    if growth > 1:
        later = min(MOST, int(growth * spent.judged))
        ceiling = ceiling_of(later, claim, alpha)
        told += f"; --seconds {seconds:g} would make about {two_digits(later):,}, which show {ceiling:.2f} at most"
    return [told, _of_half_noise(claim, alpha, spent.judged)]


def _of_half_noise(claim: PrivacyClaim, alpha: float, judged: int) -> str:
    """Say that half of the needed noise can pass, and how many runs it takes at the best."""
    needed = runs_for_half_noise(claim, alpha)
    if needed is None:
        told = (
            f"refuting half of the needed noise takes more than {MOST:,} judged runs of each side"
        )
    else:
        kind = "Gaussian" if claim.delta or claim.judged_by_mu else "Laplace"
        runs = f"{two_digits(needed):,} judged runs of each side"
        told = (
            f"half of the needed noise can pass: even {kind} noise in the best world takes {runs}"
        )
        if judged < needed:
            told += ", and fewer were made"
    if claim.delta and not claim.judged_by_mu:
        fewer = runs_for_half_noise(replace(claim, gaussian=True), alpha)
        if fewer is not None:
            told += f"; if it is Gaussian noise without sampling, say 'gaussian' in the claim: then {two_digits(fewer):,} do"
    return told


@lru_cache(maxsize=64)
def runs_for_half_noise(claim: PrivacyClaim, alpha: float) -> int | None:
    """Compute the judged runs of each side that refute half of the noise which the claim needs; None if too many.

    The noise is Gaussian, or Laplace noise if delta is 0. The attack is the best one, and nothing is left to chance.
    """

    def refuted(runs: int) -> bool:
        return _bound_of_half_noise(claim, alpha, runs) > claim.most

    found = bisect_left(range(LEAST, MOST), True, key=refuted) + LEAST
    return found if found < MOST else None


def _bound_of_half_noise(claim: PrivacyClaim, alpha: float, runs: int) -> float:
    """Compute the bound that runs promise on twice the claimed shift."""
    aim = Aim(claim.figure, claim.delta or 0.0, alpha, runs)
    if claim.judged_by_mu:
        return aim.of_shift(2 * claim.most)
    assert claim.epsilon is not None
    if claim.delta:
        return aim.of_shift(2 * mu_of_epsilon(claim.epsilon, claim.delta))
    shift = 2 * claim.epsilon
    cuts = np.linspace(0.0, shift, CUTS)  # in scales of the noise; beyond, the ratio stays the same
    return float(aim.bounds(1 - np.exp(cuts - shift) / 2, np.exp(-cuts) / 2).max())
