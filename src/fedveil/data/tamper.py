"""Forge words on scanned pages: copy-move, splice and erase inside boxes of text, with the exact mask of what changed.

The paper's T-SROIE and DocTamper are not to be had; this generator stands in for them. Every change lies inside the
rectangle of a text box, and outside the mask a page keeps every pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Page = NDArray[np.uint8]  # [H, W], dark text on light paper

KINDS = ("copy-move", "splice", "erase")
_LEAST = 6  # pixels: smaller boxes hold nothing to forge


@dataclass(frozen=True)
class Box:
    """A rectangle of text in pixels; bottom and right are exclusive."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        """Rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Columns."""
        return self.right - self.left

    def cut(self, page: Page) -> Page:
        """The pixels inside."""
        return page[self.top : self.bottom, self.left : self.right]


def boxes_of(quads: NDArray[Any], height: int, width: int) -> list[Box]:
    """Upright rectangles around quadrilaterals [n, 8] of x1, y1, ..., y4, cut at the page's edge, without tiny ones."""
    corners = quads.reshape(-1, 4, 2)
    low = np.floor(corners.min(1)).astype(int).clip(0)
    high = np.ceil(corners.max(1)).astype(int)
    found = [
        Box(top, left, min(bottom, height), min(right, width))
        for (left, top), (right, bottom) in zip(low.tolist(), high.tolist(), strict=True)
    ]
    return [box for box in found if box.height >= _LEAST and box.width >= _LEAST]


def tamper(
    page: Page, boxes: Sequence[Box], donor: tuple[Page, Sequence[Box]], where: Box, kind: str, rng: np.random.Generator
) -> tuple[Page, Box]:
    """Forge a part of one text box.

    Parameters
    ----------
    page : ndarray
        [H, W]; not changed.
    boxes : sequence of Box
        Its text boxes.
    donor : tuple
        Another page and its text boxes, for ``"splice"``.
    where : Box
        The text box to forge; from a third of its width up to all of it is.
    kind : {"copy-move", "splice", "erase"}
        Paste text from another box of the page, or of the donor, with the paper's brightness matched; or cover the
        text with paper.
    rng : numpy.random.Generator
        Decides the part, the text and the grain of the paper.

    Returns
    -------
    forged : ndarray
        [H, W].
    mask : Box
        The part that was overwritten.
    """
    part = _part(where, rng)
    if kind == "erase":
        patch = _paper(page, where, part, rng)
    else:
        source, texts = donor if kind == "splice" else (page, [b for b in boxes if b != where])
        patch = _text(source, texts or [where], part, rng)
        patch = _matched(patch, _brightness(where.cut(page)))
    forged = page.copy()
    forged[part.top : part.bottom, part.left : part.right] = patch
    return forged, part


def _part(box: Box, rng: np.random.Generator) -> Box:
    width = max(_LEAST, round(box.width * float(rng.uniform(1 / 3, 1))))
    left = box.left + int(rng.integers(0, box.width - min(width, box.width) + 1))
    return Box(box.top, left, box.bottom, left + min(width, box.width))


def _text(source: Page, texts: Sequence[Box], part: Box, rng: np.random.Generator) -> Page:
    """A piece of other text, stretched to the part's height and repeated or cut to its width."""
    box = texts[int(rng.integers(len(texts)))]
    own = box.cut(source)
    rows = np.minimum((np.arange(part.height) + 0.5) * box.height / part.height, box.height - 1).astype(int)
    ratio = box.height / part.height
    needed = min(box.width, max(1, round(part.width * ratio)))
    start = int(rng.integers(0, box.width - needed + 1))
    columns = start + np.minimum((np.arange(part.width) + 0.5) * needed / part.width, needed - 1).astype(int)
    piece: Page = own[rows][:, columns]
    return piece


def _brightness(pixels: Page) -> float:
    """Of the paper between the letters."""
    return float(np.quantile(pixels, 0.8))


def _matched(patch: Page, wanted: float) -> Page:
    scaled = patch.astype(np.float64) * (wanted / max(_brightness(patch), 1.0))
    return np.rint(scaled).clip(0, 255).astype(np.uint8)


def _paper(page: Page, box: Box, part: Box, rng: np.random.Generator) -> Page:
    """Pixels drawn from the lightest third of the box, where its paper shows."""
    own = box.cut(page)
    light: Page = own[own >= np.quantile(own, 2 / 3)]
    return np.asarray(light[rng.integers(0, len(light), size=(part.height, part.width))], dtype=np.uint8)
