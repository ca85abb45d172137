"""Scanned receipts of SROIE 2019 with seeded forgeries; the task is to find the forged pixels."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.data import DataSet
from fedveil.data.arrays import images
from fedveil.data.labels import Array, natural_clients
from fedveil.data.pages import Box, Grey
from fedveil.data.tamper import KINDS, tamper
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.mechanisms import keyed_seed
from fedveil_studies.data import SROIE
from fedveil_studies.data.named import arrays_of

NOTE = (
    "Forgeries are made by FedVeil's own seeded generator: T-SROIE and DocTamper, the FedRE paper's sets, are not to "
    "be had, and figures are not theirs."
)

SENSITIVE = ("company", "date", "address", "total")
_SHORT = 3  # letters and digits: a shorter word of an address would be found everywhere


def boxes_of(quads: NDArray[Any], height: int, width: int, texts: Sequence[str] = ()) -> list[Box]:
    """Return upright rectangles around quadrilaterals [n, 8] (x1, y1, ..., y4), cut at the page's edge, in order."""
    corners = quads.reshape(-1, 4, 2)
    low = np.floor(corners.min(1)).astype(int).clip(0)
    high = np.ceil(corners.max(1)).astype(int)
    words = list(texts) or [""] * len(corners)
    return [
        Box(top, left, max(top, min(bottom, height)), max(left, min(right, width)), word)
        for (left, top), (right, bottom), word in zip(
            low.tolist(), high.tolist(), words, strict=True
        )
    ]


@dataclass(frozen=True)
class _Receipt:
    page: Grey
    boxes: list[Box]  # that can be forged
    bits: NDArray[np.uint8]  # [H, W], where the key texts stand


def load_sroie(
    *,
    tile: int = 128,
    tiles: int = 4,
    kinds: Sequence[str] = KINDS,
    tamper_seed: int = 0,
    test_receipts: int = 40,
    train_receipts: int = 0,
) -> DataSet:
    """Load square tiles of receipts, [1, tile, tile], each with one forged word; y says 0 or 1 for every pixel.

    Natural clients are the companies that issued the receipts. Tiles of one receipt stay together: at one client, in
    its training part or in what it holds out, and in one half of the set. `regions` says where
    each tile shows the receipt's company, date, address or total.

    Parameters
    ----------
    tile : int
        Height and width of a tile in pixels, 32 to 192. Receipts are up to 768 pixels high, and lines of text about 13.
    tiles : int
        Number of tiles per receipt, at different words if it has enough.
    kinds : sequence of str
        Kinds of forgery, from "copy-move", "splice" (text of another receipt of the same half), "erase" and "retype".
    tamper_seed : int
        Seed of tiles, forgeries, and the test half.
    test_receipts : int
        Number of the 200 receipts in the test half; 0 for none.
    train_receipts : int
        Number of training receipts, as of a single party; 0: all others.

    Raises
    ------
    MissingDataError
        If the file is missing.
    """
    if not 32 <= require_count("data.tile", tile) <= 192:
        raise FieldError(
            "data.tile", tile, "must be 32 to 192 pixels: every receipt has room for that"
        )
    require_count("data.tiles", tiles)
    if not kinds:
        raise FieldError("data.kinds", list(kinds), f"must name at least one of {', '.join(KINDS)}")
    for kind in kinds:
        require_choice("data.kinds", kind, KINDS)
    receipts, companies = _receipts()
    if require_count("data.test_receipts", test_receipts, least=0) >= len(receipts) - 1:
        raise FieldError(
            "data.test_receipts",
            test_receipts,
            f"must leave 2 of {len(receipts)} receipts to train on",
        )
    order = (
        np.random.default_rng(keyed_seed("receipts", tamper_seed))
        .permutation(len(receipts))
        .tolist()
    )
    most = len(receipts) - test_receipts
    if require_count("data.train_receipts", train_receipts, least=0) > most or train_receipts == 1:
        raise FieldError(
            "data.train_receipts", train_receipts, f"must be 2 to {most}, or 0 for all of those"
        )
    halves = [
        sorted(order[test_receipts:][: train_receipts or most]),
        sorted(order[:test_receipts]),
    ]
    made = [_half(receipts, half, tile, tiles, kinds, tamper_seed) for half in halves if half]
    owner, owners = natural_clients(
        "company",
        np.repeat(np.array([companies[i] for i in halves[0]], dtype=np.str_), tiles),
        len(made[0][0]),
    )
    test = len(made) > 1
    return DataSet(
        name="sroie",
        x=images(made[0][0]),
        y=torch.from_numpy(made[0][1]),
        test_x=images(made[1][0]) if test else None,
        test_y=torch.from_numpy(made[1][1]) if test else None,
        classes=2,
        class_names=("genuine", "tampered"),
        owner=owner,
        owners=owners,
        group=torch.arange(len(halves[0])).repeat_interleave(tiles),
        regions=torch.from_numpy(made[0][2]),
        region_names=SENSITIVE,
        note=NOTE,
        licence=SROIE.licence,
    )


def _receipts() -> tuple[list[_Receipt], list[str]]:
    wanted = ["pixels", "pixel_offsets", "shapes", "boxes", "box_offsets", "box_text", "key_json"]
    arrays = arrays_of("sroie", SROIE, wanted)
    starts, corners = arrays["pixel_offsets"].tolist(), arrays["box_offsets"].tolist()
    receipts, companies = [], []
    for i, (height, width) in enumerate(arrays["shapes"].tolist()):
        page = arrays["pixels"][starts[i] : starts[i + 1]].reshape(height, width)
        own = slice(corners[i], corners[i + 1])
        boxes = boxes_of(arrays["boxes"][own], height, width, arrays["box_text"][own].tolist())
        keys = json.loads(str(arrays["key_json"][i]))
        companies.append(
            str(keys.get("company", "")).rstrip(".")
        )  # one is printed with and without
        bits = region_bits(sensitive_boxes(boxes, keys), height, width)
        receipts.append(_Receipt(page, [box for box in boxes if box.usable], bits))
    return receipts, companies


def _half(
    receipts: Sequence[_Receipt],
    half: Sequence[int],
    tile: int,
    tiles: int,
    kinds: Sequence[str],
    seed: int,
) -> tuple[Array, Array, Array]:
    """Tiles uint8 [n, tile, tile], masks int64 and region bits uint8 of the same shape, receipt by receipt."""
    x = np.empty((len(half) * tiles, tile, tile), dtype=np.uint8)
    y = np.zeros(x.shape, dtype=np.int64)
    bits = np.empty_like(x)
    for place, i in enumerate(half):
        own = receipts[i]
        rng = np.random.default_rng(keyed_seed("tamper", seed, i))
        fitting = [box for box in own.boxes if box.height <= tile and box.width <= tile]
        if not fitting:
            least = min((max(box.height, box.width) for box in own.boxes), default=0)
            raise FieldError(
                "data.tile", tile, f"no text of receipt {i} fits into it: use at least {least}"
            )
        targets = [fitting[int(j)] for j in rng.permutation(len(fitting))]
        for k in range(tiles):
            other = receipts[half[(place + int(rng.integers(1, max(len(half), 2)))) % len(half)]]
            kind = kinds[int(rng.integers(len(kinds)))]
            row, target = place * tiles + k, targets[k % len(targets)]
            page, mask = tamper(own.page, own.boxes, (other.page, other.boxes), target, kind, rng)
            top = _start(target.top, target.bottom, tile, page.shape[0], rng)
            left = _start(target.left, target.right, tile, page.shape[1], rng)
            window = (slice(top, top + tile), slice(left, left + tile))
            x[row], bits[row] = page[window], own.bits[window]
            y[row, mask.top - top : mask.bottom - top, mask.left - left : mask.right - left] = 1
    return x, y, bits


def _start(low: int, high: int, tile: int, length: int, rng: np.random.Generator) -> int:
    """Choose where a tile begins so that it covers [low, high) and stays on the page."""
    return int(rng.integers(max(0, high - tile), min(low, length - tile) + 1))


def sensitive_boxes(boxes: Sequence[Box], keys: Mapping[str, str]) -> dict[str, list[Box]]:
    """Group text boxes by the kind of key text that they contain.

    Parameters
    ----------
    boxes : sequence of Box
        Text boxes with their texts.
    keys : mapping of str to str
        Key texts of the receipt by kind, from `SENSITIVE`.

    Returns
    -------
    dict of str to list of Box
        A box belongs to the date if it holds the whole date, to the total if it holds that amount and no other digits,
        and to company or address if its text is a part of it, or the other way round. A kind whose text is found
        nowhere has an empty list.
    """
    return {
        kind: [b for b in boxes if _holds(kind, b.text, keys.get(kind, ""))] for kind in SENSITIVE
    }


def region_bits(kinds: Mapping[str, Sequence[Box]], height: int, width: int) -> NDArray[np.uint8]:
    """Make a bit mask [H, W]: bit j of a pixel is set if it lies in a box of `SENSITIVE`'s kind j."""
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
