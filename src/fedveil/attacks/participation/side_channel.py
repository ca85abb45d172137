"""Client inference through published metrics: the noise on a model moves both losses, and their difference forgets it.

Source: FedVeil's own measurement; the difference of a shadow loss and the published loss is also what the single-shot
attack of Sáinz-Pardo Díaz et al. 2026, section 7.4.1, computes.

Threat model: semi-honest client; receives the models and the aggregated metrics, holds shadow examples.

    s_r = published loss_r - loss(W_r, shadow)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.attacks.observation import Attack, Observation, ThreatError


@dataclass(frozen=True, eq=False)
class SideChannel(Attack):
    """Score by the loss on shadow examples against the published one; see `Attack` for the parameters."""

    name: ClassVar[str] = "side-channel"
    summary: ClassVar[str] = "published aggregate loss minus the loss on shadow data"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "metrics", "shadow"})

    def run(self, observation: Observation) -> Tensor:
        published = [metrics.get("loss") for metrics in observation.published]
        if not published or any(value is None for value in published):
            raise ThreatError(f"attack {self.name!r} needs a published loss in every round, and there is none")
        aggregate = torch.tensor(published, dtype=torch.float64)
        return aggregate - self.knowledge.loss_of(observation.models[1:], self.knowledge.shadow)
