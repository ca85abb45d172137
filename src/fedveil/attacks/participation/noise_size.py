"""Client inference by the size of the noise: a rule that scales noise by private data tells them by its scale.

Source: FedVeil's own. Metric privacy divides by the distance of the clients' models, so a client unlike the others
makes the noise smaller; with d parameters the scale can be read off one release to about 1 / sqrt(2 d).

Threat model: semi-honest client; receives the models and can rehearse (see `likelihood_ratio`), which tells it what the
target does to the scale. It is handed no example of the target; its rehearsals are dealt from the whole data set.

    s_r = log |W_{r+1} - W_r|, weighed by `evidence`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.attacks.observation import Attack, Observation
from fedveil.attacks.participation.weighing import Weighing

TINY = 1e-30


@dataclass(frozen=True, eq=False)
class StepLength(Attack):
    """How far the model moved, without a direction: what `NoiseSize` weighs."""

    name: ClassVar[str] = "step-length"
    summary: ClassVar[str] = "log of the length of the model's step"
    needs: ClassVar[frozenset[str]] = frozenset({"models"})

    def run(self, observation: Observation) -> Tensor:
        steps = (observation.models[1:] - observation.models[:-1]).flatten(1).to(torch.float64)
        lengths: Tensor = torch.linalg.vector_norm(steps, dim=1)
        return lengths.clamp(min=TINY).log()


@dataclass(frozen=True, eq=False)
class NoiseSize(Weighing):
    """Weigh the lengths of the model's steps; see `Weighing` for the parameters."""

    name: ClassVar[str] = "noise-size"
    summary: ClassVar[str] = "likelihood ratio of the length of the model's steps, learnt from rehearsals"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "rehearsals"})
    weighs: ClassVar[tuple[type[Attack], ...]] = (StepLength,)
    steady: ClassVar[bool] = False  # a target may lengthen the first steps and shorten the last
