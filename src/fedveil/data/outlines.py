"""T-SROIE as its authors lay it out: a folder of receipts, and beside it a JSON file that outlines their words.

The file has COCO's form: `images` with `id` and `file_name`, and `annotations` with `image_id`, `category_id` (2 says
that the word is forged) and `segmentation`, four corners x, y in pixels; other outlines of COCO's are read, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.pictures import pillow
from fedveil.errors import FieldError, damaged
from fedveil.optional import optional

FORGED = 2  # the category; all others are genuine

Outline = NDArray[np.int64]  # [corners, 2], x and y


def outlined_by(folder: Path) -> Path | None:
    """The JSON file beside a folder of images that has the folder's name as a word of its own; None without one."""
    named = [f for f in sorted(folder.parent.glob("*.json")) if folder.name in re.split(r"[^A-Za-z]+", f.stem)]
    if len(named) > 1:
        raise FieldError("data.path", [f.name for f in named], f"leave one that outlines what is forged in {folder}")
    return named[0] if named else None


def forged(file: Path) -> dict[str, list[Outline]]:
    """Outlines of what is forged in each image, by the image's file name.

    Raises
    ------
    FieldError
        Naming the file, if it is damaged, of another form, or says of nothing that it is forged.
    """
    try:
        content = json.loads(file.read_bytes())
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        found: dict[str, list[Outline]] = {name: [] for name in names.values()}
        if len(found) < len(content["images"]):
            raise ValueError("an id or a file_name stands there twice")
        marks: Sequence[Mapping[str, Any]] = content["annotations"]
        for mark in marks:
            if mark["category_id"] == FORGED:
                found[names[mark["image_id"]]] += _outlines(mark["segmentation"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise damaged("data.path", file, error, "it must be of COCO's form, as T-SROIE's own are") from error
    if not any(found.values()):
        raise FieldError(
            "data.path", str(file), f"outlines nothing of category_id {FORGED}, which says that it is forged"
        )
    return found


def filled(name: str, outlines: Sequence[Outline], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """[H, W]: 1 inside the outlines and on them.

    Raises
    ------
    FieldError
        Naming the image, if an outline lies outside it.
    """
    height, width = shape
    mask = pillow().new("L", (width, height))
    pen = optional("PIL.ImageDraw", "filling outlines needs Pillow", '"fedveil[data]"').Draw(mask)
    for outline in outlines:
        least, most = outline.min(0), outline.max(0)
        if (most < 0).any() or (least >= (width, height)).any():
            raise FieldError(name, outline.tolist(), f"is an outline outside the image, {width} x {height}")
        pen.polygon([(int(x), int(y)) for x, y in outline], fill=1, outline=1)
    return np.asarray(mask, dtype=np.uint8)


def _outlines(segmentation: Any) -> list[Outline]:
    """From x, y, x, y and so on; pairs; or a list of either."""
    several = isinstance(segmentation[0], list) and len(segmentation[0]) != 2
    parts = segmentation if several else [segmentation]
    found = [np.asarray(part, dtype=np.float64).reshape(-1, 2).astype(np.int64) for part in parts]
    if any(len(outline) < 3 for outline in found):
        raise ValueError(f"a segmentation has fewer than 3 corners: {segmentation}")
    return found
