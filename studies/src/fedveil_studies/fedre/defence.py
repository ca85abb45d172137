"""What an attacker recovers of a sensitive region, and of the rest, from one noised release (table 2, figure 4)."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.engines import Seen
from fedveil.errors import FieldError
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks.inversion import DLG, Cosine, Inversion, ServerKnowledge, invert
from fedveil_lab.attacks.inversion.glyphs import GLYPH
from fedveil_lab.attacks.observation import Received, ThreatModel
from fedveil_lab.config import Config
from fedveil_studies.fedre.recovered import (
    FIGURES,
    MEASURED,
    Recovered,
    figures_of,
    secret,
    tiles_of,
)

ATTACK = DLG(steps=400, restarts=0, enough=1e-13)
THREAT = ThreatModel(
    "server or eavesdropper that knows the forged pixels",
    frozenset({"client models", "training", "labels", "reference"}),
)
LEVELS = (0.1, 0.2, 0.4, 1.0)  # of noise on pixels


class RegionInversion:
    """The attack as a probe: it inverts the releases of the first clients whose tile shows text that is sensitive.

    Each client takes one step of SGD on one tile; the attacker knows training, clipping, the noise's deviations, which
    pixels are forged, and the tiles of all other clients, as images of the same kind: where noise leaves nothing it
    answers with their mean. The server and an eavesdropper on the wire have the same: what arrived, and what opened
    the round. Which pixels are sensitive the attacker is not told.
    """

    images: ClassVar[int] = 6
    figures: Collection[str] = (*FIGURES, "guess")
    attack: ClassVar[Inversion] = ATTACK

    def __init__(self, full: Config) -> None:
        self.recovered: list[Recovered] = []

    @property
    def name(self) -> str:
        """Name with everything that determines the figures."""
        return (
            f"inversion of {self.images} tiles, secret where sensitive and not forged, by {self.attack}, forged pixels "
            f"and others' tiles known, glyphs {GLYPH}"
        )

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return means over the tiles; ``guess`` is the error of guessing the mean of all other tiles."""
        chosen, others = self._chosen(seen)
        self.recovered = [self._inverted(seen, p, others, self.attack) for p in chosen]
        mean = others.to(torch.float64).mean(0, keepdim=True)
        guessed = figures_of([replace(r, reconstruction=mean) for r in self.recovered])
        return {**figures_of(self.recovered), "guess": guessed["region_mse"]}

    def _chosen(self, seen: Seen) -> tuple[list[int], Tensor]:
        """Return the clients whose tiles are attacked, and the tiles of all others."""
        clients = seen.federation.clients
        if len(clients) < 3:
            raise FieldError(
                "data.clients",
                len(clients),
                "must be at least 3: the attacker knows the tiles of two",
            )
        chosen = tiles_of(clients)[: min(self.images, len(clients) - 2)]
        return chosen, torch.cat([client.x for p, client in enumerate(clients) if p not in chosen])

    def _inverted(self, seen: Seen, partition: int, others: Tensor, attack: Inversion) -> Recovered:
        federation = seen.federation
        client, learner, layout = (
            federation.clients[partition],
            federation.learner,
            federation.layout,
        )
        model = model_of(seen.received[partition])
        assert model is not None
        layers = layout.groups("module")
        clip = federation.server.method.client_clip
        if isinstance(clip, float):
            clip = dict.fromkeys(layers, clip)
        noise: float | dict[str, float] = 0.0
        scales = seen.record.client_scales.get(partition, ())
        if scales:
            noise = dict(zip(layers, scales, strict=True))
        known = ServerKnowledge(
            model=learner.model,
            layout=layout,
            local=learner.local,
            shape=tuple(client.x.shape[1:]),
            labels=client.y,
            clip=clip,
            noise=noise,
            reference=others,
        )
        received = Received(seen.broadcast.public.round, partition, seen.broadcast.models, model)
        reconstruction = invert(received, known, attack, THREAT).images
        return Recovered(client.x.to(torch.float64), secret(client), reconstruction)


class NoisedPixels:
    """Noise on the sensitive pixels themselves, with the same figures: what an attack finds that undoes all else.

    The noise is cut to the pixels' range, as what an attacker makes of it is.
    """

    figures: ClassVar[tuple[str, ...]] = tuple(
        f"{name} at {level}" for level in LEVELS for name in FIGURES
    )
    name: ClassVar[str] = f"noise on pixels, deviations {LEVELS}"

    def __init__(self, full: Config) -> None:
        self.seed = full.seed

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return the same figures for the tiles of `RegionInversion`."""
        clients, figures = seen.federation.clients, dict[str, float]()
        chosen = [clients[p] for p in tiles_of(clients)[: RegionInversion.images]]
        generator = torch.Generator().manual_seed(keyed_seed("noised pixels", self.seed))
        for level in LEVELS:
            tiles = []
            for client in chosen:
                original, mask = client.x.to(torch.float64), secret(client)
                noise = torch.randn(original.shape, generator=generator, dtype=torch.float64)
                noised = (original + level * noise * mask[:, None]).clamp(0, 1)
                tiles.append(Recovered(original, mask, noised))
            for name, value in figures_of(tiles).items():
                figures[f"{name} at {level}"] = value
        return figures


class CosineInversion(RegionInversion):
    """`RegionInversion` by the cosine attack: the direction of the update, with total variation."""

    attack: ClassVar[Inversion] = Cosine(steps=400)


class EveryInversion(RegionInversion):
    """Both attacks, and each answer also in the contrast of public tiles: the best of these four is what counts.

    A clip hides how long an update was, and so the contrast of what is found; mean and deviation of the others' tiles
    give it back. Figures are means over fewer tiles; the best is taken figure by figure. Only the release of round
    `after` is attacked: figures of other rounds are NaN.
    """

    images: ClassVar[int] = 3
    after: ClassVar[int] = 1
    attacks: ClassVar[Mapping[str, Inversion]] = {"DLG": ATTACK, "direction": Cosine(steps=400)}
    best: ClassVar[tuple[str, ...]] = (*MEASURED, "legible")
    answers: ClassVar[tuple[str, ...]] = tuple(
        f"{kind}{how}" for kind in attacks for how in ("", ", set")
    )
    figures = (
        *best,
        "guess",
        *(f"{answer} {what}" for answer in answers for what in ("region_ssim", "legible")),
    )

    @property
    def name(self) -> str:
        """Name with everything that determines the figures."""
        return f"{super().name}; the best of {dict(self.attacks)}, as they are and set, in round {self.after}"

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return the best figures of all answers, ``guess``, and some figures of each answer."""
        if seen.broadcast.public.round != self.after:
            return dict.fromkeys(self.figures, math.nan)
        chosen, others = self._chosen(seen)
        known = others.to(torch.float64)
        by_answer, tiles = dict[str, Mapping[str, float]](), list[Recovered]()
        for kind, attack in self.attacks.items():
            tiles = [self._inverted(seen, p, others, attack) for p in chosen]
            by_answer[kind] = figures_of(tiles)
            contrasted = []
            for tile in tiles:
                image = in_contrast(tile.reconstruction, known)
                contrasted.append(replace(tile, reconstruction=image))
            by_answer[f"{kind}, set"] = figures_of(contrasted)
        figures = {}
        for name in self.best:
            found = [each[name] for each in by_answer.values()]
            figures[name] = max(found)
            if name.endswith("mse"):
                figures[name] = min(found)
        mean = known.mean(0, keepdim=True)
        guessed = figures_of([replace(tile, reconstruction=mean) for tile in tiles])
        figures["guess"] = guessed["region_mse"]
        for kind, each in by_answer.items():
            for name in ("region_ssim", "legible"):
                figures[f"{kind} {name}"] = each[name]
        return figures


class TrainedInversion(EveryInversion):
    """`EveryInversion` on a model after sixty rounds of training."""

    after: ClassVar[int] = 60


def in_contrast(image: Tensor, known: Tensor) -> Tensor:
    """An image [1, ...] with the mean and the (mean) deviation of known ones [n, ...], cut to 0 to 1."""
    deviation = known.flatten(1).std(1).mean()
    standard = (image - image.mean()) / image.std().clamp_min(1e-9)
    return (standard * deviation + known.mean()).clamp(0, 1)
