"""Make runs of both sides of worlds: their seeds, their order, and their end in time."""

import math
from collections.abc import Sequence
from time import monotonic
from typing import Any, Protocol

import numpy as np

from fedveil_lab.verify.attackers import rounds_of
from fedveil_lab.verify.budget import LOOKS, two_digits
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.flare_probe.flare_watch import CLOSED
from fedveil_lab.verify.isolation import NoVerdict, RunOutcome
from fedveil_lab.verify.pairs import alike
from fedveil_lab.verify.worlds import TwoWorlds

SIDES = ("in", "out")
FASTEST = 1e-4  # seconds of a run, at least


class Runner(Protocol):
    """Protocol of objects that run a mechanism on the data of a named world."""

    @property
    def isolation(self) -> str:
        """Isolation of the runs, in words."""

    def hold(self, world: str, data: Any) -> None:
        """Keep a world's data for its runs."""

    def run(self, world: str, seed: int) -> RunOutcome:
        """Run the mechanism once on a world's data."""


class Player:
    """Run a mechanism on both sides of worlds, each pair of runs with new seeds.

    Parameters
    ----------
    runner : Runner
        Makes the runs.
    worlds : sequence of TwoWorlds
        Pairs of neighbouring worlds.
    seed : int
        Seed from which the seeds and the order of runs are drawn; only the two runs of a pair may share a seed.
    limit : float, optional
        Seconds after which no run of two worlds begins.

    Attributes
    ----------
    played : int
        Number of runs so far.
    hung : dict of str to str
        Worlds in which a run did not end, and how long it was waited for.
    paces : dict of str to float
        Seconds per run of each world, when it was last run.
    """

    def __init__(
        self, runner: Runner, worlds: Sequence[TwoWorlds], seed: int, limit: float | None = None
    ) -> None:
        self.runner, self.limit = runner, limit
        self._until = math.inf if limit is None else monotonic() + limit
        self._rng, self._coins = np.random.default_rng(seed), np.random.default_rng([seed, 1])
        self._used: set[int] = set()
        self.played = 0
        self.hung: dict[str, str] = {}
        self.paces: dict[str, float] = {}
        for one in worlds:
            for side, data in zip(SIDES, (one.inside, one.outside), strict=True):
                if data is not None:
                    runner.hold(f"{one.name}: {side}", data)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._until - monotonic())

    def require_time(self, planned: int) -> None:
        """Refuse to go on once time is over.

        Raises
        ------
        NoVerdict
            With a limit that would do for so many planned runs.
        """
        if self.left > 0:
            return
        assert self.limit is not None
        needed = two_digits(1.5 * self.limit * planned / max(1, self.played))
        raise NoVerdict(
            f"{self.limit:g} s were over after {self.played:,} of {planned:,} runs: give --seconds {needed}"
        )

    def run(self, world: str, side: str, seed: int) -> RunOutcome:
        """Run the mechanism once on one side of a world."""
        self.played += 1
        return self.runner.run(f"{world}: {side}", seed)

    def both(
        self, world: str, count: int, *, same_seed: bool = False, seconds: float = math.inf
    ) -> tuple[list[RunOutcome], list[RunOutcome]]:
        """Run each side `count` times, in pairs whose order a coin decides; fewer if time is over or a run hangs.

        Parameters
        ----------
        world : str
            Name of the pair of worlds.
        count : int
            Runs of each side.
        same_seed : bool
            Whether both runs of a pair have one seed. Such runs compare worlds; they judge no claim.
        seconds : float
            Seconds after which no pair begins, once `LOOKS` pairs are made.
        """
        found: dict[str, list[RunOutcome]] = {side: [] for side in SIDES}
        started, before = monotonic(), self.played
        for made in range(count):
            if made >= LOOKS and monotonic() - started >= seconds:
                break
            first = self.seed()
            seeds = dict(zip(SIDES, (first, first if same_seed else self.seed()), strict=True))
            if not self._pair(world, seeds, found):
                break
        self.paces[world] = (monotonic() - started) / max(1, self.played - before)
        return found["in"], found["out"]

    def _pair(self, world: str, seeds: dict[str, int], found: dict[str, list[RunOutcome]]) -> bool:
        """Run both sides once, and say whether both runs ended in time."""
        order = SIDES if self._coins.integers(2) else SIDES[::-1]
        for side in order:
            if self.left <= 0:
                return False
            one = self.run(world, side, seeds[side])
            if one.kind == "hangs":  # how long we wait is no answer of the mechanism
                self.hung[world] = one.why
                return False
            found[side].append(one)
        return True

    def seed(self) -> int:
        """Draw a seed that was not drawn before."""
        while True:
            drawn = int(self._rng.integers(2**32))
            if drawn not in self._used:
                self._used.add(drawn)
                return drawn


def probed(player: Player, world: str, claim: PrivacyClaim) -> tuple[float, bool]:
    """Measure the seconds of one run in a plain world, and say whether a seed gives the same answer twice.

    Raises
    ------
    NoVerdict
        If it raises, hangs, returns no numbers or another shape each time, or several rounds for a claim of one.
    """
    outcomes: list[RunOutcome] = []
    seeds = [player.seed() for _ in range(7)]
    seeds[2] = seeds[0]
    started = 0.0
    for number, seed in enumerate(seeds):
        if number == 1:
            started = monotonic()  # the first run waits for the libraries
        one = player.run(world, SIDES[number % 2], seed)
        if one.kind != "ok":
            raise NoVerdict(f"in the world {world!r} the mechanism {said_of(one)}")
        if len(one.numbers) == 0:
            raise NoVerdict("the mechanism returns no number at all")
        outcomes.append(one)
    shapes = sorted({one.shape for one in outcomes[::2]})
    if len(shapes) > 1:
        raise NoVerdict(
            f"the mechanism returns another shape each time, {' and '.join(shapes[:2])}"
        )
    _require_one_round(outcomes[0].shape, claim)
    each = max(FASTEST, (monotonic() - started) / (len(outcomes) - 1))
    return each, alike(outcomes[0], outcomes[2])


def said_of(one: RunOutcome) -> str:
    """Say what happened to a run that did not answer."""
    if CLOSED in one.why:
        return asks_for_network()
    verbs = {"raised": "raises: ", "unreadable": "returns ", "hangs": "hangs: ", "died": "dies: "}
    return f"{verbs[one.kind]}{one.why}"


def asks_for_network() -> str:
    """Say that a subject needs the network."""
    return f"asks for the network: {CLOSED}, so let it read what it needs from files"


def _require_one_round(shape: str, claim: PrivacyClaim) -> None:
    """Refuse several rounds for a claim of one: what all of them show together does not refute it."""
    rounds = rounds_of(shape) if claim.scope == "round" else None
    if rounds is not None:
        fix = "claim the total, or return the numbers of one round as one flat array"
        raise NoVerdict(
            f"the claim is for one round, and the mechanism returns what looks like {rounds[0]}: {fix}"
        )
