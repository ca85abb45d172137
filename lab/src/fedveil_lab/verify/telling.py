"""Name what tells two worlds apart in words: the kind of an answer, or one of the returned numbers.

Only runs that chose the world are looked at, never those that judge. What is named bounds nothing.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from fedveil_lab.verify.aims import Aim, Floats
from fedveil_lab.verify.attackers import FittedAttack, SeenRuns

Named = Callable[[int, int], str]
LOOKED_AT = 64  # numbers, those whose laws lie furthest apart, of which each is judged by itself


def numbered(place: int, count: int) -> str:
    """A returned number by its place."""
    return f"number {place + 1} of {count}"


def most_telling(
    attack: FittedAttack,
    fitted: tuple[SeenRuns, SeenRuns],
    chosen: tuple[SeenRuns, SeenRuns],
    aim: Aim,
    named: Named = numbered,
) -> str:
    """Name the kinds of answers that tell, or the number that proves the most by itself; empty if none proves anything.

    Parameters
    ----------
    attack : FittedAttack
        The best one.
    fitted, chosen : tuple of SeenRuns
        Runs with the unit and without: the first choose a threshold for each number, the second say what it proves.
    aim : Aim
        By which it is ranked.
    named : callable
        ``(place, count) -> words``.
    """
    if attack.name == "kind of answer":
        return _kinds(*fitted)
    fitted_in, fitted_out = map(_numbers, fitted)
    chosen_in, chosen_out = map(_numbers, chosen)
    samples = (fitted_in, fitted_out, chosen_in, chosen_out)
    count = fitted_in.shape[1]
    if count < 2 or min(map(len, samples)) < 2:
        return ""
    best, found = 0.0, ""
    for at in furthest(fitted_in, fitted_out):
        middle = float(np.median(fitted_out[:, at]))
        for score in (_value, _far):
            for sign in (1.0, -1.0):
                scores = [sign * score(sample[:, at], middle) for sample in samples]
                threshold = aim.threshold(scores[0], scores[1])
                proven = aim.of(scores[2], scores[3], threshold)
                if proven > best:
                    best, found = proven, named(at, count)
    return found


def furthest(inside: Floats, outside: Floats) -> list[int]:
    """Places of the numbers whose two distributions lie furthest apart anywhere: at most `LOOKED_AT`."""
    both = np.concatenate([inside, outside])
    order = np.argsort(both, axis=0, kind="stable")
    steps = np.where(order < len(inside), 1 / len(inside), -1 / len(outside))
    gaps = np.abs(np.cumsum(steps, axis=0)).max(axis=0)
    return [int(place) for place in np.argsort(-gaps, kind="stable")[:LOOKED_AT]]


def _numbers(runs: SeenRuns) -> Floats:
    """Return the numbers [runs, count] of the runs that gave a whole answer."""
    return runs.numbers[runs.whole]


def _value(numbers: Floats, _middle: float) -> Floats:
    return numbers


def _far(numbers: Floats, middle: float) -> Floats:
    return np.abs(numbers - middle)


def _kinds(inside: SeenRuns, outside: SeenRuns) -> str:
    """The kind of answer that comes more often with the unit, and the one that comes more often without."""
    first, second = Counter(inside.labels), Counter(outside.labels)
    more = {
        one: first[one] / max(1, len(inside)) - second[one] / max(1, len(outside))
        for one in {**first, **second}
    }
    most, least = max(more, key=lambda one: more[one]), min(more, key=lambda one: more[one])
    return "" if most == least else f"{most} with the unit, {least} without"
