"""Scanned receipts of SROIE 2019, forged by a seeded generator: find the pixels that were tampered with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedveil.data.arrays import Array, images, read_npz, require_arrays
from fedveil.data.files import locate
from fedveil.data.labels import natural_clients
from fedveil.data.sets import DataSet
from fedveil.data.tamper import KINDS, Box, Page, boxes_of, tamper
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.mechanisms.source import keyed_seed

FILE = "sroie2019_200_gray768.npz"
OFFICIAL = (
    "ICDAR 2019 SROIE, task 1, https://rrc.cvc.uab.es/?ch=13 (CC BY 4.0); the file (22 MB) holds 200 grey receipts, at "
    "most 768 pixels high: pixels, pixel_offsets, shapes, boxes, box_offsets, key_json"
)
NOTE = (
    "Forgeries are made by FedVeil's own seeded generator: T-SROIE and DocTamper, the FedRE paper's sets, are not to "
    "be had, and figures are not theirs."
)


@dataclass(frozen=True)
class _Receipt:
    page: Page
    boxes: list[Box]


def load_sroie(
    *,
    patch: int = 128,
    patches: int = 4,
    kinds: Sequence[str] = KINDS,
    tamper_seed: int = 0,
    test_receipts: int = 40,
) -> DataSet:
    """Load square patches of receipts, [1, patch, patch], each with one forged word; y says 0 or 1 for every pixel.

    Natural clients are the companies that issued the receipts. Whole receipts go to the test half.

    Parameters
    ----------
    patch : int
        Height and width in pixels, 32 to 192. Receipts are up to 768 pixels high, lines of text about 13.
    patches : int
        Of each receipt, at different words where it has enough.
    kinds : sequence of str
        Of forgery, some of "copy-move", "splice" (text of another receipt of the same half) and "erase".
    tamper_seed : int
        Decides the patches, the forgeries, and which receipts are the test half.
    test_receipts : int
        How many of the 200 those are; 0 for none.

    Raises
    ------
    MissingDataError
        If the file is absent.
    """
    if not 32 <= require_count("data.patch", patch) <= 192:
        raise FieldError("data.patch", patch, "must be 32 to 192 pixels: every receipt has room for that")
    require_count("data.patches", patches)
    if not kinds:
        raise FieldError("data.kinds", list(kinds), f"must name at least one of {', '.join(KINDS)}")
    for kind in kinds:
        require_choice("data.kinds", kind, KINDS)
    receipts, companies = _receipts(read_npz(locate("sroie", FILE, OFFICIAL)))
    if require_count("data.test_receipts", test_receipts, least=0) >= len(receipts) - 1:
        raise FieldError("data.test_receipts", test_receipts, f"must leave 2 of {len(receipts)} receipts to train on")
    order = np.random.default_rng(keyed_seed("receipts", tamper_seed)).permutation(len(receipts)).tolist()
    halves = [sorted(order[test_receipts:]), sorted(order[:test_receipts])]
    made = [_half(receipts, half, patch, patches, kinds, tamper_seed) for half in halves if half]
    owner, owners = natural_clients(
        "company", np.repeat(np.array([companies[i] for i in halves[0]], dtype=np.str_), patches), len(made[0][0])
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
        note=NOTE,
        licence="CC BY 4.0",
    )


def _receipts(arrays: dict[str, Array]) -> tuple[list[_Receipt], list[str]]:
    require_arrays("sroie", arrays, ["pixels", "pixel_offsets", "shapes", "boxes", "box_offsets", "key_json"])
    shapes, starts, corners = arrays["shapes"], arrays["pixel_offsets"], arrays["box_offsets"]
    receipts = []
    for i, (height, width) in enumerate(shapes.tolist()):
        page = arrays["pixels"][starts[i] : starts[i + 1]].reshape(height, width)
        receipts.append(_Receipt(page, boxes_of(arrays["boxes"][corners[i] : corners[i + 1]], height, width)))
    return receipts, [str(json.loads(text).get("company", "")) for text in arrays["key_json"].tolist()]


def _half(
    receipts: Sequence[_Receipt], half: Sequence[int], patch: int, patches: int, kinds: Sequence[str], seed: int
) -> tuple[Array, Array]:
    """Patches uint8 [n, patch, patch] and masks int64 of the same shape, receipt by receipt."""
    x = np.empty((len(half) * patches, patch, patch), dtype=np.uint8)
    y = np.zeros(x.shape, dtype=np.int64)
    for place, i in enumerate(half):
        own = receipts[i]
        rng = np.random.default_rng(keyed_seed("tamper", seed, i))
        fitting = [box for box in own.boxes if box.height <= patch and box.width <= patch]
        targets = [fitting[int(j)] for j in rng.permutation(len(fitting))]
        for k in range(patches):
            other = receipts[half[(place + int(rng.integers(1, max(len(half), 2)))) % len(half)]]
            kind = kinds[int(rng.integers(len(kinds)))]
            row, target = place * patches + k, targets[k % len(targets)]
            page, mask = tamper(own.page, own.boxes, (other.page, other.boxes), target, kind, rng)
            top = _start(target.top, target.bottom, patch, page.shape[0], rng)
            left = _start(target.left, target.right, patch, page.shape[1], rng)
            x[row] = page[top : top + patch, left : left + patch]
            y[row, mask.top - top : mask.bottom - top, mask.left - left : mask.right - left] = 1
    return x, y


def _start(low: int, high: int, patch: int, length: int, rng: np.random.Generator) -> int:
    """Where a patch begins so that it holds [low, high) and stays on the page."""
    return int(rng.integers(max(0, high - patch), min(low, length - patch) + 1))
