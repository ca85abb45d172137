"""Neighbourhood calibration of the client's Laplace noise (group-privacy paper, section 3 and Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveil.clipping import norms
from fedveil.errors import FieldError, require_positive


@dataclass(frozen=True)
class NeighbourhoodLaplace:
    """Epsilon per unit of distance from the length of a client's own step: epsilon = n / (nu * ||delta||).

    The expected length of the noise is then nu * ||delta||: nu is the noise-to-signal ratio. A heuristic, since epsilon
    depends on the private step; the leakage towards a model at distance ||delta|| is n / nu.

    Parameters
    ----------
    noise_multiplier : float
        nu, positive.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Check nu."""
        require_positive("noise_multiplier", self.noise_multiplier)

    def epsilon(self, update: Tensor) -> float:
        """Epsilon per unit of distance for a step [d].

        Raises
        ------
        FieldError
            If the step is zero: it spans no neighbourhood, so there is no scale to take from it.
        """
        length = float(norms(update)) if update.dim() == 1 else 0.0
        if length == 0:
            raise FieldError("update", tuple(update.shape), "must be [d] and not zero: no step, no neighbourhood")
        return len(update) / (self.noise_multiplier * length)

    def leakage(self, dimension: int) -> float:
        """N / nu: epsilon times the step's length, the same in every participation."""
        return dimension / self.noise_multiplier
