"""Attacks that tell two worlds apart by a mechanism's outputs: scores that are fitted on runs of both worlds.

Each attack is fitted on some runs. Its direction and threshold are chosen on other runs. A third part of the runs
judges it.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil_lab.verify.aims import Aim, Floats
from fedveil_lab.verify.isolation import RunOutcome

Scorer = Callable[["SeenRuns"], Floats]
SURE = 1e300  # a score that no number reaches
TINY = 1e-300
SAME = 4  # runs for each different answer, from which on answers are few
PARTED = 2  # runs of each side at least that choose a threshold for others
LARGEST = 1e150  # number that is compared; larger ones count as it
JOINT = 64  # coordinates of which a whole covariance is taken
ROUNDS = 64  # of an output [rounds, numbers], whose rounds are compared


@dataclass(frozen=True)
class SeenRuns:
    """Outputs of several runs, as an adversary compares them.

    Attributes
    ----------
    labels : list of str
        One per run: the shape of its output, its failure, or the kind of its numbers.
    numbers : array
        Numbers that were returned, [runs, d]. NaN where the shape of a run's output is not the usual one.
    whole : array of bool
        Whether the numbers of a run can be compared, [runs].
    shape : str
        Shape of most outputs.
    """

    labels: list[str]
    numbers: Floats
    whole: NDArray[np.bool_]
    shape: str

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: slice) -> "SeenRuns":
        """Return the runs of a slice."""
        return SeenRuns(self.labels[rows], self.numbers[rows], self.whole[rows], self.shape)


def seen(outcomes: Sequence[RunOutcome], shape: str) -> SeenRuns:
    """Collect runs as an adversary compares them; only outputs of the given `shape` have comparable numbers."""
    labels = [one.label for one in outcomes]
    sizes = [
        len(one.numbers) for one, label in zip(outcomes, labels, strict=True) if label == shape
    ]
    numbers = np.full((len(outcomes), sizes[0] if sizes else 0), np.nan)
    whole = np.array([label == shape for label in labels], dtype=bool)
    for row, one in enumerate(outcomes):
        if whole[row]:
            numbers[row] = np.clip(
                np.nan_to_num(one.numbers, nan=0.0), -LARGEST, LARGEST
            )  # the label says NaN
    return SeenRuns(labels, numbers, whole, shape)


def usual_shape(outcomes: Sequence[RunOutcome]) -> str:
    """Return the label that most runs have; of equally frequent ones, the first."""
    return Counter(one.label for one in outcomes).most_common(1)[0][0]


@dataclass(frozen=True)
class FittedAttack:
    """Fitted attack: a score with its direction and threshold.

    Attributes
    ----------
    name : str
        Name of the attack, for reports.
    scorer : callable
        Function that maps `SeenRuns` to scores [runs].
    sign : float
        1 if high scores mean that the unit is in, -1 if low ones do.
    threshold : float
        A signed score of at least this guesses that the unit is in.
    value : float
        Bound that the judged runs show if the rates of the choosing runs hold.
    smooth : float
        The same for two normal laws that overlap as much as the scores of the choosing runs: less a matter of chance
        when these are few.
    """

    name: str
    scorer: Scorer
    sign: float
    threshold: float
    value: float
    smooth: float = 0.0

    @property
    def rank(self) -> float:
        """Value by which attacks and worlds are ranked."""
        return max(self.value, self.smooth)

    def scores(self, runs: SeenRuns) -> Floats:
        """Compute the signed scores [runs] of runs; high means that the unit is in."""
        with np.errstate(all="ignore"):
            return np.nan_to_num(
                self.sign * self.scorer(runs), nan=-SURE, posinf=SURE, neginf=-SURE
            )


Both = tuple[SeenRuns, SeenRuns]


@dataclass(frozen=True)
class Fold:
    """Attacks that are fitted on one half of the runs, and how one of them does on the other half."""

    scorers: dict[str, Scorer]
    chosen: Both

    def scores(self, name: str, sign: float) -> tuple[Floats, Floats]:
        """Compute the signed scores of the runs that choose, in and out."""
        plain = FittedAttack(name, self.scorers[name], sign, 0.0, 0.0)
        return plain.scores(self.chosen[0]), plain.scores(self.chosen[1])


def best_attack(one: Both, other: Both, aim: Aim) -> FittedAttack:
    """Choose the attack, direction and threshold that promise the most.

    Each half of the runs, in and out, chooses among attacks that the other half fits. An attack's rates are those of
    both halves.
    """
    with np.errstate(all="ignore"):
        folds = Fold(fit_all(*one), other), Fold(fit_all(*other), one)
    best: FittedAttack | None = None
    for name in folds[0].scorers:
        able = [fold for fold in folds if name in fold.scorers]
        for sign in (1.0, -1.0):
            found = judged_in(able, name, sign, aim)
            if best is None or found.rank > best.rank:
                best = found
    assert best is not None
    return best


def judged_in(folds: Sequence[Fold], name: str, sign: float, aim: Aim) -> FittedAttack:
    """Rank an attack by its rates in all folds; return it as the best of them fits it."""
    scores = [fold.scores(name, sign) for fold in folds]
    beyond = [one for both in scores for one in beyond_thresholds(*both, aim)]
    inside, outside = (np.concatenate(side) for side in zip(*beyond, strict=True))
    value = aim.of(inside, outside, 0.0)
    smooth = 0.0
    if not any(few_values(np.concatenate(both)) for both in scores):
        smooth = aim.of_shift(float(np.mean([apart(*both) for both in scores])))
    thresholds = [aim.threshold(*both) for both in scores]
    alone = [aim.of(*both, cut) for both, cut in zip(scores, thresholds, strict=True)]
    at = int(np.argmax(alone))
    return FittedAttack(name, folds[at].scorers[name], sign, thresholds[at], value, smooth)


def beyond_thresholds(inside: Floats, outside: Floats, aim: Aim) -> list[tuple[Floats, Floats]]:
    """Subtract from every second run's scores, in and out, a threshold that the other runs choose, and the reverse.

    A threshold flatters the runs that chose it, most of all where only chance parts them. Very few runs choose their own.
    """
    if min(len(inside), len(outside)) < 2 * PARTED:
        cut = aim.threshold(inside, outside)
        return [(inside - cut, outside - cut)]
    parts = [(inside[at::2], outside[at::2]) for at in (0, 1)]
    cuts = [aim.threshold(*part) for part in reversed(parts)]
    return [(part[0] - cut, part[1] - cut) for part, cut in zip(parts, cuts, strict=True)]


def few_values(rows: Floats) -> bool:
    """Whether runs [n] or [n, d] gave few different answers, so that no normal law is like theirs."""
    return len(np.unique(rows, axis=0)) * SAME <= len(rows)


def apart(inside: Floats, outside: Floats) -> float:
    """Distance between two normal laws of deviation 1 that overlap as much as these two samples do."""
    ranks = scipy.stats.rankdata(np.concatenate([inside, outside]))  # ties share theirs
    n, m = len(inside), len(outside)
    area = (float(ranks[:n].sum()) - n * (n + 1) / 2) / (n * m)
    most = most_apart(n, m)
    return min(max(2**0.5 * float(scipy.special.ndtri(area)), -most), most)


def most_apart(inside: int, outside: int) -> float:
    """Largest distance that so many runs of each side show, in deviations."""
    return 2**0.5 * float(scipy.special.ndtri(1 - 0.5 / max(1, inside * outside)))


def fit_all(inside: SeenRuns, outside: SeenRuns) -> dict[str, Scorer]:
    """Fit every attack on runs with the unit and runs without it; return scorers by name."""
    kinds = _kinds(inside, outside)
    found: dict[str, Scorer] = {"kind of answer": kinds}
    x, y = inside.numbers[inside.whole], outside.numbers[outside.whole]
    if min(len(x), len(y)) < 2 or x.shape[1] == 0:
        return found
    numeric = {
        "direction": _direction(x, y),
        "one coordinate": _coordinate(x, y),
        "length": _length,
        "distance from the other world": _distance(y),
        "distance from this world": _distance(x),
        "exact values": _exact(x, y),
    }
    if 1 < x.shape[1] <= JOINT:
        numeric["joint direction"] = _joint(x, y)
    rounds = rounds_of(inside.shape)
    if rounds is not None:
        numeric["closest rounds"] = _closest_rounds(*rounds)
        mean = _mean_of(*rounds)
        numeric["mean of rounds"] = _after(mean, _direction(mean(x), mean(y)))
        between = _between(*rounds)
        numeric["differences of rounds"] = _after(between, _coordinate(between(x), between(y)))
    for name, score in numeric.items():
        found[name] = _or_kind(score, kinds)
    return found


def _kinds(inside: SeenRuns, outside: SeenRuns) -> Scorer:
    """Score a run by how much more often its kind of answer came with the unit than without."""
    first, second = Counter(inside.labels), Counter(outside.labels)

    def score(runs: SeenRuns) -> Floats:
        odds = [np.log((first[one] + 0.5) / (second[one] + 0.5)) for one in runs.labels]
        return np.array(odds)

    return score


def _or_kind(score: Callable[[Floats], Floats], kinds: Scorer) -> Scorer:
    """Score a run by its numbers, or by the kind of its answer if its numbers cannot be compared."""

    def either(runs: SeenRuns) -> Floats:
        found = np.sign(kinds(runs)) * SURE
        if runs.whole.any():
            found[runs.whole] = score(runs.numbers[runs.whole])
        return found

    return either


def scale_within(x: Floats, y: Floats) -> Floats:
    """Variance within both worlds [d], kept above 0 so that it can divide."""
    largest = np.maximum(np.abs(x).max(axis=0), np.abs(y).max(axis=0))
    within: Floats = (x.var(axis=0) + y.var(axis=0)) / 2 + 1e-26 * largest**2 + TINY
    return within


def _direction(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """Weight each coordinate by its shift between the worlds, divided by its own noise variance."""
    weights, middle = (x.mean(0) - y.mean(0)) / scale_within(x, y), (x.mean(0) + y.mean(0)) / 2
    return lambda z: (z - middle) @ weights


def _coordinate(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """Score by a single coordinate: the one whose means differ most between the worlds, in standard deviations."""
    at = int(np.argmax(np.abs(x.mean(0) - y.mean(0)) / np.sqrt(scale_within(x, y))))
    return lambda z: z[:, at]


def _joint(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """Score by Fisher's linear discriminant, which removes noise that several coordinates share."""
    scale = np.sqrt(scale_within(x, y))
    a, b = x / scale, y / scale
    covariance = (np.cov(a, rowvar=False) + np.cov(b, rowvar=False)) / 2
    ridge = 1e-9 if len(x) > 2 * x.shape[1] else 0.1
    weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), a.mean(0) - b.mean(0))
    middle = (a.mean(0) + b.mean(0)) / 2
    return lambda z: (z / scale - middle) @ weights


def _length(z: Floats) -> Floats:
    """Logarithm of the Euclidean length of all numbers that were returned."""
    found: Floats = np.log(np.linalg.norm(z, axis=1) + TINY)
    return found


def _distance(x: Floats) -> Callable[[Floats], Floats]:
    """Score by the distance from a world's mean, in units of its spread; it detects noise of a different size."""
    middle, scale = np.median(x, axis=0), np.sqrt(scale_within(x, x))
    return lambda z: np.log(np.linalg.norm((z - middle) / scale, axis=1) + TINY)


def _exact(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """Score by how much more often exactly these numbers occurred in one world; it detects choices and noise of few values."""
    first, second = Counter(row.tobytes() for row in x), Counter(row.tobytes() for row in y)

    def score(z: Floats) -> Floats:
        rows = [row.tobytes() for row in z]
        return np.array([np.log((first[row] + 0.5) / (second[row] + 0.5)) for row in rows])

    return score


def rounds_of(shape: str) -> tuple[int, int] | None:
    """Return the number of rounds, and of numbers per round, of an array [rounds, numbers] or equal arrays; else None."""
    arrays = [
        tuple(int(size) for size in re.findall(r"\d+", one))
        for one in re.findall(r"\(([^)]*)\)", shape)
    ]
    if shape != " ".join(str(sizes) for sizes in arrays) or len({*arrays}) != 1:
        return None
    if len(arrays) > 1:
        rounds, numbers = len(arrays), math.prod(arrays[0])
    elif len(arrays[0]) == 2:
        rounds, numbers = arrays[0]
    else:
        return None
    return (rounds, numbers) if 2 <= rounds <= ROUNDS and numbers else None


def _mean_of(rounds: int, numbers: int) -> Callable[[Floats], Floats]:
    """Average over rounds, [runs, numbers]: independent noise of several rounds averages out."""
    return lambda z: z.reshape(len(z), rounds, numbers).mean(axis=1)


def _between(rounds: int, numbers: int) -> Callable[[Floats], Floats]:
    """Change from each round to the next, [runs, (rounds - 1) numbers]."""
    return lambda z: np.diff(z.reshape(len(z), rounds, numbers), axis=1).reshape(len(z), -1)


def _after(
    first: Callable[[Floats], Floats], then: Callable[[Floats], Floats]
) -> Callable[[Floats], Floats]:
    """Compose two functions: `then` is applied to the result of `first`."""
    return lambda z: then(first(z))


def _closest_rounds(rounds: int, numbers: int) -> Callable[[Floats], Floats]:
    """Score by the distance of the two closest rounds: noise that is used twice cancels, and only the data remain."""
    first, second = np.triu_indices(rounds, 1)

    def score(z: Floats) -> Floats:
        each = z.reshape(len(z), rounds, numbers)
        gaps = np.linalg.norm(each[:, first] - each[:, second], axis=2)
        found: Floats = np.log(gaps.min(axis=1) + TINY)
        return found

    return score
