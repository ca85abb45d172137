"""Images of the region game: one of each attacked client, with the glyphs of its marked content, and public ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil_lab.attacks.inversion.glyphs import GLYPH, GlyphReading, Glyphs, glyphs_of, read_off
from fedveil_lab.attacks.inversion.knowledge import two_sided

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class MarkedImages:
    """Attacked and public images.

    Attributes
    ----------
    clients : list of ClientData
        Attacked clients, each with one image [1, C, H, W], its label and its marks.
    public : Tensor
        Images of clients that are not attacked, [m, C, H, W].
    glyph : tuple of int
        Rows and columns of a glyph.
    others : Glyphs
        Glyphs of the public images' marked content.
    """

    clients: list[ClientData]
    public: Tensor
    glyph: Size
    others: Glyphs

    @property
    def true(self) -> Glyphs:
        """Glyphs of the attacked images."""
        return self._cut([client.x for client in self.clients])

    def read(self, images: Sequence[Tensor]) -> GlyphReading:
        """Read the glyphs off reconstructions [1, C, H, W] of the attacked images."""
        return read_off(self._cut(images), self.true, self.others)

    def shares(self, reading: GlyphReading) -> list[float]:
        """Return the share of each image's glyphs that came back."""
        image, found = self.true.image, []
        for number in range(len(self.clients)):
            found.append(float(reading.read[image == number].mean()))
        return found

    def _cut(self, images: Sequence[Tensor]) -> Glyphs:
        return cut(images, self.clients, self.glyph)


def images_of(clients: Sequence[ClientData], most: int, glyph: Size | None) -> MarkedImages:
    """Choose one image of each attacked client: its first that has a glyph among its marked content.

    Parameters
    ----------
    clients : sequence of ClientData
        Clients with marks. Those that are not attacked, the last one among them, give the public images.
    most : int
        Largest number of attacked clients.
    glyph : tuple of int, optional
        Rows and columns of a glyph. Default: `GLYPH`, cut to the largest extent of marks in an image.

    Raises
    ------
    FieldError
        If no image has a glyph, or one client is all there is.
    """
    filled = [client for client in clients if client.examples]
    if len(filled) < 2:
        accepted = (
            "the images of a client that is not attacked are the server's reference: at least 2"
        )
        raise FieldError("data.clients", len(filled), accepted)
    size = glyph or _usual(filled)
    attacked, public = list[ClientData](), list[ClientData]()
    for client in filled[:-1]:
        one = _first(client, size)
        if one is None or len(attacked) == most:
            public.append(client)
        else:
            attacked.append(one)
    public.append(filled[-1])
    if not attacked:
        accepted = (
            f"must be cut so that marked content of an image fills one and holds ink, not {size}"
        )
        raise FieldError("--glyph", f"{size[0]}x{size[1]}", accepted)
    singles = [_single(client, i) for client in public for i in range(client.examples)]
    others = cut([one.x for one in singles], singles, size)
    return MarkedImages(attacked, torch.cat([client.x for client in public]), size, others)


def cut(images: Sequence[Tensor], clients: Sequence[ClientData], glyph: Size) -> Glyphs:
    """Cut images of clients with one image each into glyphs, from the first marked row and column on."""
    shown, originals, masks = list[Tensor](), list[Tensor](), list[Tensor]()
    for image, client in zip(images, clients, strict=True):
        mask = pixels_of(client)
        rows, columns = mask[0].any(1).nonzero(), mask[0].any(0).nonzero()
        if not len(rows):
            rows = columns = torch.zeros(1, 1, dtype=torch.int64)
        top, left = int(rows[0]), int(columns[0])
        if min(mask.shape[1] - top - glyph[0], mask.shape[2] - left - glyph[1]) < 0:
            continue  # no window fits there
        shown.append(image[..., top:, left:])
        originals.append(client.x[..., top:, left:])
        masks.append(mask[..., top:, left:])
    return glyphs_of(shown, originals, masks, glyph)


def pixels_of(client: ClientData) -> Tensor:
    """Return the marked pixels of a client's images, bool [N, H, W]: marked in any channel."""
    if client.masks is None:
        raise FieldError("masks", None, "say what is marked: the game is about marked content")
    if client.masks.dim() == 4:
        return client.masks.any(1)
    return client.masks


def _usual(clients: Sequence[ClientData]) -> Size:
    rows, columns = 1, 1
    for client in clients:
        masks = pixels_of(client)
        rows = max(rows, int(masks.any(2).sum(1).max()))
        columns = max(columns, int(masks.any(1).sum(1).max()))
    return min(GLYPH[0], rows), min(GLYPH[1], columns)


def _single(client: ClientData, i: int) -> ClientData:
    """Return a client with its image i alone."""
    one = slice(i, i + 1)
    masks = None if client.masks is None else client.masks[one]
    return ClientData(client.x[one], client.y[one], masks=masks)


def _first(client: ClientData, glyph: Size) -> ClientData | None:
    for i in range(client.examples):
        one = _single(client, i)
        if two_sided(pixels_of(one)) and len(cut([one.x], [one], glyph).windows):
            return one
    return None
