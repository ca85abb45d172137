"""SGA-LDP's budget from the cosine of an update (SGA-LDP, equations 3 and 4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedveil.clipping import norms
from fedveil.errors import FieldError, require_delta, require_positive
from fedveil.mechanisms import gaussian_sigma


def cosine(update: Tensor, reference: Tensor) -> float:
    """Cosine of two vectors [d], in float64; 0 if either is zero."""
    if update.shape != reference.shape or update.dim() != 1:
        raise FieldError("reference", tuple(reference.shape), f"must have the update's shape {tuple(update.shape)}")
    lengths = float(norms(update)), float(norms(reference))
    if 0.0 in lengths:
        return 0.0
    a, b = update.to(torch.float64) / lengths[0], reference.to(torch.float64) / lengths[1]
    return max(-1.0, min(1.0, float(a @ b)))


def cosines(updates: Tensor, reference: Tensor) -> list[float]:
    """`cosine` of each row [n, d] with a vector [d], to the bit for rows of at most 1,024 numbers."""
    lengths, length = norms(updates), float(norms(reference))
    if not length:
        return [0.0] * len(updates)
    size = updates.shape[1]
    # rows begin at multiples of 64 bytes, as vectors of their own do: a dot product's order of sums depends on it
    rows = torch.zeros(len(updates), -(-size // 8) * 8, dtype=torch.float64)
    rows[:, :size] = updates.to(torch.float64) / lengths[:, None]
    b = reference.to(torch.float64) / length
    found = [float(row[:size] @ b) if own else 0.0 for row, own in zip(rows, lengths.tolist(), strict=True)]
    return [max(-1.0, min(1.0, each)) for each in found]


_sigma = lru_cache(maxsize=1024)(gaussian_sigma)


@dataclass(frozen=True)
class AlignmentLDP:
    """Per-release budget epsilon_min + (epsilon_max - epsilon_min) * max(0, cosine).

    A heuristic: the noise's size reveals the private cosine, so not even (epsilon_max, delta) holds.

    Parameters
    ----------
    epsilon_min, epsilon_max : float
        Ends of the range, 0 < epsilon_min <= epsilon_max.
    delta : float
        Per release.
    clip : float
        C.
    """

    epsilon_min: float
    epsilon_max: float
    delta: float
    clip: float

    def __post_init__(self) -> None:
        """Check all."""
        require_positive("epsilon_min", self.epsilon_min)
        require_delta("delta", self.delta)
        require_positive("clip", self.clip)
        if require_positive("epsilon_max", self.epsilon_max) < self.epsilon_min:
            raise FieldError("epsilon_max", self.epsilon_max, f"must be at least epsilon_min = {self.epsilon_min}")

    def epsilon(self, update: Tensor, reference: Tensor | None) -> float:
        """Budget for an update [d]; epsilon_min without a reference (None or zero)."""
        return self.epsilon_min if reference is None else self.epsilon_at(cosine(update, reference))

    def epsilon_at(self, similarity: float) -> float:
        """Budget at a cosine, or at one with noise, which is cut to [0, 1]."""
        # the end points are returned as they are: min + (max - min) * 1 may round past max
        aligned = min(1.0, max(0.0, similarity))
        return min(self.epsilon_max, self.epsilon_min + (self.epsilon_max - self.epsilon_min) * aligned)

    def sigma(self, epsilon: float) -> float:
        """Deviation per coordinate of the analytic Gaussian mechanism with sensitivity C (zero-out)."""
        return _sigma(epsilon, self.delta, self.clip)  # most clients of a round spend epsilon_min
