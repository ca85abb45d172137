"""Plan runs and time: how many runs fit, what they can show at most, and the sentence that is said first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.errors import require_count, require_number
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.isolation import NoVerdict
from fedveil_lab.verify.measuring import ALPHA, at_threshold

LOOKED, FINAL = 0.25, 0.5  # of all runs: for a look at every world, and for the judgement
KEPT = 4  # worlds that are looked at again
LEAST = 8  # runs of a side of a world
FEWEST = 100  # runs in all, below which nobody plans by time
MOST = 10_000_000
SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Limits on runs and time.

    Attributes
    ----------
    runs : int, optional
        Number of runs in all. Default: as many as fit into `seconds`.
    seconds : float, optional
        Time limit of the whole test. Default: 60, unless `runs` are given or canaries judge few runs.
    timeout : float
        Seconds that one run may take.
    seed : int
        Seed from which the seed of every run is drawn.
    alpha : float
        Probability that the lower bound is too large.
    """

    runs: int | None = None
    seconds: float | None = None
    timeout: float = 30.0
    seed: int = 0
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        if self.runs is not None:
            require_count("--runs", self.runs, least=32)
        if self.seconds is not None:
            require_number("--seconds", self.seconds, lambda s: 1 <= s <= 1e6, "must be at least 1")
        require_number("--timeout", self.timeout, lambda s: 0 < s <= 1e5, "must be above 0")
        require_count("--seed", self.seed, least=0, most=2**32 - 1)
        require_number(
            "--alpha", self.alpha, lambda a: 0 < a < 0.5, "must be above 0 and below 0.5"
        )

    @property
    def limit(self) -> float | None:
        """Seconds after which no run of a pair of worlds begins; None without a limit."""
        if self.seconds is None and self.runs is None:
            return SECONDS
        return self.seconds


def stages(runs: int, worlds: int) -> tuple[int, int, int]:
    """Divide the runs per side: for every world, for the most telling worlds, and for the judgement."""
    looks = max(LEAST, int(LOOKED * runs / worlds / 2))
    again = max(LEAST, int((1 - LOOKED - FINAL) * runs / min(KEPT, worlds) / 2))
    return looks, again, max(LEAST, int(FINAL * runs / 2))


def total(runs: int, worlds: int) -> int:
    """Count the runs of all three stages; more than `runs` where every world needs its fewest."""
    looks, again, count = stages(runs, worlds)
    return 2 * (looks * worlds + again * min(KEPT, worlds) + count)


def fitting(most: int, capacity: int, worlds: int) -> int:
    """Return the largest number of runs whose stages fit into a capacity; 0 if not even the fewest fit."""
    least = min(most, FEWEST)
    runs = min(most, capacity)
    while runs > least and total(runs, worlds) > capacity:
        runs -= 1
    return runs if runs >= least and total(runs, worlds) <= capacity else 0


def runs_within(effort: Effort, each: float, left: float, worlds: int) -> int:
    """Return the number of runs that fit into the seconds that are left.

    Parameters
    ----------
    effort : Effort
        Limits on runs and time.
    each : float
        Seconds of a run.
    left : float
        Seconds that are left.
    worlds : int
        Pairs of worlds.

    Raises
    ------
    NoVerdict
        If not even the fewest fit.
    """
    most = effort.runs or MOST
    found = fitting(most, min(MOST, int(left / each)), worlds)
    if found:
        return found
    fewest = total(min(most, FEWEST), worlds)
    needed = rounded_seconds(1.5 * fewest * each)
    raise NoVerdict(
        f"a run takes about {each:.2g} s, and {fewest} are the fewest for {worlds} worlds: give --seconds {needed}"
    )


def shortened(runs: int, worlds: int, capacity: int) -> int:
    """Reduce the runs until the two later stages fit into a capacity, or have their fewest."""
    while runs > LEAST and total(runs, worlds) - 2 * stages(runs, worlds)[0] * worlds > capacity:
        runs -= max(1, runs // 100)
    return runs


def rounded_seconds(seconds: float) -> int:
    """Round seconds up to two digits."""
    size = int(10.0 ** max(0, int(math.log10(max(1.0, seconds))) - 1))
    return math.ceil(seconds / size) * size


def planned(
    runs: int, each: float, worlds: Sequence[Any], claim: PrivacyClaim, effort: Effort
) -> str:
    """Say the budget in one sentence, with the largest bound that it can prove."""
    count = stages(runs, len(worlds))[2]
    bounds = at_threshold(
        np.ones(count), np.zeros(count), 0.5, delta=claim.delta or 0.0, alpha=effort.alpha
    )
    ceiling = next(one.ceiling for one in bounds if one.figure == claim.figure)
    reach = f"at most {claim.figure} {ceiling:.2f} can be shown at confidence {1 - effort.alpha:g}"
    if ceiling <= claim.most:
        reach += f", so that a claim of {claim.most:.3g} is out of reach"
    made = total(runs, len(worlds))
    limit = "" if effort.limit is None else f", none of which begins after {effort.limit:g} s"
    return f"{made:,} runs in {len(worlds)} worlds, about {made * each:.0f} s{limit}; {reach}"
