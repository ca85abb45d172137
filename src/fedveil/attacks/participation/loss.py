"""Client inference by loss: a model that the target trained fits the target's data better.

Source: Sáinz-Pardo Díaz et al. 2026 (metric privacy), section 7.4.2; the per-round score of its multi-round attack,
here averaged over the rounds of a run so that one run gives one number.

Threat model: semi-honest client; receives the models, holds shadow examples.

    s_r = -loss(W_r, shadow)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveil.attacks.observation import Attack, Observation


@dataclass(frozen=True, eq=False)
class Loss(Attack):
    """Score by the loss on the shadow examples; see `Attack` for the parameters."""

    name: ClassVar[str] = "loss"
    summary: ClassVar[str] = "minus the loss on shadow data (the paper's score), mean over rounds"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow"})

    def run(self, observation: Observation) -> Tensor:
        return -self.knowledge.loss_of(observation.models[1:], self.knowledge.shadow)
