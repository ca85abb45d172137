"""Measure what an attack recovered of secret text: errors, and how much of it is legible."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil_lab.attacks.inversion.glyphs import glyphs_of, read_off
from fedveil_lab.attacks.inversion.knowledge import two_sided
from fedveil_lab.attacks.inversion.metrics import region_and_rest

MEASURED = tuple(
    f"{where}_{what}" for where in ("region", "rest") for what in ("mse", "ssim", "psnr")
)
FIGURES = (*MEASURED, "legible", "blind", "glyphs")


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
    figures = {}
    for name in MEASURED:
        figures[name] = fmean([float(unit[name]) for unit in units])
    return figures | legibility(recovered)


def legibility(recovered: Sequence[Recovered]) -> dict[str, float]:
    """How much of the sensitive text is read off a reconstruction by its nearest glyph, see `read_off`.

    ``"legible"`` is the share that came back, ``"blind"`` the share that naming the commonest glyph would reach,
    ``"glyphs"`` their number.
    """
    originals, masks, reconstructions = [], [], []
    for one in recovered:
        originals.append(one.original)
        masks.append(one.mask)
        reconstructions.append(one.reconstruction)
    true = glyphs_of(originals, originals, masks)
    found = glyphs_of(reconstructions, originals, masks)
    reading = read_off(found, true)
    return {
        "legible": reading.share,
        "blind": reading.blind,
        "glyphs": float(len(true.windows)),
    }


def _partly_sensitive(client: ClientData) -> bool:
    """Whether text is sensitive, and SSIM exists on both sides: on windows of 7 x 7."""
    if client.masks is None or client.examples != 1 or not two_sided(secret(client)[:, 3:-3, 3:-3]):
        return False
    x = client.x.to(torch.float64)
    return bool(len(glyphs_of([x], [x], [secret(client)]).windows))
