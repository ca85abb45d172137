"""What attacks share that weigh the scores of other attacks by likelihoods learnt from rehearsals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.attacks.observation import Attack, Observation
from fedveil.attacks.participation.evidence import SequentialEvidence


@dataclass(frozen=True, eq=False)
class Weighing(Attack):
    """Run other attacks and weigh their scores; see `Attack` for the other parameters.

    Parameters
    ----------
    model : SequentialEvidence
        Fitted on `stacked` scores of rehearsals.

    Attributes
    ----------
    weighs : tuple of type
        The other attacks.
    steady : bool
        Whether their scores point the same way in every round; see `SequentialEvidence`.
    """

    model: SequentialEvidence

    cumulative: ClassVar[bool] = True
    weighs: ClassVar[tuple[type[Attack], ...]]
    steady: ClassVar[bool] = True

    def run(self, observation: Observation) -> Tensor:
        scores = {kind.name: kind(self.knowledge, self.threat).run(observation) for kind in self.weighs}
        return self.model.weigh(self.stacked(scores))

    @classmethod
    def stacked(cls, scores: Mapping[str, Tensor]) -> Tensor:
        """The scores [..., R] of the weighed attacks, by name, as [..., R, F]."""
        return torch.stack([scores[kind.name] for kind in cls.weighs], dim=-1)
