"""The study of the SGA-LDP paper (Beyat et al. 2025): similarity-guided adaptive local DP among malicious clients.

The measures that it adds: the loss-threshold membership inference of
the paper's table IV, and the noise that clients added, by its mean power over clients and rounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any, Self

import torch
from torch import Tensor

from fedveil.attacks.membership import confidence, loss_of_confidence
from fedveil.attacks.statistics import auc
from fedveil.config import Config
from fedveil.engines.probe import Seen
from fedveil.grid import Outcome
from fedveil.learning import ClientData
from fedveil.papers import Study, Value
from fedveil.runs.prepare import Setup

study = Study.of(__name__)


@study.probe("watch")
class Watch:
    """Measures the noise of every round, and after the run the loss of training and of held-out examples."""

    name = "sga-ldp"
    figures: Collection[str] = ("noise power",)

    def __init__(self, _config: Config) -> None:
        self._model: Tensor | None = None

    def begin(self, setup: Setup) -> None:
        """Take the records in question; see `fedveil.runs.judging.Judge`."""
        self._setup, self._model = setup, None
        self._clients: Sequence[ClientData] = setup.arguments["clients"]

    def load(self, setup: Setup) -> tuple[int, int]:
        return 1, 0

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Mean over the clients of the variance of a coordinate's noise."""
        self._model = seen.models[0]
        scales = [scale[0] for scale in seen.record.client_scales.values() if scale]
        return {"noise power": fmean(s * s for s in scales) if scales else 0.0}

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """``membership``: AUC of the loss of the last model."""
        return [judge._concluded() for judge in judges]

    def _concluded(self) -> dict[str, Any]:
        if self._model is None:
            return {}
        learner, held = self._setup.learner, [c for c in self._clients if c.test_x is not None and c.test_y is not None]
        x, y = torch.cat([c.x for c in self._clients]), torch.cat([c.y for c in self._clients])
        other_x = torch.cat([c.test_x for c in held if c.test_x is not None])
        other_y = torch.cat([c.test_y for c in held if c.test_y is not None])
        inside, outside = (
            -loss_of_confidence(confidence(learner.model, learner.layout, self._model[None], a, b))[0]
            for a, b in ((x, y), (other_x, other_y))
        )
        return {"membership": auc(inside, outside)}


@study.measure("membership loss")
def membership(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """AUC of minus the loss, of all clients' training examples against all that they hold out."""
    return Value(float(outcomes[0].summary.values["concluded"][Watch.name]["membership"]))


@study.measure("noise")
def noise(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Root of the mean power of the noise of one coordinate, over clients and rounds."""
    return Value(math.sqrt(fmean(row["figures"]["noise power"] for row in outcomes[0].rows)))
