"""What an attacker recovers of a sensitive region, and of the rest, from one noised release (table 2, figure 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.attacks.inversion import DLG, ServerKnowledge, invert
from fedveil.attacks.inversion.metrics import region_and_rest, two_sided
from fedveil.attacks.observation import Received, ThreatModel
from fedveil.config import Config
from fedveil.engines.probe import Seen
from fedveil.errors import FieldError
from fedveil.learning import ClientData

ATTACK = DLG(steps=150, restarts=0)
THREAT = ThreatModel(
    "server or eavesdropper that knows the forged pixels", frozenset({"client models", "training", "labels"})
)
FIGURES = tuple(f"{where}_{what}" for where in ("region", "rest") for what in ("mse", "ssim", "psnr"))


@dataclass(frozen=True, eq=False)
class Recovered:
    """One client's tile [1, 1, H, W], what marks it as sensitive [1, H, W], and what the attack made of its release."""

    original: Tensor
    mask: Tensor
    found: Tensor


class RegionInversion:
    """The attack as a probe: it inverts the releases of the first clients of one tile that is sensitive in part.

    Each client takes one step of SGD on one tile; the attacker knows training, clipping, the noise's deviations and
    which pixels are forged. Without noise it therefore finds nearly every pixel: what noise hides is measured.
    """

    images: ClassVar[int] = 3
    figures: ClassVar[tuple[str, ...]] = FIGURES

    def __init__(self, full: Config) -> None:
        self.recovered: list[Recovered] = []

    @property
    def name(self) -> str:
        """With what decides the figures."""
        return f"inversion of {self.images} tiles by DLG, {ATTACK.steps} evaluations, forged pixels known"

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Means over the tiles."""
        chosen = [p for p in sorted(seen.received) if _partly_sensitive(seen.federation.clients[p])][: self.images]
        if not chosen:
            raise FieldError("data.sensitive", None, "marks a part of no client's tile: more clients are needed")
        self.recovered = [_inverted(seen, p) for p in chosen]
        units = [region_and_rest(r.original, r.found, r.mask, data_range=1.0) for r in self.recovered]
        return {name: fmean(float(unit[name]) for unit in units) for name in FIGURES}


def _partly_sensitive(client: ClientData) -> bool:
    """Whether SSIM exists on both sides: on windows of 7 x 7."""
    return client.masks is not None and client.examples == 1 and two_sided(client.masks[:, 3:-3, 3:-3])


def _inverted(seen: Seen, partition: int) -> Recovered:
    client, learner, layout = seen.federation.clients[partition], seen.federation.learner, seen.federation.layout
    model, scales = model_of(seen.received[partition]), seen.record.client_scales.get(partition, ())
    assert model is not None
    assert client.masks is not None
    layers = layout.groups("module")
    bound = seen.federation.server.method.client_clip
    known = ServerKnowledge(
        model=learner.model,
        layout=layout,
        local=learner.local,
        shape=tuple(client.x.shape[1:]),
        labels=client.y,
        clip=dict.fromkeys(layers, bound) if isinstance(bound, float) else bound,
        noise=dict(zip(layers, scales, strict=True)) if scales else 0.0,
    )
    received = Received(seen.broadcast.public.round, partition, seen.broadcast.models, model)
    found = invert(received, known, ATTACK, THREAT).images
    return Recovered(client.x.to(torch.float64), client.masks, found)
