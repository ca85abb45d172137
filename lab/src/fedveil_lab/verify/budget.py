"""Plan runs and time: how many runs fit, what they can show at most, and the sentence that is said first."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from fedveil.errors import require_count, require_number
from fedveil_lab.verify.aims import Aim
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.isolation import NoVerdict
from fedveil_lab.verify.measuring import ALPHA

LOOKED, FINAL = 0.3, 0.5  # of all runs: for a look at every world, and for the judgement
KEPT = 4  # worlds of the library that are looked at again
LOOKS = 4  # runs of a side of a world at least, in the first look
LEAST = 8  # runs of a side of a world at least, in the later stages
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


@dataclass(frozen=True)
class Stages:
    """Division of runs among three stages.

    Attributes
    ----------
    runs : int
        Number of runs to divide.
    worlds : int
        Pairs of worlds, of which each is looked at.
    own : int
        Pairs among them that an author made, of which each is looked at again.
    """

    runs: int
    worlds: int
    own: int = 0

    @property
    def kept(self) -> int:
        """Number of pairs of worlds that are looked at again."""
        return self.own + min(KEPT, self.worlds - self.own)

    @property
    def looks(self) -> int:
        """Runs of each side of every world in the first look."""
        return max(LOOKS, int(LOOKED * self.runs / self.worlds / 2))

    @property
    def again(self) -> int:
        """Runs of each side of a world that is looked at again."""
        return max(LEAST, int((1 - LOOKED - FINAL) * self.runs / self.kept / 2))

    @property
    def judged(self) -> int:
        """Runs of each side of the world that is judged."""
        return max(LEAST, int(FINAL * self.runs / 2))

    @property
    def later(self) -> int:
        """Runs of the two stages after the first look."""
        return 2 * (self.again * self.kept + self.judged)

    @property
    def total(self) -> int:
        """Runs of all three stages; more than `runs` where every world needs its fewest."""
        return 2 * self.looks * self.worlds + self.later

    def again_within(self, capacity: int, most: int = MOST) -> "Stages":
        """Return the division whose later stages fill a capacity, with at most so many runs in all."""
        found = bisect_right(range(most), capacity, key=lambda runs: replace(self, runs=runs).later)
        return replace(self, runs=max(LEAST, found - 1))


def runs_within(effort: Effort, each: float, left: float, worlds: int, own: int = 0) -> Stages:
    """Divide as many runs as fit into the seconds that are left.

    Parameters
    ----------
    effort : Effort
        Limits on runs and time.
    each : float
        Seconds of a run.
    left : float
        Seconds that are left.
    worlds, own : int
        Pairs of worlds, and how many of them an author made.

    Raises
    ------
    NoVerdict
        If not even the fewest fit.
    """
    most = effort.runs or MOST
    fewest = Stages(min(most, FEWEST), worlds, own)
    capacity = int(left / each)
    if fewest.total > capacity:
        needed = two_digits(1.5 * fewest.total * each)
        raise NoVerdict(
            f"a run takes about {each:.2g} s, and {fewest.total} are the fewest for {worlds} worlds: give --seconds {needed}"
        )
    found = bisect_right(
        range(most + 1), capacity, key=lambda runs: Stages(runs, worlds, own).total
    )
    return Stages(max(fewest.runs, found - 1), worlds, own)


def two_digits(number: float) -> int:
    """Round a number of seconds or runs up to two digits."""
    size = int(10.0 ** max(0, int(math.log10(max(1.0, number))) - 1))
    return math.ceil(number / size) * size


def ceiling_of(count: int, claim: PrivacyClaim, alpha: float) -> float:
    """Compute the largest bound that so many judged runs of each side can show."""
    aim = Aim(claim.figure, claim.delta or 0.0, alpha, count)
    return float(aim.bounds(np.ones(1), np.zeros(1))[0])


def planned(stages: Stages, each: float, claim: PrivacyClaim, effort: Effort) -> str:
    """Say the budget in one sentence, with the largest bound that it can prove."""
    ceiling = ceiling_of(stages.judged, claim, effort.alpha)
    reach = f"at most {claim.figure} {ceiling:.2f} can be shown at confidence {1 - effort.alpha:g}"
    if ceiling <= claim.most:
        reach += f", so that a claim of {claim.most:.3g} is out of reach"
    limit = "" if effort.limit is None else f"; no run begins after {effort.limit:g} s"
    return f"{stages.total:,} runs in {stages.worlds} worlds, about {stages.total * each:.0f} s{limit}; {reach}"
