"""Informed client inference: everything that `adaptive` weighs, and the metrics that the server publishes.

Source: FedVeil's own. What publishing metrics gives away is the difference between this attack and `adaptive`: an
adversary that may ignore them loses nothing by seeing them, but for what there is to learn in its rehearsals.

Threat model: semi-honest client; as for `adaptive`, and sees the aggregated metrics.

    scores of `calibrated_loss`, `own_update` and `side_channel`, weighed together by `evidence`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.attacks.observation import Attack
from fedveil.attacks.participation.adaptive import Adaptive
from fedveil.attacks.participation.side_channel import SideChannel


@dataclass(frozen=True, eq=False)
class Informed(Adaptive):
    """Weigh the published loss too, and stop early; see `Weighing` for the parameters."""

    name: ClassVar[str] = "informed"
    summary: ClassVar[str] = "as adaptive, weighing the side channel too"
    needs: ClassVar[frozenset[str]] = Adaptive.needs | SideChannel.needs
    weighs: ClassVar[tuple[type[Attack], ...]] = (*Adaptive.weighs, SideChannel)
