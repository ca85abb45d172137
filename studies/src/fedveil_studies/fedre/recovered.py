"""Measure what an attack recovered of secret text: errors, and how much of it is legible."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import unfold

from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil_lab.attacks.inversion.knowledge import two_sided
from fedveil_lab.attacks.inversion.metrics import region_and_rest

MEASURED = tuple(
    f"{where}_{what}" for where in ("region", "rest") for what in ("mse", "ssim", "psnr")
)
FIGURES = (*MEASURED, "legible", "blind", "glyphs")
GLYPH = (10, 7)  # rows and columns of a window, about one letter
ALIKE = 0.8  # correlation of two windows that show the same letter


@dataclass(frozen=True, eq=False)
class Recovered:
    """One client's tile [1, 1, H, W], its secret pixels [1, H, W], and the attack's reconstruction.

    Secret pixels are sensitive ones that the client wrote itself; forged pixels, which the attacker knows, are left
    out.
    """

    original: Tensor
    mask: Tensor
    reconstruction: Tensor


def secret(client: ClientData) -> Tensor:
    """Return the client's sensitive pixels without forged ones, bool [n, H, W]."""
    assert client.masks is not None
    return client.masks & (client.y == 0)


def tiles_of(clients: Sequence[ClientData]) -> list[int]:
    """Partitions of one example that is sensitive in part, and shows text there; at least one, or `FieldError`."""
    chosen = [p for p, client in enumerate(clients) if _partly_sensitive(client)]
    if not chosen:
        raise FieldError(
            "data.sensitive",
            None,
            "marks text in a part of no client's tile: more clients are needed",
        )
    return chosen


def figures_of(recovered: Sequence[Recovered]) -> dict[str, float]:
    """`MEASURED`, means over the tiles, and `legibility`."""
    units = [
        region_and_rest(r.original, r.reconstruction, r.mask, data_range=1.0) for r in recovered
    ]
    return {
        **{name: fmean(float(unit[name]) for unit in units) for name in MEASURED},
        **legibility(recovered),
    }


def legibility(recovered: Sequence[Recovered]) -> dict[str, float]:
    """How much of the sensitive text is read off a reconstruction by its nearest glyph.

    Every window of `GLYPH`'s size that is sensitive and holds ink is compared, by correlation, with all such windows of
    the originals: ``"legible"`` is the share whose nearest one shows what stands there, itself or another window that
    looks the same; ``"blind"`` the share that naming the commonest one would reach; ``"glyphs"`` the number of
    windows. 0 without one.
    """
    own, seen = [], []
    for one in recovered:
        kept = _text(one.original, one.mask)
        own.append(_standardised(_windows(one.original)[kept]))
        seen.append(_standardised(_windows(one.reconstruction)[kept]))
    texts, reconstructed = torch.cat(own), torch.cat(seen)
    if not len(texts):
        return {"legible": 0.0, "blind": 0.0, "glyphs": 0.0}
    alike = (texts @ texts.T > ALIKE).to(torch.float64)
    alike.fill_diagonal_(1.0)
    nearest = (reconstructed @ texts.T).argmax(1)
    legible = float(alike[torch.arange(len(texts)), nearest].mean())
    return {"legible": legible, "blind": float(alike.mean(0).max()), "glyphs": float(len(texts))}


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
    if client.masks is None or client.examples != 1 or not two_sided(secret(client)[:, 3:-3, 3:-3]):
        return False
    return bool(_text(client.x.to(torch.float64), secret(client)).any())
