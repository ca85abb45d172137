"""Discrete Gaussian noise on an integer grid, so that floating-point rounding leaks nothing.

The law is that of Canonne, Kamath and Steinke 2020 (arXiv 2004.00010). The sampler inverts its distribution function:
a uniform number's first 62 bits decide between two neighbouring thresholds, and further bits are drawn where they do
not. Thresholds are integers with a bound on their error, so the law is exact. Only the last multiplication by the grid
is in floating point, and that is post-processing.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedveil.errors import FieldError, require_count, require_positive
from fedveil.mechanisms.source import Source

LARGEST = 1 << 11  # sigma on the grid; a sampler keeps nine thresholds for each unit of it
_RANGE = 1 << 63
_BITS = 62  # of a uniform number that are drawn for every integer; one more bit is the sign
_MORE = 63  # bits that are drawn at a time where the first do not decide
_GUARD = 96  # bits of a weight beyond those of a threshold
_ERROR = 1 << 64  # bounds the error of a sum of up to 2^18 weights, in their units

Thresholds = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class DiscreteGaussianNoise:
    """Discrete Gaussian noise with parameter sigma on the integers.

    Parameters
    ----------
    sigma : int
        Parameter in grid steps, from 1 to 2048. For sigma >= 2 it equals the standard deviation within 1e-8.
    """

    sigma: int

    def __post_init__(self) -> None:
        if require_count("sigma", self.sigma) > LARGEST:
            raise FieldError(
                "sigma", self.sigma, f"must be at most {LARGEST}: choose a coarser grid"
            )

    def sample(self, size: int, *, source: Source) -> Tensor:
        """Draw the noise [size], int64."""
        drawn = source.bits(require_count("size", size)).numpy()
        uniform, negative = drawn >> 1, (drawn & 1).astype(bool)
        thresholds = _thresholds(self.sigma)
        magnitude = np.searchsorted(thresholds, uniform)
        for place in np.flatnonzero(thresholds[magnitude] == uniform):
            magnitude[place] = _decided(self.sigma, int(uniform[place]), source)
        return torch.from_numpy(np.where(negative, -magnitude, magnitude))


@dataclass(frozen=True)
class WideGaussianNoise:
    """Discrete Gaussian noise with a large deviation in grid steps: `FACTOR` x + y for two draws x, y of deviation `LARGEST`.

    For every integer its probability equals that of a single draw of deviation `sigma` up to a factor. The factor is 1
    +- 4 exp(-2 pi^2 smoothness^2) = 1 +- 1e-898. (Source: smoothing of a lattice by a Gaussian, Micciancio and Regev
    2007.)
    """

    FACTOR: ClassVar[int] = 200

    @property
    def sigma(self) -> float:
        """Standard deviation in grid steps: 409,605."""
        return LARGEST * math.hypot(self.FACTOR, 1)

    @property
    def smoothness(self) -> float:
        """Deviation of the finer draw given the sum, divided by the step of the coarser draw."""
        return LARGEST * LARGEST / self.sigma

    def sample(self, size: int, *, source: Source) -> Tensor:
        """Draw the noise [size], int64."""
        drawn = DiscreteGaussianNoise(LARGEST).sample(
            2 * require_count("size", size), source=source
        )
        both = drawn.view(2, size)
        return torch.add(both[1], both[0], alpha=self.FACTOR)


def to_grid(updates: Tensor, clip: float, grid: float) -> Tensor:
    """Round clipped updates to multiples of the grid, so that no norm exceeds the clipping norm.

    Parameters
    ----------
    updates : Tensor
        [n, d], each of norm at most `clip`.
    clip : float
        C, the clipping norm.
    grid : float
        Size of one step.

    Returns
    -------
    Tensor
        [n, d] int64, rounded towards zero; every row's norm is at most C / grid, checked in integers.

    Raises
    ------
    FieldError
        If a row is longer than the clipping norm, or the grid is so fine that squares overflow int64.
    """
    limit = int((require_positive("clip", clip) / require_positive("grid", grid)) ** 2)
    if limit >= _RANGE:
        raise FieldError(
            "grid", grid, f"is too fine for a clipping norm of {clip:g}: raise the noise multiplier"
        )
    steps = torch.trunc(updates.to(torch.float64) / grid).to(torch.int64)
    for row in steps:
        squares = [int(part.square().sum()) for part in row.split(1 << 16)]
        if sum(squares) > limit:
            raise FieldError("updates", "longer than the clipping norm", "clip them first")
    return steps


@lru_cache(maxsize=4)
def _thresholds(sigma: int) -> Thresholds:
    """Return the thresholds of the first bits, int64, read-only; the last one is 2^62 - 1."""
    result = np.array(_exact(sigma, _BITS), dtype=np.int64)
    result.flags.writeable = False
    return result


def _decided(sigma: int, uniform: int, source: Source) -> int:
    """Draw more bits of a uniform number, until they decide between two neighbouring thresholds."""
    bits = _BITS
    while True:
        bits += _MORE
        uniform = uniform << _MORE | int(source.bits(1).item())
        thresholds = _exact(sigma, bits)
        place = bisect_left(thresholds, uniform)
        if thresholds[place] != uniform:
            return place


def _exact(sigma: int, bits: int, guard: int = _GUARD) -> list[int]:
    """Return floor(2^bits P(|X| <= x)) for x = 0, 1, ..., up to the first that is 2^bits - 1.

    A uniform number whose first `bits` bits are u is above the x-th probability if u is above the x-th threshold, and
    below it if u is below. If they are equal, more bits decide.
    """
    weights = list(_weights(sigma, bits + guard))
    all_of_them = 2 * sum(weights) - weights[0]
    last = (1 << bits) - 1
    result: list[int] = []
    inside = -weights[0]
    while not result or result[-1] < last:
        inside += 2 * weights[len(result)]
        least = ((inside - _ERROR) << bits) // all_of_them
        most = ((inside + _ERROR) << bits) // all_of_them
        if least < min(most, last):
            return _exact(sigma, bits, 2 * guard)
        result.append(min(most, last))
    return result


def _weights(sigma: int, precision: int) -> Iterator[int]:
    """Generate 2^precision exp(-x^2 / (2 sigma^2)) for x = 0, 1, ... as integers, until it is 0.

    The ratio of neighbours falls by the same factor at each step, so two products make a weight. Each product is rounded
    down, so the x-th ratio has an error of at most 129 (x + 1) units, and the x-th weight of at most 65 (x + 2)^2.
    """
    variance = sigma * sigma
    ratio, factor = _exp(2 * variance, precision), _exp(variance, precision)
    weight = 1 << precision
    while weight:
        yield weight
        weight = weight * ratio >> precision
        ratio = ratio * factor >> precision


def _exp(denominator: int, precision: int) -> int:
    """Return 2^precision exp(-1 / denominator) by its series, within 128 units."""
    total, term, count = 0, 1 << precision, 0
    while term:
        total += -term if count % 2 else term
        count += 1
        term //= denominator * count
    return total
