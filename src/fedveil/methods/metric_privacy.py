"""Metric privacy: the server's noise divided by the distance between the clients' models.

Source: the metric-privacy paper, section 6 and Algorithm 1. Trust model: honest server that sees each client's model in
the clear (so no secure aggregation), semi-honest clients. Per round sigma = z * C / (n * d_r), where d_r is the largest
pairwise distance of the local models, taken before clipping. Heuristic: sigma depends on unprotected models and can be
read off the release itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fedveil.accounting import Spend
from fedveil.calibration import METRICS, MetricCalibrator, max_pairwise_distance
from fedveil.calibration.distance import Direction
from fedveil.clipping import norms
from fedveil.errors import require_choice
from fedveil.layout import Grouping, Layout
from fedveil.methods.central import CentralNoise

OUTLIER = 10.0  # an update longer than this many medians is left out of the distance


@dataclass(frozen=True)
class MetricPrivacy(CentralNoise):
    """Metric privacy around an aggregation rule; `CentralNoise` has the other parameters.

    Parameters
    ----------
    distance : str
        A metric of `fedveil.calibration.METRICS`.
    grouping : {"array", "module"}
        What a layer is for that metric.
    distance_on : {"raw", "clipped"}
        Take the distance before clipping (Algorithm 1) or after (the paper's appendix).
    direction : {"less", "more"}
        Whether a larger distance gives less noise (the formula) or more (the text).

    Notes
    -----
    One client that scales its update must not switch the noise off: updates longer than 10 times the (lower) median
    length are left out of the distance, and counted in the report. If fewer than two models remain, or they are
    identical (d = 0), the round uses the global scale z * C / n and the report says so.
    """

    distance: str = field(default="layer_frobenius", kw_only=True)
    grouping: Grouping = field(default="array", kw_only=True)
    distance_on: Literal["raw", "clipped"] = field(default="raw", kw_only=True)
    direction: Direction = field(default="less", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        super().__post_init__()
        require_choice("distance", self.distance, METRICS)
        require_choice("grouping", self.grouping, ("array", "module"))
        require_choice("distance_on", self.distance_on, ("raw", "clipped"))
        require_choice("direction", self.direction, ("less", "more"))

    def _scale(self, base: float, updates: Tensor, clipped: Tensor, layout: Layout) -> tuple[float, dict[str, float]]:
        lengths = norms(updates)
        honest = lengths <= OUTLIER * lengths.median()  # torch's median is the lower one: one of two cannot move it
        measured = (updates if self.distance_on == "raw" else clipped)[honest]
        d = max_pairwise_distance(measured, layout, self.grouping, self.distance)
        # base already is z * C / n (or z times the rule's sensitivity), so only the distance's part is left to apply
        sigma = MetricCalibrator(base, 1.0, self.direction).sigma(n=1, distance=d)
        return sigma, {
            "distance": d,
            "outliers": float((~honest).sum()),
            "global_fallback": float(d == 0),
        }

    def _spend(self, sigma: float, bound: float, weights: Tensor, cohort: int) -> Spend:
        return self._heuristic("the noise's scale depends on the clients' unprotected models", sigma)
