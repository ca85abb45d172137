"""Heuristic scales of clients' noise: SGA-LDP's budget, FedRE's split over layers, group privacy's radius.

Sources: SGA-LDP, equations 3 and 4; FedRE, equations 6, 8 and 9; the group-privacy paper, section 3 and Algorithm 2.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedveil.checks import Count, Delta, Parameters, Positive
from fedveil.clipping import norms
from fedveil.errors import FieldError, require_non_negative
from fedveil.mechanisms import gaussian_sigma

FLOOR = 1e-12  # a score of 0 is floored at this fraction of the largest score


def cosine(update: Tensor, reference: Tensor) -> float:
    """Compute the cosine of two vectors [d], in float64; 0 if either is zero."""
    if update.shape != reference.shape or update.dim() != 1:
        raise FieldError(
            "reference",
            tuple(reference.shape),
            f"must have the update's shape {tuple(update.shape)}",
        )
    lengths = float(norms(update)), float(norms(reference))
    if 0.0 in lengths:
        return 0.0
    a, b = update.to(torch.float64) / lengths[0], reference.to(torch.float64) / lengths[1]
    return max(-1.0, min(1.0, float(a @ b)))


_sigma = lru_cache(maxsize=1024)(gaussian_sigma)


@dataclass(frozen=True)
class AlignmentLDP(Parameters):
    """SGA-LDP's budget of a release: epsilon_min + (epsilon_max - epsilon_min) * max(0, cosine).

    It is a heuristic: the noise's size reveals the private cosine, so not even (epsilon_max, delta) holds.

    Parameters
    ----------
    epsilon_min, epsilon_max : float
        Limits of the budget, 0 < epsilon_min <= epsilon_max.
    delta : float
        Delta of each release.
    clip : float
        C, the clipping norm.
    """

    epsilon_min: Positive
    epsilon_max: Positive
    delta: Delta
    clip: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon_max < self.epsilon_min:
            raise FieldError(
                "epsilon_max",
                self.epsilon_max,
                f"must be at least epsilon_min = {self.epsilon_min}",
            )

    def epsilon(self, update: Tensor, reference: Tensor | None) -> float:
        """Return the budget of an update [d] from its cosine with a reference; epsilon_min without a reference (None or zero)."""
        if reference is None:
            return self.epsilon_min
        return self.epsilon_at(cosine(update, reference))

    def epsilon_at(self, similarity: float) -> float:
        """Return the budget for a cosine, which is first cut to [0, 1]."""
        # min + (max - min) * 1 may round past max
        aligned = min(1.0, max(0.0, similarity))
        return min(
            self.epsilon_max, self.epsilon_min + (self.epsilon_max - self.epsilon_min) * aligned
        )

    def sigma(self, epsilon: float) -> float:
        """Return the deviation per coordinate of the analytic Gaussian mechanism with sensitivity C (zero-out)."""
        return _sigma(epsilon, self.delta, self.clip)  # most clients of a round spend epsilon_min


@dataclass(frozen=True)
class LayerSensitivity(Parameters):
    """FedRE's split of a budget over layers, by inverse scores.

    As printed, epsilon_l = epsilon * (1/S_l) / sum_t (1/S_t), and sigma_l = sqrt(2 T ln(1/delta_l)) / epsilon_l. It is
    a heuristic if the scores come from private data.

    Parameters
    ----------
    epsilon, delta : float
        Totals over layers and rounds; delta is shared equally.
    clip : float
        C_l of every layer; a layer's noise has deviation C_l * sigma_l.
    rounds : int
        T, the number of rounds.
    """

    epsilon: Positive
    delta: Delta
    clip: Positive
    rounds: Count

    def split(self, scores: Mapping[str, float] | Sequence[float]) -> dict[str, list[float]]:
        """Compute the budget and noise multiplier of each layer.

        Parameters
        ----------
        scores : mapping or sequence of float
            S_l in layout order, finite and at least 0, not all 0.

        Returns
        -------
        dict
            ``"epsilon"`` and ``"sigma"`` (a multiplier of C_l), lists in the order of the scores.
        """
        given = scores.values() if isinstance(scores, Mapping) else scores
        values = [require_non_negative("scores", score) for score in given]
        largest = max(values, default=0.0)
        if largest == 0:
            raise FieldError("scores", values, "needs at least one layer with a score above 0")
        # relative to the largest: 1/S of tiny raw scores would overflow
        inverse = [1 / max(score / largest, FLOOR) for score in values]
        total_inverse = math.fsum(inverse)
        budgets = [self.epsilon * weight / total_inverse for weight in inverse]
        delta = self.delta / len(values)
        for name, total, share in (
            ("epsilon", self.epsilon, min(budgets)),
            ("delta", self.delta, delta),
        ):
            if share < sys.float_info.min:
                raise FieldError(
                    name, total, f"is too small to be shared by {len(values)} layers: raise it"
                )
        numerator = math.sqrt(2 * self.rounds * math.log(1 / delta))
        return {"epsilon": budgets, "sigma": [numerator / budget for budget in budgets]}


@dataclass(frozen=True)
class NeighbourhoodLaplace(Parameters):
    """Epsilon per unit of distance from the length of a client's own step: epsilon = n / (nu * ||delta||).

    The expected length of the noise is then nu * ||delta||: nu is the noise-to-signal ratio. It is a heuristic, because
    epsilon depends on the private step. The leakage towards a model at distance ||delta|| is n / nu.

    Parameters
    ----------
    noise_multiplier : float
        nu, positive.
    """

    noise_multiplier: Positive

    def epsilon(self, update: Tensor) -> float:
        """Return epsilon per unit of distance for a step [d].

        Raises
        ------
        FieldError
            If the step is zero and so gives no scale.
        """
        length = float(norms(update)) if update.dim() == 1 else 0.0
        if length == 0:
            raise FieldError(
                "update", tuple(update.shape), "must be [d] and not zero: no step, no neighbourhood"
            )
        return len(update) / (self.noise_multiplier * length)

    def leakage(self, dimension: int) -> float:
        """Return n / nu, epsilon times the step's length; it is the same for every participation."""
        return dimension / self.noise_multiplier
