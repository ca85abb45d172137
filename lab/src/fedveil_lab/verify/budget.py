"""Budget of runs and time: how many fit, what they can show at most, and the sentence that is said first."""

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
        In all; by default as many as fit into the seconds.
    seconds : float, optional
        For all of it: 60, unless runs are given. Canaries of few runs have a limit only where it is given.
    timeout : float
        For one run.
    seed : int
        From which every run's own is drawn.
    alpha : float
        Error of the one statement.
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
        """Seconds after which no run of two worlds begins; None without a limit."""
        if self.seconds is None and self.runs is None:
            return SECONDS
        return self.seconds


def stages(runs: int, worlds: int) -> tuple[int, int, int]:
    """Runs of each side: of every world, again of the most telling ones, and for the judgement."""
    looks = max(LEAST, int(LOOKED * runs / worlds / 2))
    again = max(LEAST, int((1 - LOOKED - FINAL) * runs / min(KEPT, worlds) / 2))
    return looks, again, max(LEAST, int(FINAL * runs / 2))


def total(runs: int, worlds: int) -> int:
    """All runs of the three stages; more than was asked for where every world needs its fewest."""
    looks, again, count = stages(runs, worlds)
    return 2 * (looks * worlds + again * min(KEPT, worlds) + count)


def fitting(most: int, capacity: int, worlds: int) -> int:
    """The largest number of runs whose stages are no more than a capacity; 0 where not even the fewest fit."""
    least = min(most, FEWEST)
    runs = min(most, capacity)
    while runs > least and total(runs, worlds) > capacity:
        runs -= 1
    return runs if runs >= least and total(runs, worlds) <= capacity else 0


def runs_within(effort: Effort, each: float, left: float, worlds: int) -> int:
    """Runs that fit into the seconds that are left.

    Parameters
    ----------
    effort : Effort
        What is allowed.
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
    """Runs of which the two later stages are no more than a capacity, or their fewest."""
    while runs > LEAST and total(runs, worlds) - 2 * stages(runs, worlds)[0] * worlds > capacity:
        runs -= max(1, runs // 100)
    return runs


def rounded_seconds(seconds: float) -> int:
    """Seconds to two digits, upwards."""
    size = int(10.0 ** max(0, int(math.log10(max(1.0, seconds))) - 1))
    return math.ceil(seconds / size) * size


def planned(
    runs: int, each: float, worlds: Sequence[Any], claim: PrivacyClaim, effort: Effort
) -> str:
    """The budget in one sentence, with the most that it can prove."""
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
