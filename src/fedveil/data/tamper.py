"""Forge words on scanned pages, with the exact mask of what changed: dark text on light paper, a box or whole folders.

The FedRE paper's sets, T-SROIE and DocTamper, cannot be downloaded freely; this generator stands in for them. A forgery
lies inside the rectangle of a text box, is cut between letters where it can be, takes the ink and paper of its
surroundings, and what is pasted or written fades in over one pixel. Outside the mask a page keeps every pixel.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from fedveil.data.pages import LEAST, Box, Grey, grey_pages, read_boxes
from fedveil.data.pictures import MAX_PIXELS, pillow
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.mechanisms.source import keyed_seed
from fedveil.registry import optional

Pixels = NDArray[np.float64]

BOXES = "boxes.json"
KINDS = ("copy-move", "splice", "erase", "retype")
_BLUR = 0.45  # pixels: how soft a scanned edge is at 768 pixels a page


def tamper(
    page: Grey, boxes: Sequence[Box], donor: tuple[Grey, Sequence[Box]], where: Box, kind: str, rng: np.random.Generator
) -> tuple[Grey, Box]:
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
        The text box to forge; at least a third of its width is.
    kind : {"copy-move", "splice", "erase", "retype"}
        Paste text from another box of the page, or of the donor; cover the text with paper; or write other letters
        and digits there in a font of like size (needs Pillow).
    rng : numpy.random.Generator
        Decides all of it.

    Returns
    -------
    forged : ndarray
        [H, W].
    mask : Box
        The part that was overwritten.

    Raises
    ------
    FedVeilError
        If the page is to be retyped and Pillow is not installed.
    """
    part = _part(page, where, rng)
    own = where.cut(page).astype(np.float64)
    if kind == "erase":
        patch = _paper(own, part, where, rng)
    elif kind == "retype":
        patch = _matched(_written(_other(_text_of(where, part), rng), part), own)
    else:
        source, texts = donor if kind == "splice" else (page, [b for b in boxes if b != where and b.usable])
        patch = _matched(_borrowed(source, texts or [where], part, rng), own)
    if kind != "erase":  # half of the letters along the edge would stay
        fade = _fade(part.height, part.width)
        patch = patch * fade + part.cut(page) * (1 - fade)
    forged = page.copy()
    forged[part.top : part.bottom, part.left : part.right] = np.rint(patch).clip(0, 255)
    return forged, part


def text_boxes(page: Grey) -> list[Box]:
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


def _part(page: Grey, box: Box, rng: np.random.Generator) -> Box:
    """At least a third of the box, from gap to gap between its letters where there are such."""
    width = min(box.width, max(LEAST, round(box.width * float(rng.uniform(1 / 3, 1)))))
    left = int(rng.integers(0, box.width - width + 1))
    gaps = _gaps(box.cut(page))
    if len(gaps):
        least = max(LEAST, -(-box.width // 3))
        begin = int(gaps[np.abs(gaps - left).argmin()])
        ends = gaps[gaps >= begin + least]
        if len(ends):
            left, width = begin, int(ends[np.abs(ends - (left + width)).argmin()]) - begin
    return Box(box.top, box.left + left, box.bottom, box.left + left + width)


def _gaps(pixels: Grey) -> NDArray[np.int64]:
    """Columns without ink, and both edges."""
    ink, paper = _tones(pixels.astype(np.float64))
    free = np.flatnonzero(pixels.min(0) > ink + 0.6 * (paper - ink))
    return np.unique(np.concatenate([[0], free, [pixels.shape[1]]]))


def _tones(pixels: Pixels) -> tuple[float, float]:
    """Grey of the ink, and of the paper between the letters."""
    ink, paper = np.quantile(pixels, [0.05, 0.8])
    return float(ink), float(paper)


def _matched(patch: Pixels, around: Pixels) -> Pixels:
    """A patch whose ink and paper are those of its surroundings, with their grain."""
    (ink, paper), (own_ink, own_paper) = _tones(patch), _tones(around)
    scaled = own_paper + (patch - paper) * ((own_paper - own_ink) / max(paper - ink, 1.0))
    return np.asarray(np.clip(scaled, max(0.0, own_ink - 25), 255), dtype=np.float64)


def _borrowed(source: Grey, texts: Sequence[Box], part: Box, rng: np.random.Generator) -> Pixels:
    """Other text, scaled to the part's height; from the longest of three boxes, so that little has to be stretched."""
    box = max((texts[int(rng.integers(len(texts)))] for _ in range(3)), key=lambda b: b.width / max(b.height, 1))
    own = box.cut(source)
    needed = min(box.width, max(1, round(part.width * box.height / part.height)))
    starts = _gaps(own)
    starts = starts[starts <= box.width - needed]
    start = int(starts[rng.integers(len(starts))])
    return _resized(own[:, start : start + needed].astype(np.float64), part.height, part.width)


def _resized(pixels: Pixels, height: int, width: int) -> Pixels:
    rows, columns = np.linspace(0, pixels.shape[0] - 1, height), np.linspace(0, pixels.shape[1] - 1, width)
    grid = np.meshgrid(rows, columns, indexing="ij")
    return np.asarray(ndimage.map_coordinates(pixels, grid, order=1, mode="nearest"), dtype=np.float64)


def _paper(own: Pixels, part: Box, box: Box, rng: np.random.Generator) -> Pixels:
    """The paper's brightness around the letters, carried on below them, with grain taken from where it shows."""
    light = own >= np.quantile(own, 2 / 3)
    weight = ndimage.gaussian_filter(light.astype(np.float64), 4) + 1e-6
    ground = ndimage.gaussian_filter(np.where(light, own, 0.0), 4) / weight
    grain = (own - ground)[light]
    start = int(rng.integers(len(grain)))
    drawn = np.take(grain, np.arange(start, start + own.size), mode="wrap").reshape(own.shape)
    drawn = ndimage.gaussian_filter(drawn, _BLUR)
    left = part.left - box.left
    return np.asarray((ground + drawn)[:, left : left + part.width], dtype=np.float64)


def _text_of(box: Box, part: Box) -> str:
    """About what stands in the part, or as many digits as fit."""
    length = max(1, round(1.7 * part.width / part.height))
    if not box.text:
        return "0" * length
    first = round((part.left - box.left) / box.width * len(box.text))
    last = round((part.right - box.left) / box.width * len(box.text))
    return box.text[first : max(last, first + 1)].strip() or "0" * length


def _other(text: str, rng: np.random.Generator) -> str:
    """Every digit another digit, every letter another letter."""
    kinds = ("0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")

    def change(sign: str) -> str:
        kind = next((k for k in kinds if sign in k), "")
        others = kind.replace(sign, "")
        return others[int(rng.integers(len(others)))] if others else sign

    return "".join(change(sign) for sign in text)


def _written(text: str, part: Box) -> Pixels:
    """Black text on white, as high and wide as the part, its edges as soft as a scan's."""
    image, draw, fonts = (
        optional(f"PIL.{part}", "retyping text needs Pillow", '"fedveil[data]"')
        for part in ("Image", "ImageDraw", "ImageFont")
    )
    font = fonts.load_default(size=4 * part.height)
    left, top, right, bottom = font.getbbox(text)
    canvas = image.new("L", (max(1, int(right - left)), max(1, int(bottom - top))), 255)
    draw.Draw(canvas).text((-left, -top), text, fill=0, font=font)
    inner = (max(1, part.width - 2), max(1, round(part.height * 0.74)))
    small = np.asarray(canvas.resize(inner, image.Resampling.BOX), dtype=np.float64)
    page = np.full((part.height, part.width), 255.0)
    row, column = (part.height - inner[1]) // 2, (part.width - inner[0]) // 2
    page[row : row + inner[1], column : column + inner[0]] = small
    return np.asarray(ndimage.gaussian_filter(page, _BLUR), dtype=np.float64)


def _fade(height: int, width: int) -> Pixels:
    """1 inside, one half along the edge."""
    weights = np.full((height, width), 0.5)
    weights[1:-1, 1:-1] = 1.0
    return weights
