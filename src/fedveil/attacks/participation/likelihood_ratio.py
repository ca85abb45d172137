"""Shadow-calibrated likelihood ratio: how likely these scores are with the target, and how likely without.

Source: the likelihood ratio attack (Carlini et al. 2022, arXiv 2112.03570), with whole federations as shadow models
and a client as the member; per-round scores are those of `calibrated_loss`, weighed by `evidence`.

Threat model: semi-honest client; as for `calibrated_loss`, and able to rehearse: to run federations like this one,
dealt anew from the whole data set, with and without a client like the target. Rehearsals fix the direction, the weights
of the rounds and the threshold (0); no evaluated run has a say in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.attacks.observation import Attack
from fedveil.attacks.participation.calibrated_loss import CalibratedLoss
from fedveil.attacks.participation.weighing import Weighing


@dataclass(frozen=True, eq=False)
class LikelihoodRatio(Weighing):
    """Weigh calibrated losses; see `Weighing` for the parameters."""

    name: ClassVar[str] = "likelihood-ratio"
    summary: ClassVar[str] = "likelihood ratio of the calibrated losses, learnt from rehearsals"
    needs: ClassVar[frozenset[str]] = CalibratedLoss.needs | {"rehearsals"}
    weighs: ClassVar[tuple[type[Attack], ...]] = (CalibratedLoss,)
