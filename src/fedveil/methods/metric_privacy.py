"""Metric privacy: the server's noise divided by the distance between the clients' models.

Source: the metric-privacy paper, section 6 and Algorithm 1. Trust model: an honest server sees each client's model in
the clear (so no secure aggregation), semi-honest clients. A round has sigma = z * C / (n * d_r), with d_r the largest
distance between two local models, measured before clipping. The formal order has z times the rule's sensitivity in
place of z * C / n; for a mean both are the same. It is a heuristic: sigma depends on unprotected models, and can be
estimated from the release itself.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedveil.accounting import Spend
from fedveil.aggregation import Updates
from fedveil.calibration import DISTANCES, MetricCalibrator, max_pairwise_distance
from fedveil.calibration.distance import COSINE, Direction
from fedveil.errors import FieldError, require_choice, require_positive
from fedveil.layout import Grouping
from fedveil.methods.central import CentralNoise, CentralState
from fedveil.methods.facts import ServerFacts

OUTLIER = 10.0  # updates longer than this many medians are left out of the distance


@dataclass(frozen=True)
class MetricPrivacy(CentralNoise):
    """Metric privacy: server noise divided by a distance between models.

    `fedveil.methods.CentralNoise` describes the other parameters: `aggregator`, `clip`, `order`, `relation`, `noise`.

    Parameters
    ----------
    distance : str
        Name of a metric in `fedveil.calibration.DISTANCES`.
    grouping : {"array", "module"}
        Unit that the metric treats as a layer.
    distance_on : {"raw", "clipped", "released"}
        Models between which the distance is measured. "raw": before clipping (Algorithm 1). "clipped": after it (the
        paper's appendix). "released", the sound variant: how far the released model moved in the last round.
    direction : {"less", "more"}
        Whether a larger distance gives less noise (the formula) or more (the text).
    released_range : tuple of float
        Public lower and upper bound of the released distance. The guarantee is computed from the worse one. A filter
        charges the actual cost of each round, and its budget is the total if that is less.

    Notes
    -----
    Two defaults are not the paper's. The noise is added to the reduced update, before a server optimiser (the paper adds
    it to the rule's output: ``order="printed"``). Clients weigh the same (the paper weighs by examples:
    ``FedAvg(weighting="examples")``).

    A single client must not switch the noise off by a huge update. So updates longer than 10 times the (lower) median
    length are left out of the distance, and the report counts them. If fewer than two models remain, or they are
    identical (d = 0), the round uses the global scale z * C / n. The report says so.

    Examples
    --------
    >>> run = fv.Federation(model=model, clients=clients, method=fv.MetricPrivacy()).run(1)
    >>> run.guarantee.status  # as published: no epsilon
    'heuristic'
    """

    distance: str = field(default="layer_frobenius", kw_only=True)
    grouping: Grouping = field(default="array", kw_only=True)
    distance_on: Literal["raw", "clipped", "released"] = field(default="raw", kw_only=True)
    direction: Direction = field(default="less", kw_only=True)
    released_range: tuple[float, float] = field(default=(0.25, 4.0), kw_only=True)

    def __post_init__(self) -> None:
        """Refuse combinations of parameters that cannot work."""
        super().__post_init__()
        require_choice("distance", self.distance, DISTANCES)
        if self.distance == COSINE and self.distance_on == "released":
            raise FieldError(
                "distance",
                COSINE,
                "is between two clients' updates: of the released model there is one",
            )
        pair = self.released_range
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise FieldError("released_range", pair, "must be (low, high)")
        low, high = map(partial(require_positive, "released_range"), pair)
        if low > high:
            raise FieldError("released_range", self.released_range, "must be (low, high)")

    @property
    def working_copies(self) -> int:  # type: ignore[override]
        """How many stacks combining holds: the distance needs all coordinates at once, and leaves out long updates."""
        return max(super().working_copies + 1, 2)

    @property
    def may_be_proven(self) -> bool:  # type: ignore[override]
        """Whether the noise can have an epsilon: only if its scale follows from released models."""
        return self.distance_on == "released" and super().may_be_proven

    def _scale(
        self,
        base: float,
        updates: Updates,
        clipped: Updates,
        facts: ServerFacts,
        state: CentralState,
    ) -> tuple[float, dict[str, float]]:
        if self.distance_on == "released":
            d, figures = self._released_distance(facts, state), {}
        else:
            lengths = updates.lengths
            # torch's median is the lower one, so one client of two cannot move it
            honest = lengths <= OUTLIER * lengths.median()
            chosen = updates if self.distance_on == "raw" else clipped
            measured = chosen.stack
            if not honest.all():
                measured = measured[honest]
            d = max_pairwise_distance(measured, facts.layout, self.grouping, self.distance)
            figures = {"outliers": float((~honest).sum())}
        # base already is z * C / n (or z times the rule's sensitivity), so only the distance is left to apply
        sigma = MetricCalibrator(base, 1.0, self.direction).sigma(n=1, distance=d)
        return sigma, {"distance": d, "global_fallback": float(d == 0), **figures}

    def _released_distance(self, facts: ServerFacts, state: CentralState) -> float:
        """Measure how far the released model moved in the last round, less its own noise; 0 in the first round."""
        if state.released is None:
            return 0.0
        step = facts.broadcast.models[0] - state.released
        sizes = torch.tensor(list(facts.layout.sizes(self.grouping).values()))
        squares = facts.layout.norms(step, self.grouping).square() - state.sigma**2 * sizes
        squares = squares.clamp(min=0.0)
        length = squares.sum().sqrt() if self.distance == "euclidean" else squares.sqrt().mean()
        moved = float(length)
        low, high = self.released_range
        return min(max(moved, low), high)

    def _spend(self, sigma: float, bound: float, weights: Tensor, cohort: int) -> Spend:
        if self.distance_on != "released":
            return self._heuristic(
                "the noise's scale depends on the clients' unprotected models", sigma
            )
        spend = self._proven(sigma, bound, weights, cohort)
        if not spend.guarantee.proven:
            return spend
        # the scale followed from earlier releases, so the promise in advance rests on the least noise of the public
        # range
        unit = self._sensitivity(bound, cohort) if self.order == "formal" else bound / len(weights)
        low, high = self.released_range
        calibrator = MetricCalibrator(self.noise_multiplier * unit, 1.0, self.direction)
        extreme = calibrator.sigma(n=1, distance=high if self.direction == "less" else low)
        least = min(extreme, calibrator.sigma(n=1, distance=1.0))
        worst = self._proven(least, bound, weights, cohort).guarantee
        return replace(
            spend, guarantee=worst, charge=spend.guarantee.mu
        )  # without a mu the worst case is charged
