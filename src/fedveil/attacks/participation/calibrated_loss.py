"""Client inference by a calibrated loss: easy examples have a low loss whoever trained, so compare with an outsider.

Source: difficulty calibration of membership inference (Watson et al. 2022, arXiv 2111.08440), here for a client's whole
shadow set, and against the same model's loss on reference examples, which takes off what the noise does to both.

Threat model: semi-honest client; receives the models, holds shadow and reference examples, from which (and from its own
data) it trained a model that never saw the target.

    s_r = [loss(W_r, reference) - loss(W_r, shadow)] - [loss(outsider, reference) - loss(outsider, shadow)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveil.attacks.observation import Attack, Observation, ThreatError


@dataclass(frozen=True, eq=False)
class CalibratedLoss(Attack):
    """Score by the loss on shadow examples, less their difficulty; see `Attack` for the parameters."""

    name: ClassVar[str] = "calibrated-loss"
    summary: ClassVar[str] = "how far the loss on shadow data is below that of a model that never saw the target"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow", "reference"})

    def run(self, observation: Observation) -> Tensor:
        known = self.knowledge
        if known.reference is None or known.outsider is None:
            raise ThreatError(f"attack {self.name!r} needs reference examples and a model trained without the target")
        models = observation.models[1:]
        easier = known.loss_of(models, known.reference) - known.loss_of(models, known.shadow)
        outside = known.outsider[None, None]
        return easier - (known.loss_of(outside, known.reference) - known.loss_of(outside, known.shadow))
