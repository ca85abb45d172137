"""Noise: send a random vector.

Source: Blanchard et al. 2017, "Machine learning with adversaries" (the Gaussian attack).

    sent = start + factor |trained - start| g        g uniform on the sphere, another for every client and round

Threat model: malicious clients that know nothing of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.engines.behaviour import Behaviour, Turn
from fedveil.errors import require_positive
from fedveil.mechanisms import keyed_seed


def random_vector(length: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """A vector of a length in a direction that is uniform on the sphere; [d] like another."""
    draw = torch.randn(len(like), generator=generator, dtype=torch.float64)
    return (draw * (length / float(draw.norm()))).to(like.dtype)


def generator_of(name: str, seed: int, turn: Turn) -> torch.Generator:
    """The stream of a client in a round."""
    return torch.Generator().manual_seed(keyed_seed(name, seed, turn.broadcast.public.round, turn.partition))


@dataclass(frozen=True, eq=False, kw_only=True)
class NoiseAttack(Behaviour):
    """Send a random vector, `factor` times as long as the trained update; every client and round another one."""

    factor: float = 1.0
    seed: int = 0
    bypass: bool = False

    def __post_init__(self) -> None:
        """Check the factor."""
        require_positive("factor", self.factor)

    def model(self, turn: Turn) -> Tensor:
        """The start plus noise."""
        length = self.factor * float(turn.update.norm())
        return turn.start + random_vector(length, turn.start, generator_of("noise attack", self.seed, turn))
