"""Global DP: Gaussian noise of a fixed scale on the server's aggregate.

Trust model: honest server, semi-honest clients. Per round sigma = z * C / n. As printed (noise on the output of the
rule) the guarantee follows the sensitivity of what ran, which is C * max weight for a mean and about C for a median.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveil.accounting import Spend
from fedveil.aggregation import Updates
from fedveil.methods.central import CentralNoise, CentralState
from fedveil.methods.contract import ServerFacts


@dataclass(frozen=True)
class GlobalDP(CentralNoise):
    """Global DP around an aggregation rule; see `CentralNoise` for the parameters."""

    def _scale(
        self, base: float, updates: Updates, clipped: Updates, facts: ServerFacts, state: CentralState
    ) -> tuple[float, dict[str, float]]:
        return base, {}

    def _spend(self, sigma: float, bound: float, weights: Tensor, cohort: int) -> Spend:
        return self._proven(sigma, bound, weights, cohort)
