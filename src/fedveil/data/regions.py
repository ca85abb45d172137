"""Which text boxes of a receipt hold what its owner may call sensitive: company, date, address, total."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedveil.data.tamper import Box

SENSITIVE = ("company", "date", "address", "total")
_SHORT = 3  # letters and digits: a shorter word of an address would be found everywhere


def sensitive_boxes(boxes: Sequence[Box], keys: Mapping[str, str]) -> dict[str, list[Box]]:
    """Text boxes by the kind of key text that stands in them.

    Parameters
    ----------
    boxes : sequence of Box
        With their texts.
    keys : mapping of str to str
        The receipt's key texts, some of `SENSITIVE`.

    Returns
    -------
    dict of str to list of Box
        A box belongs to the date if it holds the whole date, to the total if it holds that amount and no other digits,
        and to company or address if its text is a part of it, or the other way round. A kind whose text is found
        nowhere has an empty list.
    """
    return {kind: [b for b in boxes if _holds(kind, b.text, keys.get(kind, ""))] for kind in SENSITIVE}


def region_bits(kinds: Mapping[str, Sequence[Box]], height: int, width: int) -> NDArray[np.uint8]:
    """[H, W]: bit j of a pixel says that it lies in a box of `SENSITIVE`'s kind j."""
    bits = np.zeros((height, width), dtype=np.uint8)
    for j, kind in enumerate(SENSITIVE):
        for box in kinds.get(kind, ()):
            bits[box.top : box.bottom, box.left : box.right] |= np.uint8(1 << j)
    return bits


def _holds(kind: str, text: str, key: str) -> bool:
    if kind == "total":
        return bool(_digits(key)) and _digits(text) == _digits(key)
    own, wanted = _plain(text), _plain(key)
    if kind == "date":
        return bool(wanted) and wanted in own
    return len(wanted) > _SHORT and len(own) > _SHORT and (own in wanted or wanted in own)


def _plain(text: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", text.upper())


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)
