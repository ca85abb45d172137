"""Run somebody's mechanism in worst-case worlds: look at all of them, choose one, and judge it on fresh runs.

Three runs of ten look at every world. Two of ten look again at the most telling ones (`screening`). Then the
best world, attack, direction and threshold are fixed. The other half of the runs is of that world alone and is judged
once, with seeds of their own. So the whole command makes one statement, at one alpha. A coin decides which of two
worlds runs first: a clock, or a counter in a file, cannot tell them apart.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from fedveil.errors import FieldError
from fedveil_lab.verify.aims import Aim
from fedveil_lab.verify.attackers import seen
from fedveil_lab.verify.budget import LEAST, MOST, Effort, Stages, planned, runs_within
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps, prove
from fedveil_lab.verify.isolation import FreshProcesses, NoVerdict, RunOutcome
from fedveil_lab.verify.judged import INSPECTION, WORLD, Caught, Judged, judge_bounds
from fedveil_lab.verify.measuring import Measurement, at_threshold, measurement
from fedveil_lab.verify.more_runs import Spent, what_more_shows
from fedveil_lab.verify.player import FASTEST, Player, Runner, probed
from fedveil_lab.verify.relations import require_neighbours
from fedveil_lab.verify.screening import (
    Looked,
    Say,
    halves,
    look_again,
    look_at_all,
    reach_of,
)
from fedveil_lab.verify.telling import Named, most_telling, numbered
from fedveil_lab.verify.worlds import LIBRARY, TwoWorlds, require_meaningful

SPENT = 0.95  # of the seconds that are left, which the judged runs are planned to take


def silent(_text: str) -> None:
    """Drop a progress message."""


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
    each, repeats = probed(player, worlds[0].name, claim)
    sizes = len(worlds), sum(one.of_author for one in worlds)
    stages = Stages(effort.runs or 0, *sizes)
    if effort.limit is not None:
        stages = runs_within(effort, each, player.left, *sizes)
    say(planned(stages, each, claim, effort))
    aim = Aim(claim.figure, delta, effort.alpha, stages.judged)
    looked = look_at_all(player, worlds, stages, aim, say)
    player.require_time(stages.total)
    if effort.limit is not None:  # other worlds may take longer than the first one, or less long
        pace = (monotonic() - started) / player.played
        stages = stages.again_within(int(player.left / pace), effort.runs or MOST)
        aim = replace(aim, runs=stages.judged)
    again = look_again(player, looked, stages, aim, say)
    best, name = again[0], again[0].world.name
    player.require_time(stages.total)
    count = stages.judged
    if effort.limit is not None and effort.runs is None:
        count = max(LEAST, int(SPENT * player.left / max(player.paces[name], FASTEST) / 2))
    say(
        f"judged in the world {name!r} by the attack {best.attack.name!r}: {count:,} more runs of each side"
    )
    inside, outside = player.both(name, count)
    if name in player.hung:
        raise NoVerdict(f"a run in the world {name!r} hangs: {player.hung[name]}")
    made = min(len(inside), len(outside))
    if made < LEAST:
        player.require_time(stages.total)
    notes = [f"{player.played:,} runs; each in {runner.isolation}"]
    if made < count:
        notes.append(f"{effort.limit:g} s were over after {made:,} of {count:,} runs of each side")
        say(notes[-1])
    notes += reach_of(looked, again, repeats)
    if player.hung:
        names = ", ".join(repr(name) for name in player.hung)
        notes.append(f"not judged, as a run did not end there: {names} (--timeout)")
    measured, caught = judged_once(best, inside, outside, claim, delta, effort.alpha)
    parts = halves(best.inside, best.outside, best.shape)
    told = most_telling(best.attack, *parts, aim, named)
    seconds = monotonic() - started
    if not any(one.refutes for one in caught):
        notes[1:1] = what_more_shows(claim, effort, Spent(made, player.played, seconds))
    used = {"runs": player.played, "seconds": round(seconds, 1), "seeds": [effort.seed]}
    attacker = f"{best.attack.name} ({told})" if told else best.attack.name
    why = best.world.why if best.world.of_author else f"it looks for this: {best.world.why}"
    return Judged(
        subject="",
        claim=claim,
        measured=measured,
        world=f"{name}: {why}; attacker: {attacker}",
        caught=caught,
        effort={**used, "planned runs": stages.runs, "isolation": runner.isolation},
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
        made.append(TwoWorlds(name, "of the mechanism's own file", inside, outside, of_author=True))
    return made


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
    name = best.world.name
    caught = judge_bounds(claim, measured, WORLD, name)
    if without_seed(inside, outside):
        what = f"in the world {name!r} the outputs differ, and none of {len(inside)} seeds changes either of them"
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
