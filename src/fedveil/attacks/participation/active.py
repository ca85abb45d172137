"""Active client inference: undo the training, so that every round shows what the target does to a young model.

Source: model replacement (Bagdasaryan et al. 2020, arXiv 1807.00459), turned from planting a backdoor to keeping the
target's trace large. Named, not built, in Sáinz-Pardo Díaz et al. 2026, section 5.2. (Gradient ascent on the shadow
examples, as of Nasr et al. 2019, was tried first: others that hold such examples pull back too, and it gained nothing.)

Threat model: a malicious client; receives the models, holds shadow and reference examples, can rehearse (see
`likelihood_ratio`), and sends what it likes instead of what it trained. The server cuts it to the public clipping norm
like everybody; without such a bound it may pull harder, and others see the accuracy fall.

    sent_r = W_r + gain (W_1 - W_r)                      W_1: the first broadcast
    s_r    = the scores of `calibrated_loss` and of `own_update` (with the update that was really sent subtracted),
             weighed together by `evidence`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveil.attacks.observation import Attack, Observation
from fedveil.attacks.participation.calibrated_loss import CalibratedLoss
from fedveil.attacks.participation.own_update import trace
from fedveil.attacks.participation.weighing import Weighing

GAIN = 1.0


@dataclass(frozen=True, eq=False)
class PullBack(Attack):
    """The others' update after a reset: one of the scores that `Active` weighs; see `Attack` for the parameters."""

    name: ClassVar[str] = "pull-back"
    summary: ClassVar[str] = "as own-update, after pulling the model back to its start"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow", "own updates", "crafted updates"})

    def run(self, observation: Observation) -> Tensor:
        return trace(self.name, self.knowledge, observation, observation.sent[:1])


@dataclass(frozen=True, eq=False)
class Active(Weighing):
    """Craft updates, then weigh losses and the others' updates; see `Weighing` for the parameters."""

    name: ClassVar[str] = "active"
    summary: ClassVar[str] = "as adaptive, after pulling the model back to its start in every round"
    needs: ClassVar[frozenset[str]] = CalibratedLoss.needs | PullBack.needs | {"rehearsals"}
    weighs: ClassVar[tuple[type[Attack], ...]] = (CalibratedLoss, PullBack)


def craft(start: Tensor, first: Tensor, gain: float = GAIN) -> Tensor:
    """The model [d] to send instead of the trained one.

    Parameters
    ----------
    start, first : Tensor
        [d], this round's broadcast and the first one.
    gain : float
        1 asks for the first model itself; with n clients about n would replace the average.
    """
    return start + gain * (first - start)
