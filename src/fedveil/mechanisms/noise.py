"""Noise mechanisms: Gaussian noise, and n-dimensional Laplace noise for the Euclidean distance."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedveil.checks import require_whole
from fedveil.errors import FieldError, kind_of, require_positive
from fedveil.gdp import mu_of_epsilon
from fedveil.mechanisms.source import Source
from fedveil.ranges import require_within
from fedveil.registry import Registry

_BLOCK = 1 << 17  # draws at a time: the sum of a block stays in the cache


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Compute the least deviation of Gaussian noise for (epsilon, delta)-DP: the analytic Gaussian mechanism.

    Parameters
    ----------
    epsilon, delta : float
        Target of one release; epsilon above 0, delta from 1e-15 to below 1.
    sensitivity : float
        Largest Euclidean change between neighbouring inputs.

    Returns
    -------
    float
        Standard deviation per coordinate (Balle and Wang 2018, arXiv 1805.06530).
    """
    epsilon, delta = require_positive("epsilon", epsilon), require_within("delta", "delta", delta)
    return require_positive("sensitivity", sensitivity) / mu_of_epsilon(epsilon, delta)


@dataclass(frozen=True)
class GaussianNoise:
    """Independent normal noise on every coordinate.

    Parameters
    ----------
    sigma : float
        Standard deviation per coordinate (not a variance, not a multiplier), finite and positive.
    """

    sigma: float

    def __post_init__(self) -> None:
        require_positive("sigma", self.sigma)

    def sample(
        self,
        size: int,
        *,
        source: Source,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Draw the noise [size] from a source."""
        return _drawn(source).normal(require_whole("size", size), dtype).mul_(self.sigma)

    def add_to(
        self,
        vector: Tensor,
        *,
        source: Source,
        into: Tensor | None = None,
    ) -> Tensor:
        """Add noise to a vector [d] in place, or write the sum to `into`; return the result.

        Noise is drawn and added by blocks, so that no second [d] is needed. A reproducible source adds the same bits as
        one call of `sample`; with a deployable one the sum is rounded to a grid (`noised`). With `into` the vector is
        unchanged, and the sum is rounded to the type of `into`.
        """
        into = vector if into is None else into
        width = _BLOCK * (8 if _drawn(source).deployable else 1)  # threads share eight
        for start in range(0, require_whole("size", vector.numel()), width):
            part = vector[start : start + width]
            part = self.sample(len(part), source=source, dtype=vector.dtype).add_(part)
            into[start : start + width] = _on_grid(part, self.sigma) if source.deployable else part
        return into


class Mechanism(Protocol):
    """Interface of mechanisms that add noise to the server's release; made with the deviation sigma per coordinate."""

    def add_to(self, vector: Tensor, *, source: Source) -> Tensor:
        """Add noise to a vector [d] in place, and return the vector."""


MECHANISMS: Registry[Callable[[float], Mechanism]] = Registry(
    "privacy.noise", {"gaussian": GaussianNoise}
)
"""Mechanisms for ``GlobalDP(noise="...")``; a registered one of your own has no proof, so its runs are heuristics."""


@dataclass(frozen=True)
class EuclideanLaplaceNoise:
    """n-dimensional Laplace noise: density proportional to exp(-epsilon * ||x||_2).

    The radius is Gamma(n, 1/epsilon), the direction uniform on the sphere. The mean radius is n / epsilon, and each
    coordinate has variance (n + 1) / epsilon^2. One release is epsilon-d-private: for vectors x and x' log-ratios of
    densities are at most epsilon * ||x - x'||_2 (Biswas et al., Proposition 3.1).

    Parameters
    ----------
    epsilon : float
        Privacy per unit of Euclidean distance, finite and positive.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)

    def sample(
        self,
        size: int,
        *,
        source: Source,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Draw the noise [size] from a source."""
        direction = _drawn(source).normal(require_whole("size", size))
        radius = source.gamma(size) / self.epsilon
        return direction.mul_(radius / direction.norm()).to(dtype)

    def add_to(self, vector: Tensor, *, source: Source) -> Tensor:
        """Add noise to a vector [d] in place, and return it; on a grid if the source is deployable (`noised`)."""
        vector += self.sample(len(vector), source=source, dtype=vector.dtype)
        if source.deployable:
            _on_grid(vector, math.sqrt(len(vector) + 1) / self.epsilon)
        return vector


def noised(
    vector: Tensor,
    noise: GaussianNoise | EuclideanLaplaceNoise,
    source: Source,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return a copy of a vector [d] with noise, of the same number type, ready to be released.

    With a deployable source both are added in float64, and their sum is rounded to a grid that depends only on the
    noise's scale. Without the grid, the low bits of small sums could reveal the vector: noise in floating point has
    gaps, and they lie elsewhere for another vector (Mironov 2012). Float64 leaves a loss of about 2^-31 for each
    coordinate, as the edges of a grid cell shift by this share of its width. With a reproducible source the noise is
    drawn in `dtype` (default: the vector's), and equal seeds give equal bits.
    """
    if not source.deployable:
        return vector + noise.sample(len(vector), source=source, dtype=dtype or vector.dtype)
    return noise.add_to(vector.to(torch.float64, copy=True), source=source).to(vector.dtype)


def _on_grid(vector: Tensor, scale: float) -> Tensor:
    """Round a vector in place to multiples of a power of two, 2^-21 to 2^-20 times the scale."""
    grid = 2.0 ** (math.floor(math.log2(scale)) - 20)
    return vector.div_(grid).round_().mul_(grid)


def _drawn(source: Source) -> Source:
    if not isinstance(source, Source):
        raise FieldError(
            "source", kind_of(source), "must be a ReproducibleSource or a SecureSource"
        )
    return source
