"""Cosine similarity and total variation: what works on ReLU networks.

Source: Geiping, Bauermeister, Droege and Moeller 2020 (Inverting Gradients, arXiv 2003.14053), on updates.

Threat model: honest-but-curious server; receives the client's own model, knows how it trained.

    min over x    2 (1 - cos(U(x, y), u))  +  w TV(x)          by Adam on the signs of the gradient

U simulates local training, labels y are read from the last layer. A direction is all that this needs: flat clipping
changes nothing. Noise-aware: coordinates weigh as their noise allows, and w grows with the noise, see `matching`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.attacks.inversion.knowledge import Inversion, Reconstruction, ServerKnowledge
from fedveil.attacks.inversion.labels import recover_labels
from fedveil.attacks.inversion.matching import Target, dummy, image_prior, signed_adam
from fedveil.attacks.inversion.simulate import Simulator
from fedveil.attacks.observation import Received

Prior = Callable[[Tensor], Tensor]  # examples [N, ...] -> a penalty


@dataclass(frozen=True, kw_only=True)
class Cosine(Inversion):
    """Match the update's direction by signed Adam.

    Parameters
    ----------
    steps : int
        Of Adam, of one start.
    lr : float
        First step, as a share of the pixels' range.
    variation : float
        Weight of the mean total variation where there is no noise.
    restarts : int
        Further starts; the best objective is returned.
    seed : int
        Of the starts.
    """

    steps: int = 800
    lr: float = 0.1
    variation: float = 1e-3
    restarts: int = 0
    seed: int = 0

    name: ClassVar[str] = "cosine"
    summary: ClassVar[str] = "match the update's direction under total variation, by signed Adam"

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        generator = torch.Generator().manual_seed(self.seed)
        simulator = Simulator(known, received.start, dtype=torch.float32)
        target = Target.of(received.update, known, torch.float32)
        labels = recover_labels(received, known, generator)
        prior = self._prior(simulator, received, known)

        def objective(x: Tensor) -> Tensor:
            fit = target.cosine(simulator.update(x[None], labels))
            return fit + image_prior(x, target, known, self.variation) + prior(x)

        best, value = torch.zeros(known.examples, *known.shape), float("inf")
        for _ in range(self.restarts + 1):
            first = dummy(known, known.examples, generator, torch.float32)
            found, reached = signed_adam(
                objective, first, known.pixels, steps=self.steps, lr=self.lr * known.data_range
            )
            if reached < value:
                best, value = found, reached
        return Reconstruction(best.to(torch.float64), labels, value, self.restarts)

    def _prior(self, simulator: Simulator, received: Received, known: ServerKnowledge) -> Prior:
        """A further penalty; here there is none."""
        return lambda x: x.new_zeros(())
