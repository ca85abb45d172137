"""FedRE's split of a budget over layers (FedRE, equations 6, 8 and 9)."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedveil.errors import FieldError, require_count, require_delta, require_non_negative, require_positive

FLOOR = 1e-12  # a score of 0 is floored at this fraction of the largest score


@dataclass(frozen=True)
class LayerSensitivity:
    """Inverse-score split of a budget over layers.

    epsilon_l = epsilon * (1/S_l) / sum_t (1/S_t), and
    sigma_l = sqrt(2 T ln(1/delta_l)) / epsilon_l. The printed rule: heuristic when the scores come from private data.

    Parameters
    ----------
    epsilon, delta : float
        Totals over layers and rounds; delta is shared equally.
    clip : float
        C_l of every layer; a layer's noise has deviation C_l * sigma_l.
    rounds : int
        T.
    """

    epsilon: float
    delta: float
    clip: float
    rounds: int

    def __post_init__(self) -> None:
        """Check all."""
        require_positive("epsilon", self.epsilon)
        require_delta("delta", self.delta)
        require_positive("clip", self.clip)
        require_count("rounds", self.rounds)

    def split(self, scores: Mapping[str, float] | Sequence[float]) -> dict[str, list[float]]:
        """Budget and noise multiplier of each layer.

        Parameters
        ----------
        scores : mapping or sequence of float
            S_l in layout order, finite and at least 0, not all 0.

        Returns
        -------
        dict
            ``"epsilon"`` and ``"sigma"`` (a multiplier of C_l), lists in the order of the scores.
        """
        values = list(scores.values()) if isinstance(scores, Mapping) else list(scores)
        values = [require_non_negative("scores", v) for v in values]
        largest = max(values, default=0.0)
        if largest == 0:
            raise FieldError("scores", values, "needs at least one layer with a score above 0")
        # relative to the largest: 1/S of tiny raw scores would overflow
        inverse = [1 / max(v / largest, FLOOR) for v in values]
        budgets = [self.epsilon * w / math.fsum(inverse) for w in inverse]
        delta = self.delta / len(values)
        for name, total, share in (("epsilon", self.epsilon, min(budgets)), ("delta", self.delta, delta)):
            if share < sys.float_info.min:
                raise FieldError(name, total, f"is too small to be shared by {len(values)} layers: raise it")
        numerator = math.sqrt(2 * self.rounds * math.log(1 / delta))
        return {"epsilon": budgets, "sigma": [numerator / b for b in budgets]}
