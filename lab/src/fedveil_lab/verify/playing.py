"""Run somebody's mechanism in worst-case worlds: look at all of them, choose one, and judge it on fresh runs.

A quarter of the runs looks at every world. Another quarter looks again at the most telling ones. Then the best world,
attack, direction and threshold are fixed. The other half of the runs is of that world alone and is judged once. So the
whole command makes one statement, at one alpha.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedveil.errors import FieldError, require_count, require_number
from fedveil_lab.verify.attackers import FittedAttack, best_attack, seen, usual_shape
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps, prove
from fedveil_lab.verify.isolation import FreshProcesses, NoVerdict, RunOutcome
from fedveil_lab.verify.judged import INSPECTION, WORLD, Caught, Judged, judge_bounds
from fedveil_lab.verify.measuring import ALPHA, Measurement, at_threshold, measurement
from fedveil_lab.verify.worlds import TwoWorlds

SIDES = ("in", "out")
LOOKED, FINAL = 0.25, 0.5  # of all runs: for a look at every world, and for the judgement
KEPT = 4  # worlds that are looked at again
LEAST = 8  # runs of a side of a world
CHOOSING = (
    0.2  # error at which worlds, attackers and thresholds are ranked; of no bound that is printed
)
Say = Callable[[str], None]


def silent(_text: str) -> None:
    """Drop a progress message."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Limits on runs and time.

    Attributes
    ----------
    runs : int, optional
        Number of runs in all. Default: as many as fit into `seconds`.
    seconds : float
        Time limit of the whole test.
    timeout : float
        Seconds that one run may take.
    seed : int
        Seed from which the seed of every run is drawn.
    alpha : float
        Probability that the lower bound is too large.
    """

    runs: int | None = None
    seconds: float = 60.0
    timeout: float = 30.0
    seed: int = 0
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        if self.runs is not None:
            require_count("--runs", self.runs, least=32)
        require_number("--seconds", self.seconds, lambda s: 1 <= s <= 1e6, "must be at least 1")
        require_number("--timeout", self.timeout, lambda s: 0 < s <= 1e5, "must be above 0")
        require_count("--seed", self.seed, least=0, most=2**32 - 1)
        require_number(
            "--alpha", self.alpha, lambda a: 0 < a < 0.5, "must be above 0 and below 0.5"
        )


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
    """Run a mechanism on both sides of worlds, each time with a new seed.

    Parameters
    ----------
    runner : Runner
        Makes the runs.
    worlds : sequence of TwoWorlds
        Pairs of neighbouring worlds.
    seed : int
        Seed from which the seeds of runs are drawn; no two runs have the same one.
    """

    def __init__(self, runner: Runner, worlds: Sequence[TwoWorlds], seed: int) -> None:
        self.runner = runner
        self._rng = np.random.default_rng(seed)
        self._used: set[int] = set()
        self.played = 0
        for one in worlds:
            for side, data in zip(SIDES, (one.inside, one.outside), strict=True):
                if data is not None:
                    runner.hold(f"{one.name}: {side}", data)

    def run(self, world: str, side: str, seed: int | None = None) -> RunOutcome:
        """Run the mechanism once on one side of a world."""
        self.played += 1
        return self.runner.run(f"{world}: {side}", self._seed() if seed is None else seed)

    def both(self, world: str, count: int) -> tuple[list[RunOutcome], list[RunOutcome]]:
        """Run each side `count` times, in turn, so that slow changes of the machine affect both sides equally."""
        inside, outside = [], []
        for _ in range(count):
            inside.append(self.run(world, "in"))
            outside.append(self.run(world, "out"))
        return inside, outside

    def _seed(self) -> int:
        while True:
            drawn = int(self._rng.integers(2**32))
            if drawn not in self._used:
                self._used.add(drawn)
                return drawn


@dataclass(frozen=True)
class Looked:
    """Runs of one world, and the best attack on them.

    Attributes
    ----------
    world : str
        Name of the world.
    attack : FittedAttack
        Best attack on the world.
    inside, outside : list of RunOutcome
        Runs so far with the unit and without.
    shape : str
        Shape of the outputs that are compared.
    """

    world: str
    attack: FittedAttack
    inside: list[RunOutcome]
    outside: list[RunOutcome]
    shape: str


def verify_mechanism(
    file: str | Path,
    function: str,
    claim: PrivacyClaim,
    worlds: Sequence[TwoWorlds],
    *,
    effort: Effort,
    steps: MechanismSteps | None = None,
    say: Say = silent,
    subject: str = "",
) -> Judged:
    """Judge a privacy claim of any Python function by running it in fresh processes.

    Parameters
    ----------
    file, function : path, str
        File and name of the function ``(data, seed)``.
    claim : PrivacyClaim
        The claim to test.
    worlds : sequence of TwoWorlds
        Pairs of neighbouring worlds in the claimed relation. The mechanism must answer in the first one. Its file may
        define more by a function ``worlds(relation, unit)``, which returns ``{name: (data in, data out)}``.
    effort : Effort
        Limits on runs and time, and the error.
    steps : MechanismSteps, optional
        Steps of the mechanism, from which epsilon is also computed.
    say : callable
        Receives progress messages, the budget first.
    subject : str
        Name of the mechanism in the report.

    Raises
    ------
    NoVerdict
        If the mechanism raises, hangs or changes its output shape from run to run already in the first world.
    """
    with FreshProcesses(Path(file), function, timeout=effort.timeout) as processes:
        own = own_worlds(processes, claim)
        played = [*worlds, *own] if worlds else own
        if not played:
            raise FieldError(
                "SUBJECT", function, f"{Path(file).name} has no function worlds(relation, unit)"
            )
        judged = play(processes, played, claim, effort, say)
    proven = None if steps is None else prove(steps, claim)
    return replace(
        judged,
        subject=subject or f"{Path(file).name}:{function}",
        proven=proven,
        caught=(*judged.caught, *judge_bounds(claim, None, WORLD, proven=proven)),
    )


def play(
    runner: Runner,
    worlds: Sequence[TwoWorlds],
    claim: PrivacyClaim,
    effort: Effort,
    say: Say = silent,
) -> Judged:
    """Look at all worlds, choose one, and judge the claim on it once. The first message to `say` is the budget."""
    delta = 1e-5 if claim.delta is None else claim.delta
    started = time.monotonic()
    player = Player(runner, worlds, effort.seed)
    each = probed(player, worlds[0].name)
    runs = effort.runs or max(100, int((effort.seconds - (time.monotonic() - started)) / each))
    say(planned(runs, each, worlds, claim, effort))
    looked = look_at_all(player, worlds, runs, claim, delta, say)
    if effort.runs is None:  # worlds with much data take longer than the first one did
        spent = time.monotonic() - started
        runs = min(runs, player.played + int((effort.seconds - spent) * player.played / spent))
    best = look_again(player, looked, runs, claim, delta, say)
    count = stages(runs, len(worlds))[2]
    say(
        f"judged in the world {best.world!r} by its {best.attack.name}: {count:,} more runs of each side"
    )
    inside, outside = player.both(best.world, count)
    measured, caught = judged_once(best, inside, outside, claim, delta, effort.alpha)
    world = next(one for one in worlds if one.name == best.world)
    used = {
        "runs": player.played,
        "seconds": round(time.monotonic() - started, 1),
        "seeds": [effort.seed],
    }
    return Judged(
        subject="",
        claim=claim,
        measured=measured,
        world=f"{world.name}: {world.why}; attacker: {best.attack.name}",
        caught=caught,
        effort={**used, "planned runs": runs, "isolation": runner.isolation},
        notes=(f"{player.played:,} runs; apart from one another by: {runner.isolation}",),
    )


def own_worlds(processes: FreshProcesses, claim: PrivacyClaim) -> list[TwoWorlds]:
    """List the worlds that the mechanism's file defines by its function ``worlds(relation, unit)``."""
    names = processes.names_of_worlds(claim.relation, claim.unit)
    return [TwoWorlds(name, "of the mechanism's own file", None, None) for name in names]


def probed(player: Player, world: str) -> float:
    """Measure the seconds of one run; `NoVerdict` if the mechanism does not answer in a plain world."""
    outcomes: list[RunOutcome] = []
    started = 0.0
    for number in range(7):
        if number == 1:
            started = time.monotonic()  # the first run waits for the libraries
        one = player.run(world, SIDES[number % 2])
        if one.kind != "ok":
            raise NoVerdict(f"no verdict: in the world {world!r} the mechanism {said_of(one)}")
        if len(one.numbers) == 0:
            raise NoVerdict("no verdict: the mechanism returns no number at all")
        outcomes.append(one)
    shapes = sorted({one.shape for one in outcomes[::2]})
    if len(shapes) > 1:
        raise NoVerdict(
            f"no verdict: the mechanism returns another shape each time, {' and '.join(shapes[:2])}"
        )
    return max(1e-4, (time.monotonic() - started) / (len(outcomes) - 1))


def said_of(one: RunOutcome) -> str:
    """Say what happened to a run that did not answer."""
    verbs = {"raised": "raises", "hangs": "hangs", "died": "dies"}
    return f"{verbs.get(one.kind, one.kind)}: {one.why}"


def planned(
    runs: int, each: float, worlds: Sequence[TwoWorlds], claim: PrivacyClaim, effort: Effort
) -> str:
    """Say the budget in one sentence, with the largest bound that it can prove."""
    looks, again, count = stages(runs, len(worlds))
    total = 2 * (looks * len(worlds) + again * min(KEPT, len(worlds)) + count)
    bounds = at_threshold(
        np.ones(count), np.zeros(count), 0.5, delta=claim.delta or 0.0, alpha=effort.alpha
    )
    ceiling = next(one.ceiling for one in bounds if one.figure == claim.figure)
    reach = f"at most {claim.figure} {ceiling:.2f} can be shown at confidence {1 - effort.alpha:g}"
    if ceiling <= claim.most:
        reach += f", so that a claim of {claim.most:.3g} is out of reach"
    return f"{total:,} runs in {len(worlds)} worlds, about {total * each:.0f} s; {reach}"


def stages(runs: int, worlds: int) -> tuple[int, int, int]:
    """Divide the runs per side: for every world, for the most telling worlds, and for the judgement."""
    looks = max(LEAST, int(LOOKED * runs / worlds / 2))
    again = max(LEAST, int((1 - LOOKED - FINAL) * runs / min(KEPT, worlds) / 2))
    return looks, again, max(LEAST, int(FINAL * runs / 2))


def look_at_all(
    player: Player,
    worlds: Sequence[TwoWorlds],
    runs: int,
    claim: PrivacyClaim,
    delta: float,
    say: Say,
) -> list[Looked]:
    """Make a few runs of every world; worlds in which neither side answers are left out."""
    count = stages(runs, len(worlds))[0]
    found = []
    for one in worlds:
        inside, outside = player.both(one.name, count)
        looked = looked_at(one.name, inside, outside, claim, delta)
        found.append(looked)
        say(
            f"looked at {one.name}: {looked.attack.name}, {claim.figure} {max(0.0, looked.attack.value):.2f}"
        )
    return sorted(found, key=lambda one: -one.attack.rank)


def look_again(
    player: Player, looked: Sequence[Looked], runs: int, claim: PrivacyClaim, delta: float, say: Say
) -> Looked:
    """Make more runs of the most telling worlds, and return the one with the best attack."""
    again = looked[:KEPT]
    count = stages(runs, len(looked))[1]
    found = []
    for one in again:
        inside, outside = player.both(one.world, count)
        more = looked_at(one.world, one.inside + inside, one.outside + outside, claim, delta)
        found.append(more)
        say(
            f"looked again at {one.world}: {more.attack.name}, {claim.figure} {max(0.0, more.attack.value):.2f}"
        )
    return max(found, key=lambda one: one.attack.rank)


def looked_at(
    world: str,
    inside: list[RunOutcome],
    outside: list[RunOutcome],
    claim: PrivacyClaim,
    delta: float,
) -> Looked:
    """Find the best attack on a world: fitted on one half of its runs, chosen on the other."""
    shape = usual_shape([*inside, *outside])
    first, second = seen(inside, shape), seen(outside, shape)
    half = len(inside) // 2
    fitted = first.take(slice(0, half)), second.take(slice(0, half))
    chosen = first.take(slice(half, None)), second.take(slice(half, None))
    return Looked(
        world, best_attack(fitted, chosen, claim.figure, delta, CHOOSING), inside, outside, shape
    )


def judged_once(
    best: Looked,
    inside: Sequence[RunOutcome],
    outside: Sequence[RunOutcome],
    claim: PrivacyClaim,
    delta: float,
    alpha: float,
) -> tuple[Measurement, tuple[Caught, ...]]:
    """Judge the claim on fresh runs, with the attack that was chosen before."""
    first, second = seen(inside, best.shape), seen(outside, best.shape)
    scores = best.attack.scores(first), best.attack.scores(second)
    bounds = at_threshold(*scores, best.attack.threshold, delta=delta, alpha=alpha)
    measured = measurement(*scores, "runs", bounds, alpha)
    caught = judge_bounds(claim, measured, WORLD, best.world)
    if without_seed(inside, outside):
        what = f"in the world {best.world!r} the outputs differ, and none of {len(inside)} seeds changes either of them"
        # rare noise looks the same in few runs: beyond their ceiling it is for a reader of the code to say
        beyond = not caught
        caught = (Caught(INSPECTION if beyond else WORLD, what, not beyond), *caught)
    return measured, caught


def without_seed(inside: Sequence[RunOutcome], outside: Sequence[RunOutcome]) -> bool:
    """Whether each side returns the same numbers for every seed, and the sides differ: there is no noise."""
    kinds = []
    for side in (inside, outside):
        outputs = {(one.label, one.numbers.tobytes()) for one in side}
        if len(outputs) > 1:
            return False
        kinds.append(outputs)
    return kinds[0] != kinds[1]
