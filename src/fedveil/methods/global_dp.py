"""Global DP: Gaussian noise of a fixed scale on the server's aggregate.

Trust model: honest server, semi-honest clients. Per round sigma = z * C / n. As printed (noise on the output of the
rule) the guarantee follows the sensitivity of what ran, which is C * max weight for a mean and about C for a median.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveil.accounting import Guarantee, Spend
from fedveil.layout import Layout
from fedveil.methods.central import CentralNoise


@dataclass(frozen=True)
class GlobalDP(CentralNoise):
    """Global DP around an aggregation rule; see `CentralNoise` for the parameters."""

    def _scale(self, base: float, updates: Tensor, clipped: Tensor, layout: Layout) -> tuple[float, dict[str, float]]:
        return base, {}

    def _spend(self, sigma: float, bound: float, weights: Tensor, cohort: int) -> Spend:
        conditions: tuple[str, ...] = ()
        if self.order == "formal":
            sensitivity: float | None = self._sensitivity(bound, cohort, self.relation)
        elif not self.aggregator.identity_step:
            return self._heuristic("the server's optimiser saw the mean before the noise", sigma)
        elif self.relation == "add/remove":
            return self._heuristic("divisor and noise follow the number of replies, which add/remove is to hide", sigma)
        else:
            sensitivity = self.aggregator.sensitivity(bound, weights, self.relation)
            conditions = ("who replies does not depend on private data",)
            if getattr(self.aggregator, "weighting", "uniform") == "examples":
                conditions += ("example counts are public",)
        if sensitivity is None:
            return self._heuristic("the aggregation rule has no sensitivity", sigma)
        guarantee = Guarantee(
            unit="client",
            relation=self.relation,
            trust="central",
            status="conditional" if conditions else "formal",
            scope="round",
            mu=sensitivity / sigma,
            conditions=conditions,
        )
        return Spend(guarantee=guarantee, mechanism="gaussian", scale=(sigma,), sensitivity=sensitivity)
