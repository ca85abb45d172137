"""Discrete Gaussian noise on an integer grid, so that floating-point rounding leaks nothing.

Sampler: Canonne, Kamath and Steinke 2020 (arXiv 2004.00010, Algorithms 1 to 3), in exact integer arithmetic on whole
vectors. Only the last multiplication by the grid is in floating point, and that is post-processing.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedveil.errors import FieldError, require_count, require_positive
from fedveil.mechanisms.source import Source

LARGEST = 1 << 11  # sigma on the grid; keeps every product of the sampler below 2^63
_RANGE = 1 << 63
_LAST = _RANGE - 1

Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


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
        variance, t = self.sigma**2, self.sigma + 1
        result = np.zeros(require_count("size", size), dtype=np.int64)
        pending = np.arange(size)
        while len(pending):
            y = _laplace(len(pending), t, source)
            distance = np.abs(y) * t - variance
            kept = _exponential(distance * distance, 2 * variance * t * t, source)
            result[pending[kept]] = y[kept]
            pending = pending[~kept]
        return torch.from_numpy(result)


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


def _uniform(size: int, bound: int, source: Source) -> Integers:
    """Draw exactly uniform integers in [0, bound), by rejection from 63 bits."""
    raw = source.bits(size).numpy()
    result: Integers = raw % bound
    beyond = raw - result > _LAST - bound + 1  # the last, incomplete stretch below 2^63
    (rejected,) = beyond.nonzero()
    if rejected.size:
        result[rejected] = _uniform(rejected.size, bound, source)
    return result


def _exponential(numerator: Integers, denominator: int, source: Source) -> Flags:
    """Draw Bernoulli(exp(-numerator / denominator))."""
    alive = np.ones(len(numerator), dtype=bool)
    whole, rest = numerator // denominator, numerator % denominator
    step = np.full(len(numerator), denominator, dtype=np.int64)
    busy = np.flatnonzero(whole > 0)
    while busy.size:
        alive[busy] = _small(step[busy], denominator, source)
        whole[busy] -= 1
        busy = np.flatnonzero(alive & (whole > 0))
    busy = np.flatnonzero(alive)
    alive[busy] = _small(rest[busy], denominator, source)
    return alive


def _small(numerator: Integers, denominator: int, source: Source) -> Flags:
    """Draw Bernoulli(exp(-numerator / denominator)) for a fraction of at most 1.

    The k-th trial continues with probability numerator / (k denominator). An entry that stops at an odd trial is True.
    """
    result = np.zeros(len(numerator), dtype=bool)
    pending, trial = np.arange(len(numerator)), 0
    while pending.size:
        trial += 1
        more = _uniform(pending.size, trial * denominator, source) < numerator
        result[pending[~more]] = trial % 2 == 1
        pending, numerator = pending[more], numerator[more]
    return result


def _laplace(size: int, t: int, source: Source) -> Integers:
    """Draw discrete Laplace noise [size], with probability proportional to exp(-|y| / t)."""
    result = np.zeros(size, dtype=np.int64)
    pending = np.arange(size)
    while len(pending):
        low = _uniform(len(pending), t, source)
        kept = _exponential(low, t, source)
        low, place = low[kept], pending[kept]
        high = np.zeros(len(low), dtype=np.int64)
        growing = np.arange(len(low))
        while len(growing):
            growing = growing[_small(np.ones(len(growing), dtype=np.int64), 1, source)]
            high[growing] += 1
        value = low + t * high
        negative = source.bits(len(value)).numpy() % 2 == 1
        good = ~(negative & (value == 0))
        result[place[good]] = np.where(negative, -value, value)[good]
        pending = np.concatenate([pending[~kept], place[~good]])
    return result
