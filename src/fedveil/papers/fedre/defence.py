"""What an attacker recovers of a sensitive region, and of the rest, from one noised release (table 2, figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import unfold

from fedveil.accounting import model_of
from fedveil.attacks.inversion import DLG, ServerKnowledge, invert
from fedveil.attacks.inversion.metrics import region_and_rest, two_sided
from fedveil.attacks.observation import Received, ThreatModel
from fedveil.config import Config
from fedveil.engines.probe import Seen
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.mechanisms import keyed_seed

ATTACK = DLG(steps=400, restarts=0, enough=1e-13)
THREAT = ThreatModel(
    "server or eavesdropper that knows the forged pixels",
    frozenset({"client models", "training", "labels", "reference"}),
)
MEASURED = tuple(f"{where}_{what}" for where in ("region", "rest") for what in ("mse", "ssim", "psnr"))
FIGURES = (*MEASURED, "legible", "blind")
GLYPH = (10, 7)  # rows and columns of a window, about one letter
LEVELS = (0.1, 0.2, 0.4, 1.0)  # of noise on pixels
ALIKE = 0.8  # correlation of two windows that show the same letter


@dataclass(frozen=True, eq=False)
class Recovered:
    """One client's tile [1, 1, H, W], what marks it as sensitive [1, H, W], and what the attack made of its release."""

    original: Tensor
    mask: Tensor
    found: Tensor


class RegionInversion:
    """The attack as a probe: it inverts the releases of the first clients whose tile shows text that is sensitive.

    Each client takes one step of SGD on one tile; the attacker knows training, clipping, the noise's deviations, which
    pixels are forged, and the tiles of all other clients, as images of the same kind: where noise leaves nothing it
    answers with their mean. The server and an eavesdropper on the wire have the same: what arrived, and what opened
    the round. Which pixels are sensitive the attacker is not told.
    """

    images: ClassVar[int] = 6
    figures: ClassVar[tuple[str, ...]] = FIGURES

    def __init__(self, full: Config) -> None:
        self.recovered: list[Recovered] = []

    @property
    def name(self) -> str:
        """With what decides the figures."""
        return (
            f"inversion of {self.images} tiles by DLG, {ATTACK.steps} evaluations, forged pixels and others' tiles "
            f"known, glyphs {GLYPH}"
        )

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Means over the tiles."""
        chosen = tiles_of(seen.federation.clients)[: self.images]
        others = [client.x for p, client in enumerate(seen.federation.clients) if p not in chosen]
        self.recovered = [_inverted(seen, p, torch.cat(others) if len(others) > 1 else None) for p in chosen]
        return figures_of(self.recovered)


class NoisedPixels:
    """Noise on the sensitive pixels themselves, with the same figures: what an attack finds that undoes all else.

    The noise is cut to the pixels' range, as what an attacker makes of it is.
    """

    figures: ClassVar[tuple[str, ...]] = tuple(f"{name} at {level}" for level in LEVELS for name in FIGURES)
    name: ClassVar[str] = f"noise on pixels, deviations {LEVELS}"

    def __init__(self, full: Config) -> None:
        self.seed = full.seed

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Of the tiles that `RegionInversion` looks at."""
        clients, found = seen.federation.clients, dict[str, float]()
        chosen = [clients[p] for p in tiles_of(clients)[: RegionInversion.images]]
        generator = torch.Generator().manual_seed(keyed_seed("noised pixels", self.seed))
        for level in LEVELS:
            tiles = []
            for client in chosen:
                assert client.masks is not None
                original = client.x.to(torch.float64)
                noise = level * torch.randn(original.shape, generator=generator, dtype=torch.float64)
                noised = (original + noise * client.masks[:, None]).clamp(0, 1)
                tiles.append(Recovered(original, client.masks, noised))
            found |= {f"{name} at {level}": value for name, value in figures_of(tiles).items()}
        return found


def tiles_of(clients: Sequence[ClientData]) -> list[int]:
    """Partitions of one example that is sensitive in part, and shows text there; at least one, or `FieldError`."""
    chosen = [p for p, client in enumerate(clients) if _partly_sensitive(client)]
    if not chosen:
        raise FieldError("data.sensitive", None, "marks text in a part of no client's tile: more clients are needed")
    return chosen


def figures_of(recovered: Sequence[Recovered]) -> dict[str, float]:
    """`MEASURED`, means over the tiles, and `legibility`."""
    units = [region_and_rest(r.original, r.found, r.mask, data_range=1.0) for r in recovered]
    return {**{name: fmean(float(unit[name]) for unit in units) for name in MEASURED}, **legibility(recovered)}


def legibility(recovered: Sequence[Recovered]) -> dict[str, float]:
    """How much of the sensitive text is read off a reconstruction by its nearest glyph.

    Every window of `GLYPH`'s size that is sensitive and holds ink is compared, by correlation, with all such windows of
    the originals: ``"legible"`` is the share whose nearest one shows what stands there, itself or another window that
    looks the same; ``"blind"`` the share that naming the commonest one would reach. 0 without a window.
    """
    own, seen = [], []
    for one in recovered:
        kept = _text(one.original, one.mask)
        own.append(_standardised(_windows(one.original)[kept]))
        seen.append(_standardised(_windows(one.found)[kept]))
    texts, found = torch.cat(own), torch.cat(seen)
    if not len(texts):
        return {"legible": 0.0, "blind": 0.0}
    alike = (texts @ texts.T > ALIKE).to(torch.float64)
    alike.fill_diagonal_(1.0)
    nearest = (found @ texts.T).argmax(1)
    return {"legible": float(alike[torch.arange(len(texts)), nearest].mean()), "blind": float(alike.mean(0).max())}


def _text(image: Tensor, mask: Tensor) -> Tensor:
    """Which windows [n] of an image [1, 1, H, W] are sensitive by more than .7 of [1, H, W], and hold ink."""
    windows = _windows(image)
    sensitive = _windows(mask.to(torch.float64)[None]).mean(1) > 0.7
    return sensitive & (windows.amax(1) - windows.amin(1) > 0.3)


def _windows(image: Tensor) -> Tensor:
    """[1, 1, H, W] to [n, pixels], side by side."""
    columns: Tensor = unfold(image, GLYPH, stride=GLYPH)
    return columns.squeeze(0).T


def _standardised(windows: Tensor) -> Tensor:
    centred = windows - windows.mean(1, keepdim=True)
    lengths: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    return centred / lengths.clamp_min(1e-12)


def _partly_sensitive(client: ClientData) -> bool:
    """Whether text is sensitive, and SSIM exists on both sides: on windows of 7 x 7."""
    masks = client.masks
    if masks is None or client.examples != 1 or not two_sided(masks[:, 3:-3, 3:-3]):
        return False
    return bool(_text(client.x.to(torch.float64), masks).any())


def _inverted(seen: Seen, partition: int, others: Tensor | None) -> Recovered:
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
        reference=others,
    )
    received = Received(seen.broadcast.public.round, partition, seen.broadcast.models, model)
    found = invert(received, known, ATTACK, THREAT).images
    return Recovered(client.x.to(torch.float64), client.masks, found)
