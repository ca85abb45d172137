"""Colluding client inference: k clients subtract all they sent, and less is left to hide behind.

Source: named, not built, in Sáinz-Pardo Díaz et al. 2026, section 8.1; the equations are those of `own_update`. With
everybody but the target in the coalition, what is left without noise is the target's update itself.

Threat model: k semi-honest clients that share what they sent; each receives the models; together they hold the shadow
examples.

    rest_r = n (W_{r+1} - W_r) - sum over the k of clip(own update_r)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveil.attacks.observation import Attack, Observation
from fedveil.attacks.participation.own_update import trace


@dataclass(frozen=True, eq=False)
class Colluding(Attack):
    """Score by what the coalition did not send, along the target's trace; see `Attack` for the parameters."""

    name: ClassVar[str] = "colluding"
    summary: ClassVar[str] = "as own-update, by several clients together"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow", "own updates", "colluders"})

    def run(self, observation: Observation) -> Tensor:
        return trace(self.name, self.knowledge, observation, observation.sent)
