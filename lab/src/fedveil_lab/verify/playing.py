"""Play somebody's mechanism in worst-case worlds: look at all of them, choose on one half, judge on the other.

A quarter of the runs looks at every world, a quarter at the most telling ones; the best world, attacker, direction and
threshold are then fixed. The other half of the runs is of that world alone and is judged once: the whole command makes
one statement, at one alpha.
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
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Limits on runs and time.

    Attributes
    ----------
    runs : int, optional
        In all; by default as many as fit into `seconds`.
    seconds : float
        For all of it.
    timeout : float
        For one run.
    seed : int
        From which every run's own is drawn.
    alpha : float
        Error of the one statement.
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
    """Maker of runs."""

    @property
    def isolation(self) -> str:
        """Isolation of the runs, in words."""

    def hold(self, world: str, data: Any) -> None:
        """Keep a world's data for its runs."""

    def run(self, world: str, seed: int) -> RunOutcome:
        """One run."""


class Player:
    """Runs of both sides of worlds, each with a seed of its own.

    Parameters
    ----------
    runner : Runner
        Where they run.
    worlds : sequence of TwoWorlds
        That are played.
    seed : int
        From which the seeds are drawn; no two runs share one.
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
        """One run."""
        self.played += 1
        return self.runner.run(f"{world}: {side}", self._seed() if seed is None else seed)

    def both(self, world: str, count: int) -> tuple[list[RunOutcome], list[RunOutcome]]:
        """So many runs of each side, in turn, so that what changes with time is the same for both."""
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
    """Findings of a look at one world.

    Attributes
    ----------
    world : str
        Its name.
    attack : FittedAttack
        The best one.
    inside, outside : list of RunOutcome
        The runs so far.
    shape : str
        Of the answers that it compares.
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
    """Judge a claim of anybody's function by runs in fresh processes.

    Parameters
    ----------
    file, function : path, str
        Where the mechanism is: ``function(data, seed)``.
    claim : PrivacyClaim
        What it promises.
    worlds : sequence of TwoWorlds
        In the claimed relation; the first has to be answered. The file may bring more by a function
        ``worlds(relation, unit)``, which returns ``{name: (data in, data out)}``.
    effort : Effort
        Runs, time and error.
    steps : MechanismSteps, optional
        What it does, for what can be proven.
    say : callable
        Is told the budget first, and how it goes.
    subject : str
        For the page.

    Raises
    ------
    NoVerdict
        If the mechanism raises, hangs, or returns another shape each time, in the first world already.
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
    """Look at all worlds, choose one, and judge once; the budget is said first."""
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
    """Worlds that the mechanism's file brings itself, by its function ``worlds(relation, unit)``."""
    names = processes.names_of_worlds(claim.relation, claim.unit)
    return [TwoWorlds(name, "of the mechanism's own file", None, None) for name in names]


def probed(player: Player, world: str) -> float:
    """Seconds of a run; a mechanism that does not answer where everything is plain gets no verdict."""
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
    """Say what became of a run that did not answer."""
    verbs = {"raised": "raises", "hangs": "hangs", "died": "dies"}
    return f"{verbs.get(one.kind, one.kind)}: {one.why}"


def planned(
    runs: int, each: float, worlds: Sequence[TwoWorlds], claim: PrivacyClaim, effort: Effort
) -> str:
    """The budget in one sentence, with the most that it can prove."""
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
    """Runs of each side: of every world, again of the most telling ones, and for the judgement."""
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
    """A few runs of every world; where neither side answers, there is nothing to see."""
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
    """Play more runs of the most telling worlds, and return the best result."""
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
    """The best attack on a world: fitted on one half of these runs, chosen on the other."""
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
    """Fresh runs at the attack that others chose."""
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
    """Whether each side returns the same numbers whatever the seed, and the sides differ."""
    kinds = []
    for side in (inside, outside):
        outputs = {(one.label, one.numbers.tobytes()) for one in side}
        if len(outputs) > 1:
            return False
        kinds.append(outputs)
    return kinds[0] != kinds[1]
