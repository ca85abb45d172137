"""Run somebody's mechanism in worst-case worlds: look at all of them, choose one, and judge it on fresh runs.

A quarter of the runs looks at every world. Another quarter looks again at the most telling ones. Then the best world,
attack, direction and threshold are fixed. The other half of the runs is of that world alone and is judged once. So the
whole command makes one statement, at one alpha. A coin decides which of two worlds runs first: a clock, or a counter in
a file, cannot tell them apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from fedveil.errors import FieldError
from fedveil_lab.verify.attackers import FittedAttack, SeenRuns, best_attack, seen, usual_shape
from fedveil_lab.verify.budget import (
    KEPT,
    LEAST,
    Effort,
    planned,
    runs_within,
    shortened,
    stages,
    total,
)
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps, prove
from fedveil_lab.verify.isolation import FreshProcesses, NoVerdict, RunOutcome
from fedveil_lab.verify.judged import INSPECTION, WORLD, Caught, Judged, judge_bounds
from fedveil_lab.verify.measuring import Measurement, at_threshold, measurement
from fedveil_lab.verify.player import Player, Runner, probed
from fedveil_lab.verify.relations import require_neighbours
from fedveil_lab.verify.telling import Named, most_telling, numbered
from fedveil_lab.verify.worlds import LIBRARY, TwoWorlds, require_meaningful

CHOOSING = (
    0.2  # error at which worlds, attackers and thresholds are ranked; of no bound that is printed
)
Say = Callable[[str], None]


def silent(_text: str) -> None:
    """Drop a progress message."""


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
    FieldError
        If the claim's neighbours cannot be shown by lists of arrays, or the file's own worlds are none.
    """
    with FreshProcesses(Path(file), function, timeout=effort.timeout) as processes:
        own = own_worlds(processes, claim)
        played = [*worlds, *own]
        if not played:
            raise FieldError(
                "SUBJECT", function, f"{Path(file).name} has no function worlds(relation, unit)"
            )
        try:
            require_meaningful(claim)
        except FieldError:
            if not own:
                raise
            played = own
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
    named: Named = numbered,
) -> Judged:
    """Look at all worlds, choose one, and judge the claim on it once. The first message to `say` is the budget.

    Parameters
    ----------
    runner : Runner
        Makes the runs.
    worlds : sequence of TwoWorlds
        Pairs in the claimed relation; the mechanism has to answer in the first one.
    claim : PrivacyClaim
        Claim to judge.
    effort : Effort
        Limits on runs, time and error.
    say : callable
        Receives the budget, then progress.
    named : callable
        Turns a number's place and the count of numbers into a name.

    Raises
    ------
    NoVerdict
        If the mechanism does not answer in the first world, or the time ends before a world is chosen.
    """
    delta = 1e-5 if claim.delta is None else claim.delta
    started = monotonic()
    player = Player(runner, worlds, effort.seed, effort.limit)
    each = probed(player, worlds[0].name, claim)
    runs = effort.runs or 0
    if effort.limit is not None:
        runs = runs_within(effort, each, player.left, len(worlds))
    say(planned(runs, each, worlds, claim, effort))
    everything = total(runs, len(worlds))
    looked = look_at_all(player, worlds, runs, claim, delta, say)
    player.require_time(everything)
    if effort.limit is not None:  # worlds with much data take longer than the first one did
        pace = (monotonic() - started) / player.played
        runs = shortened(runs, len(worlds), int(player.left / pace))
    best = look_again(player, looked, runs, claim, delta, say)
    player.require_time(everything)
    count = stages(runs, len(worlds))[2]
    say(
        f"judged in the world {best.world!r} by its {best.attack.name}: {count:,} more runs of each side"
    )
    inside, outside = player.both(best.world, count)
    if best.world in player.hung:
        raise NoVerdict(f"a run in the world {best.world!r} hangs: {player.hung[best.world]}")
    made = min(len(inside), len(outside))
    if made < LEAST:
        player.require_time(everything)
    notes = [f"{player.played:,} runs; apart from one another by: {runner.isolation}"]
    if made < count:
        notes.append(f"{effort.limit:g} s were over after {made:,} of {count:,} runs of each side")
        say(notes[-1])
    if player.hung:
        names = ", ".join(repr(name) for name in player.hung)
        notes.append(f"not judged, as a run did not end there: {names} (--timeout)")
    measured, caught = judged_once(best, inside, outside, claim, delta, effort.alpha)
    world = next(one for one in worlds if one.name == best.world)
    parts = halves(best.inside, best.outside, best.shape)
    told = most_telling(best.attack, *parts, claim.figure, delta, CHOOSING, named)
    used = {
        "runs": player.played,
        "seconds": round(monotonic() - started, 1),
        "seeds": [effort.seed],
    }
    attacker = f"{best.attack.name} ({told})" if told else best.attack.name
    return Judged(
        subject="",
        claim=claim,
        measured=measured,
        world=f"{world.name}: {world.why}; attacker: {attacker}",
        caught=caught,
        effort={**used, "planned runs": runs, "isolation": runner.isolation},
        notes=tuple(notes),
    )


def own_worlds(processes: FreshProcesses, claim: PrivacyClaim) -> list[TwoWorlds]:
    """List the worlds that the mechanism's file defines by its function ``worlds(relation, unit)``.

    Raises
    ------
    FieldError
        If two of them are no neighbours in the claimed relation.
    """
    found = processes.worlds_of_file(claim.relation, claim.unit)
    made = []
    for name, both in found.items():
        if name in LIBRARY:
            raise FieldError(f"worlds: {name}", name, "is a name of the library: choose another")
        inside, outside = both or (None, None)  # which each run makes again
        require_neighbours(name, inside, outside, claim.relation, claim.unit)
        made.append(TwoWorlds(name, "of the mechanism's own file", inside, outside))
    return made


def look_at_all(
    player: Player,
    worlds: Sequence[TwoWorlds],
    runs: int,
    claim: PrivacyClaim,
    delta: float,
    say: Say,
) -> list[Looked]:
    """Make a few runs of every world; return the most telling first. A world in which a run hangs is left out."""
    count = stages(runs, len(worlds))[0]
    found = []
    for one in worlds:
        inside, outside = player.both(one.name, count)
        player.require_time(total(runs, len(worlds)))
        if one.name in player.hung:
            say(f"left out {one.name}: a run hangs: {player.hung[one.name]}")
            continue
        looked = looked_at(one.name, inside, outside, claim, delta)
        found.append(looked)
        say(
            f"looked at {one.name}: {looked.attack.name}, {claim.figure} {max(0.0, looked.attack.value):.2f}"
        )
    return sorted(found, key=lambda one: -one.attack.rank)


def look_again(
    player: Player, looked: Sequence[Looked], runs: int, claim: PrivacyClaim, delta: float, say: Say
) -> Looked:
    """Make more runs of the most telling worlds, and return the one with the best attack.

    Raises
    ------
    NoVerdict
        If a run hangs in every world.
    """
    again = looked[:KEPT]
    count = stages(runs, max(1, len(looked)))[1]
    found = []
    for one in again:
        inside, outside = player.both(one.world, count)
        if one.world in player.hung:
            say(f"left out {one.world}: a run hangs: {player.hung[one.world]}")
            continue
        more = looked_at(one.world, one.inside + inside, one.outside + outside, claim, delta)
        found.append(more)
        say(
            f"looked again at {one.world}: {more.attack.name}, {claim.figure} {max(0.0, more.attack.value):.2f}"
        )
    if not found:
        name, why = next(iter(player.hung.items()))
        raise NoVerdict(f"a run in the world {name!r} hangs: {why}")
    return max(found, key=lambda one: one.attack.rank)


def halves(
    inside: Sequence[RunOutcome], outside: Sequence[RunOutcome], shape: str
) -> tuple[tuple[SeenRuns, SeenRuns], tuple[SeenRuns, SeenRuns]]:
    """Divide runs into those that fit an attack and those that choose one; each pair is in and out."""
    first, second = seen(inside, shape), seen(outside, shape)
    half = min(len(inside), len(outside)) // 2
    fitted = first.take(slice(0, half)), second.take(slice(0, half))
    chosen = first.take(slice(half, None)), second.take(slice(half, None))
    return fitted, chosen


def looked_at(
    world: str,
    inside: list[RunOutcome],
    outside: list[RunOutcome],
    claim: PrivacyClaim,
    delta: float,
) -> Looked:
    """Find the best attack on a world: fitted on one half of its runs, chosen on the other."""
    shape = usual_shape([*inside, *outside])
    attack = best_attack(*halves(inside, outside, shape), claim.figure, delta, CHOOSING)
    return Looked(world, attack, inside, outside, shape)


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
