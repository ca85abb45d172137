"""Read glyphs off reconstructions: each by its nearest one, among the true glyphs and those of public images.

An image is cut into windows of about one letter, side by side. A window is a glyph if it is marked and holds ink.
Windows are compared by correlation, so neither brightness nor contrast matters: a clip hides how long an update was,
and with it the contrast of what is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import unfold

GLYPH = (10, 7)  # rows and columns of a window, about one letter of a scan of 768 rows
ALIKE = 0.8  # correlation of two windows that show the same letter
MARKED = 0.7  # share of a window's pixels that must be marked
INK = 0.3  # difference of its lightest and darkest pixel


@dataclass(frozen=True, eq=False)
class Glyphs:
    """Glyphs of several images: their windows [n, pixels], centred and of length 1, and the image of each [n]."""

    windows: Tensor
    image: Tensor


@dataclass(frozen=True, eq=False)
class GlyphReading:
    """What was read: whether each glyph came back [n], and the share that naming the commonest glyph would reach."""

    read: Tensor
    blind: float

    @property
    def share(self) -> float:
        """Share of the glyphs that came back; 0 without a glyph."""
        if not len(self.read):
            return 0.0
        return float(self.read.mean())


def glyphs_of(
    shown: Sequence[Tensor],
    originals: Sequence[Tensor],
    masks: Sequence[Tensor],
    glyph: tuple[int, int] = GLYPH,
) -> Glyphs:
    """Cut images into the windows that are glyphs of their originals.

    Parameters
    ----------
    shown : sequence of Tensor
        Images [1, C, H, W], such as reconstructions or the originals themselves; channels are averaged.
    originals : sequence of Tensor
        Images of the same shapes that say where ink is.
    masks : sequence of Tensor
        Marked pixels of each image, bool [1, H, W].
    glyph : tuple of int
        Rows and columns of a window.
    """
    windows, image = [], []
    for number, (one, original, mask) in enumerate(zip(shown, originals, masks, strict=True)):
        kept = _holds_ink(original, mask, glyph)
        windows.append(_standardised(_windows(one, glyph)[kept]))
        image.append(torch.full((int(kept.sum()),), number))
    if not windows:
        return Glyphs(torch.zeros(0, glyph[0] * glyph[1]), torch.zeros(0, dtype=torch.int64))
    return Glyphs(torch.cat(windows), torch.cat(image))


def read_off(reconstructed: Glyphs, true: Glyphs, others: Glyphs | None = None) -> GlyphReading:
    """Name each reconstructed glyph by its nearest one, and compare with what stands there.

    Parameters
    ----------
    reconstructed, true : Glyphs
        The same glyphs as an attack found them, and as they are.
    others : Glyphs, optional
        Glyphs of public images, which may be named, too: the more there are, the harder a lucky guess.
    """
    texts = true.windows
    named = texts if others is None else torch.cat([texts, others.windows])
    if not len(texts):
        return GlyphReading(torch.zeros(0, dtype=torch.float64), 0.0)
    alike = (texts @ named.T > ALIKE).to(torch.float64)
    alike.fill_diagonal_(1.0)
    likeness, nearest = (reconstructed.windows @ named.T).max(1)
    found = alike[torch.arange(len(texts)), nearest] * (likeness > 0)
    return GlyphReading(found, float(alike.mean(0).max()))


def _holds_ink(image: Tensor, mask: Tensor, glyph: tuple[int, int]) -> Tensor:
    """Return which windows [n] of an image [1, C, H, W] are marked, and hold ink."""
    windows = _windows(image, glyph)
    marked = _windows(mask.to(torch.float64)[None], glyph).mean(1) > MARKED
    return marked & (windows.amax(1) - windows.amin(1) > INK)


def _windows(image: Tensor, glyph: tuple[int, int]) -> Tensor:
    """Cut an image [1, C, H, W] into windows [n, pixels], side by side; the mean of its channels."""
    columns: Tensor = unfold(image.to(torch.float64).mean(1, keepdim=True), glyph, stride=glyph)
    return columns.squeeze(0).T


def _standardised(windows: Tensor) -> Tensor:
    centred = windows - windows.mean(1, keepdim=True)
    lengths: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    return centred / lengths.clamp_min(1e-12)
