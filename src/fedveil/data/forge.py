"""Forge words on pages of one's own, so that a set with exact masks is there to train on: a folder for `documents`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import ndimage

from fedveil.data.pages import grey_pages, read_boxes
from fedveil.data.pictures import MAX_PIXELS, pillow
from fedveil.data.tamper import KINDS, Box, Page, tamper
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.mechanisms.source import keyed_seed

BOXES = "boxes.json"


def text_boxes(page: Page) -> list[Box]:
    """Where words stand on a page of dark text on light paper: ink that lies closer together than a letter is high.

    Parameters
    ----------
    page : ndarray
        [H, W], uint8.
    """
    ink = page < ndimage.uniform_filter(page.astype(np.float64), 51) - 25
    parts, _ = ndimage.label(ink, np.ones((3, 3)))
    heights = np.array([0] + [s[0].stop - s[0].start for s in ndimage.find_objects(parts)])
    usual = int(np.median(heights[heights >= 4])) if (heights >= 4).any() else 4
    ink &= (heights <= 3 * usual)[parts] & (heights >= 2)[parts]  # neither frames, barcodes and logos nor grain
    gap = max(2, usual // 2)
    words, _ = ndimage.label(ndimage.binary_dilation(ink, np.ones((1, 2 * gap + 1))), np.ones((3, 3)))
    gaps = ((r.start, c.start + gap, r.stop, c.stop - gap) for r, c in ndimage.find_objects(words))
    boxes = (Box(max(0, t - 1), max(0, x), min(b + 1, len(page)), y) for t, x, b, y in gaps)
    return [box for box in boxes if box.usable and box.height <= 3 * usual]


def forge_pages(
    folder: Path, out: Path, *, words: int = 4, kinds: Sequence[str] = KINDS, seed: int = 0, most: int = MAX_PIXELS
) -> dict[str, int]:
    """Write forged copies of genuine pages, and masks of what was forged, as the data set `documents` reads them.

    Parameters
    ----------
    folder : Path
        Holds ``images``, or images themselves: dark text on light paper. ``boxes.json`` may say where text stands, see
        `fedveil.data.pages.read_boxes`; without it words are looked for. ``sensitive`` is copied.
    out : Path
        New or empty; gets ``images`` and ``masks``.
    words : int
        Forged on each page, or as many as it has.
    kinds : sequence of str
        Some of "copy-move", "splice" (text of another page), "erase" and "retype".
    seed : int
        Decides all of it.
    most : int
        Pixels that a page may unpack to.

    Returns
    -------
    dict of str to int
        Words forged, by page.

    Raises
    ------
    FieldError
        Naming the file or page that cannot be used.
    """
    require_count("words", words)
    for kind in kinds:
        require_choice("kinds", kind, KINDS)
    pages = dict(grey_pages(folder, most))
    known = read_boxes(folder / BOXES) if (folder / BOXES).is_file() else {}
    if unknown := sorted(set(known) - set(pages)):
        raise FieldError(str(folder / BOXES), unknown[0], "is none of the images")
    boxes = {name: [b for b in known.get(name) or text_boxes(page) if b.usable] for name, page in pages.items()}
    if bare := [name for name, marked in boxes.items() if not marked]:
        raise FieldError(str(folder), bare[0], f"shows no text that could be forged: say where it stands in {BOXES}")
    if out.exists() and any(out.iterdir()):
        raise FieldError("out", str(out), "holds something already: name a new folder")
    for part in ("images", "masks"):
        (out / part).mkdir(parents=True, exist_ok=True)
    names, done = list(pages), dict[str, int]()
    for i, name in enumerate(names):
        rng = np.random.default_rng(keyed_seed("forge", seed, i))
        forged, mask = pages[name], np.zeros_like(pages[name])
        chosen = rng.permutation(len(boxes[name]))[:words].tolist()
        for j in chosen:
            other = names[(i + int(rng.integers(1, max(len(names), 2)))) % len(names)]
            kind, donor = kinds[int(rng.integers(len(kinds)))], (pages[other], boxes[other])
            forged, changed = tamper(forged, boxes[name], donor, boxes[name][j], kind, rng)
            changed.cut(mask)[...] = 255
        stem = Path(name).stem
        for part_of, pixels in (("images", forged), ("masks", mask)):
            pillow().fromarray(pixels).save(out / part_of / f"{stem}.png")
        done[name] = len(chosen)
    if (folder / "sensitive").is_dir():
        shutil.copytree(folder / "sensitive", out / "sensitive")
    return done
