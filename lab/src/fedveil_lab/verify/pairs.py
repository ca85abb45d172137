"""Compare two worlds by pairs of runs that share a seed: what the noise has in common cancels.

Such pairs only rank worlds. A claim is judged by runs whose seeds are independent.
"""

import math
from collections.abc import Sequence

import numpy as np
import scipy

from fedveil_lab.verify.attackers import scale_within, seen
from fedveil_lab.verify.isolation import RunOutcome

CHANCE = 0.02  # that independent noise alone looks like a shift of the furthest coordinate


def alike(one: RunOutcome, other: RunOutcome) -> bool:
    """Whether two runs gave the same answer."""
    return one.label == other.label and np.array_equal(one.numbers, other.numbers, equal_nan=True)


def all_alike(inside: Sequence[RunOutcome], outside: Sequence[RunOutcome]) -> bool:
    """Whether both answers of every pair are the same: nothing of the unit was seen in them."""
    return all(alike(one, other) for one, other in zip(inside, outside, strict=False))


def paired_shift(inside: Sequence[RunOutcome], outside: Sequence[RunOutcome], shape: str) -> float:
    """Estimate how far a world's answers are shifted against the other's, in deviations of one world's answers.

    The mean difference of pairs is exact if both runs of a pair have the same noise. Otherwise the part that chance
    explains is taken off. The shift is that of the furthest coordinate, or of all together if that is larger.

    Parameters
    ----------
    inside, outside : sequence of RunOutcome
        Runs with the unit and without; those at the same place share a seed.
    shape : str
        Shape of the answers that are compared.

    Returns
    -------
    float
        0 if nothing exceeds chance. Very large if a coordinate differs that no seed changes.
    """
    count = min(len(inside), len(outside))
    first, second = seen(inside[:count], shape), seen(outside[:count], shape)
    both = first.whole & second.whole
    if both.sum() < 2 or first.numbers.shape[1] == 0:
        return 0.0
    x, y = first.numbers[both], second.numbers[both]
    pairs = len(x)
    with np.errstate(all="ignore"):
        spread = np.sqrt(scale_within(x, y))
        apart = (x - y) / spread
        middle, error = apart.mean(axis=0), apart.std(axis=0, ddof=1) / math.sqrt(pairs)
        each, one = scipy.special.stdtrit(pairs - 1, [1 - CHANCE / len(middle), 1 - CHANCE])
        furthest = float(np.max(np.abs(middle) - each * error))
        together = float((middle**2 - (one * error) ** 2).sum())
    found = max(0.0, furthest, math.sqrt(max(0.0, together)))
    return found if math.isfinite(found) else 0.0
