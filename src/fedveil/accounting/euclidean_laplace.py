"""Exact privacy loss of n-dimensional Euclidean Laplace noise, and its composition.

Take two vectors at distance D, and s = epsilon * D. Let r ~ Gamma(n, 1), and let u be the cosine of a uniform
direction. The loss is L = sqrt(r^2 + 2 r s u + s^2) - r, in [-s, s]. Given r, L <= l if u <= (2 r l + l^2 - s^2) / (2 r
s), and (u + 1) / 2 is Beta((n-1)/2, (n-1)/2). So one integral over r gives the distribution of L. The noise is
symmetric, so that delta(e) = P(L > e) - exp(e) P(L < -e).
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

_PANELS, _NODES = 24, 16
_NEGLIGIBLE = 1e-16
_gauss = lru_cache(np.polynomial.legendre.leggauss)


@lru_cache(maxsize=8)
def discretised(dimension: int, shift: float, interval: float) -> Any:
    """Return the loss as a dp-accounting distribution on a grid with the given interval, rounded pessimistically."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    if dimension == 1:
        return privacy_loss_distribution.from_laplace_mechanism(
            1 / shift, value_discretization_interval=interval
        )
    top = math.ceil(greatest_loss(dimension, shift) / interval)
    positive = np.arange(0, top + 1) * interval
    upper = delta_of_shift(dimension, shift, positive)
    # delta(-e) = 1 - exp(-e) (1 - delta(e)) is exact, and keeps digits that a difference of tails would lose
    lower = 1 - np.exp(-positive[:0:-1]) * (1 - upper[:0:-1])
    deltas = np.minimum.accumulate(np.concatenate([lower, upper]))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -top, top, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def greatest_loss(n: int, s: float) -> float:
    """Return a loss that is exceeded with negligible probability: s, or less in high dimensions.

    `n` is the dimension, `s` the distance between the two centres over the noise's scale.
    """
    low, high = 0.0, s
    if delta_of_shift(n, s, np.array([s * (1 - 1e-9)]))[0] > _NEGLIGIBLE:
        return s
    for _ in range(60):
        middle = (low + high) / 2
        if delta_of_shift(n, s, np.array([middle]))[0] > _NEGLIGIBLE:
            low = middle
        else:
            high = middle
    return high


def delta_of_shift(n: int, s: float, targets: np.ndarray) -> np.ndarray:
    """Compute delta of one release, P(L > e) - exp(e) P(L < -e), for each target epsilon e (of either sign).

    Parameters
    ----------
    n : int
        Dimension.
    s : float
        Epsilon per unit of distance times the distance.
    targets : ndarray
        [m], target epsilons.
    """
    above, below = _tail(n, s, targets), _tail(n, s, targets, lower=True)
    with np.errstate(over="ignore", invalid="ignore"):
        weighted = np.where(below > 0, np.exp(np.minimum(targets, 700.0)) * below, 0.0)
    return np.asarray(np.clip(above - weighted, 0.0, 1.0))


def _tail(n: int, s: float, targets: np.ndarray, lower: bool = False) -> np.ndarray:
    """Return P(L > e), or with `lower` P(L < -e), for targets e in (-s, s); 0 for e above s, and 1 below -s."""
    e = np.clip(targets, -s, s)
    # L > e is certain for r < (s - e) / 2, and L < -e impossible for r < (s + e) / 2
    sign = -1.0 if lower else 1.0
    kink = (s - sign * e) / 2
    radius, weight = _radii(n, kink)
    limit = sign * e[:, None]
    cosine = (2 * radius * limit + limit**2 - s * s) / (2 * radius * s)
    # by symmetry, P(u > cosine) is a lower Beta tail, so small values keep their digits
    x = np.clip((1 - sign * cosine) / 2, 0.0, 1.0)
    half = (n - 1) / 2
    inside = np.full_like(x, 0.5) if n == 1 else scipy.special.betainc(half, half, x)
    value = (inside * weight).sum(1)
    if not lower:
        value += scipy.special.gammainc(n, kink)
    outside = np.where(targets >= s, 0.0, 1.0)
    return np.asarray(np.where(np.abs(targets) < s, value, outside))


def _radii(n: int, kink: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights [targets, nodes] of a quadrature over r ~ Gamma(n, 1), from each kink upwards.

    The rule is composite Gauss-Legendre in v, with r = start + (end - start) v^2. In low dimensions the distribution of
    the direction begins like a square root, and the square makes it smooth.
    """
    low = float(scipy.special.gammaincinv(n, 1e-20))
    high = float(scipy.special.gammainccinv(n, 1e-20))
    start = np.maximum(kink, low)[:, None]
    end = np.maximum(high, start)
    node, weight = _gauss(_NODES)
    edges = np.linspace(0.0, 1.0, _PANELS + 1)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    v = (edges[:-1, None] + half * (node + 1)).ravel()
    dv = (half * weight).ravel()
    radius = start + (end - start) * v**2
    density = np.exp((n - 1) * np.log(radius) - radius - scipy.special.gammaln(n))
    return radius, density * 2 * (end - start) * v * dv
