"""Choose the worlds that are judged: a look at all of them, another one at the most telling, and the best attack.

Both runs of a pair have the same seed here, so that worlds are compared without the noise they share. What is chosen is
judged by other runs, with seeds of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from fedveil_lab.verify.aims import Aim
from fedveil_lab.verify.attackers import (
    FittedAttack,
    SeenRuns,
    best_attack,
    few_values,
    most_apart,
    seen,
    usual_shape,
)
from fedveil_lab.verify.budget import FINAL, KEPT, LOOKED, Stages
from fedveil_lab.verify.isolation import NoVerdict, RunOutcome
from fedveil_lab.verify.pairs import all_alike, paired_shift
from fedveil_lab.verify.player import Player
from fedveil_lab.verify.worlds import TwoWorlds

NO_NOISE = 1e3  # deviations beyond which a shift is that of a number without noise
MISSED = 3  # standard errors, or seeds with an effect, that a look needs to notice it
Say = Callable[[str], None]


@dataclass(frozen=True)
class Looked:
    """Runs of one world, and the best attack on them.

    Attributes
    ----------
    world : TwoWorlds
        The pair of worlds.
    attack : FittedAttack
        Best attack on the world.
    inside, outside : list of RunOutcome
        Runs so far with the unit and without; those at the same place share a seed.
    shape : str
        Shape of the outputs that are compared.
    shift : float
        Shift of the answers in pairs, in deviations of one world's answers.
    alike : bool
        Whether both answers of every pair were the same.
    promise : float
        Bound that the judged runs may show in this world, by the attack or by the shift. A shift promises no more than
        an attack that never errs in these runs.
    """

    world: TwoWorlds
    attack: FittedAttack
    inside: list[RunOutcome]
    outside: list[RunOutcome]
    shape: str
    shift: float
    alike: bool
    promise: float

    @property
    def worth(self) -> tuple[bool, float, float]:
        """Values by which worlds are ranked, the more telling one higher."""
        return not self.alike, self.promise, self.shift

    def told(self, figure: str) -> str:
        """Say in words what the runs showed."""
        if self.alike:
            return f"both answers were alike under each of {len(self.inside)} seeds"
        how = f"may show {figure} {max(0.0, self.promise):.2f}, by the attack {self.attack.name!r}"
        if self.shift > NO_NOISE:
            return f"{how}; a number differs that {len(self.inside)} seeds hardly changed"
        return f"{how}; the answers shift by {self.shift:.2g} times their spread"


def look_at_all(
    player: Player,
    worlds: Sequence[TwoWorlds],
    stages: Stages,
    aim: Aim,
    say: Say,
) -> list[Looked]:
    """Make a few pairs of runs of every world. A world in which a run hangs is left out.

    All worlds together take `LOOKED` of the seconds, however long a run or an attack on it takes.
    """
    found = []
    until = monotonic() + LOOKED * player.left
    for number, one in enumerate(worlds):
        share = (until - monotonic()) / (len(worlds) - number)
        inside, outside = player.both(one.name, stages.looks, same_seed=True, seconds=share)
        player.require_time(stages.total)
        if one.name in player.hung:
            say(f"left out {one.name}: a run hangs: {player.hung[one.name]}")
            continue
        looked = looked_at(one, inside, outside, aim)
        found.append(looked)
        say(f"looked at {one.name}: {looked.told(aim.figure)}")
    return found


def kept(looked: Sequence[Looked]) -> list[Looked]:
    """Choose the worlds that are looked at again: those of an author, and the most telling ones of the library.

    The paired shift and the best attack name one in turn. The first is sharp where noise follows the seed. The second
    sees other effects too: a change of spread, of kinds of answers, or of rounds.
    """
    library = [one for one in looked if not one.world.of_author]
    by_shift = sorted(library, key=lambda one: (one.alike, -one.shift))
    by_attack = sorted(library, key=lambda one: (one.alike, -one.attack.rank))
    chosen: dict[str, Looked] = {}
    for pair in zip(by_shift, by_attack, strict=True):
        for one in pair:
            if len(chosen) < KEPT:
                chosen[one.world.name] = one
    return [*(one for one in looked if one.world.of_author), *chosen.values()]


def look_again(
    player: Player,
    looked: Sequence[Looked],
    stages: Stages,
    aim: Aim,
    say: Say,
) -> list[Looked]:
    """Make more pairs of runs of the worlds that are kept; return the most telling first.

    Raises
    ------
    NoVerdict
        If a run hangs in every world.
    """
    found = []
    again = kept(looked)
    until = monotonic() + (1 - LOOKED - FINAL) / (1 - LOOKED) * player.left
    for number, one in enumerate(again):
        share = (until - monotonic()) / (len(again) - number)
        name = one.world.name
        inside, outside = player.both(name, stages.again, same_seed=True, seconds=share)
        if one.world.name in player.hung:
            say(f"left out {one.world.name}: a run hangs: {player.hung[one.world.name]}")
            continue
        more = looked_at(one.world, one.inside + inside, one.outside + outside, aim)
        found.append(more)
        say(f"looked again at {one.world.name}: {more.told(aim.figure)}")
    if not found:
        name, why = next(iter(player.hung.items()))
        raise NoVerdict(f"a run in the world {name!r} hangs: {why}")
    return sorted(found, key=lambda one: one.worth, reverse=True)


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
    world: TwoWorlds, inside: list[RunOutcome], outside: list[RunOutcome], aim: Aim
) -> Looked:
    """Find the best attack on a world; each half of its runs chooses among those that the other half fits."""
    shape = usual_shape([*inside, *outside])
    attack = best_attack(*halves(inside, outside, shape), aim)
    shift = paired_shift(inside, outside, shape)
    reached = min(shift, most_apart(len(inside) // 2, len(outside) // 2))
    promise = attack.rank
    both = seen([*inside, *outside], shape)
    if not few_values(both.numbers[both.whole]):
        promise = max(promise, aim.of_shift(reached))
    same = all_alike(inside, outside)
    return Looked(world, attack, inside, outside, shape, shift, same, promise)


def reach_of(looked: Sequence[Looked], again: Sequence[Looked], repeats: bool) -> list[str]:
    """Say how the judged world was chosen, and what this choice can have missed.

    Parameters
    ----------
    looked, again : sequence of Looked
        Worlds of the first look and of the second.
    repeats : bool
        Whether a seed gave the same answer twice.
    """
    first = max(len(one.outside) for one in looked)
    then = max(len(one.outside) for one in again)
    made = f"up to {first} pairs of runs in each of {len(looked)} worlds, then {then - first} in {len(again)} of them"
    notes = [f"the judged world was chosen by {made}"]
    if repeats:
        seeds = max(2, first // MISSED)
        rare = f"a fault that shows with fewer than one seed in {seeds} can have been missed: more runs find rarer ones"
        notes.append(
            f"a seed repeats its answer, and the runs of a pair shared one: a shift of any size shows, but {rare}"
        )
    else:
        size = MISSED * (2 / first) ** 0.5
        notes.append(
            f"a seed does not repeat an answer: a shift below {size:.2g} times the answers' spread can have been missed"
        )
    dead = [one for one in looked if one.alike]
    if all(one.alike for one in again):
        fix = "let worlds(relation, unit) make some that it moves"
        notes.append(
            f"in no world did the unit reach the answers: both were alike under each of {then} seeds; {fix}"
        )
    elif dead:
        names = ", ".join(one.world.name for one in dead)
        fewest = min(len(one.outside) for one in dead)
        silent = f"{len(dead)} of {len(looked)} worlds say nothing of this function, as the unit did not reach the answers"
        fix = "worlds(relation, unit) adds data of its own kind"
        notes.append(f"{silent} (under {fewest} seeds or more): {names}; {fix}")
    return notes
