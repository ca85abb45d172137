"""Generator of forged words on scanned pages (dark text on light paper), with exact masks of the changed pixels.

The FedRE paper's sets, T-SROIE and DocTamper, cannot be downloaded freely; this generator stands in for them. A forgery
lies inside the rectangle of a text box and is cut between letters where it can be. It takes the ink and paper of its
surroundings; pasted or written text fades in over one pixel. Outside the mask a page keeps every pixel.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
_NEIGHBOURS = np.ones((3, 3))
_SIGNS = ("0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_BLUR = 0.45  # pixels: how soft a scanned edge is at 768 pixels a page


def tamper(
    page: Grey,
    boxes: Sequence[Box],
    donor: tuple[Grey, Sequence[Box]],
    where: Box,
    kind: str,
    rng: np.random.Generator,
) -> tuple[Grey, Box]:
    """Forge part of one text box on a page.

    Parameters
    ----------
    page : ndarray
        [H, W], genuine page; not changed.
    boxes : sequence of Box
        Text boxes of the page.
    donor : tuple
        Another page and its text boxes, for ``"splice"``.
    where : Box
        Text box to forge; at least a third of its width is forged.
    kind : {"copy-move", "splice", "erase", "retype"}
        "copy-move": paste text from another box of the page. "splice": paste text of the donor. "erase": cover the text
        with paper. "retype": write other letters and digits in a font of similar size (needs Pillow).
    rng : numpy.random.Generator
        Source of all random choices.

    Returns
    -------
    forged : ndarray
        [H, W], forged page.
    mask : Box
        Overwritten part of the page.

    Raises
    ------
    FedVeilError
        If `kind` is "retype" and Pillow is not installed.
    """
    part = _part(page, where, rng)
    own = where.cut(page).astype(np.float64)
    if kind == "erase":
        patch = _paper(
            own, part, where, rng
        )  # without a fade: half of the letters along the edge would stay
    else:
        if kind == "retype":
            text = _other(_text_of(where, part), rng)
            pasted = _written(text, part)
        elif kind == "splice":
            source, texts = donor
            pasted = _borrowed(source, texts or [where], part, rng)
        else:
            others = [box for box in boxes if box != where and box.usable]
            pasted = _borrowed(page, others or [where], part, rng)
        fade = _fade(part.height, part.width)
        patch = _matched(pasted, own) * fade + part.cut(page) * (1 - fade)
    forged = page.copy()
    forged[part.top : part.bottom, part.left : part.right] = np.rint(patch).clip(0, 255)
    return forged, part


def text_boxes(page: Grey) -> list[Box]:
    """Find words on a page: groups of ink with gaps smaller than the height of a letter.

    Parameters
    ----------
    page : ndarray
        [H, W], uint8, dark text on light paper.
    """
    background = ndimage.uniform_filter(page.astype(np.float64), 51)
    ink = page < background - 25
    parts, _ = ndimage.label(ink, _NEIGHBOURS)
    heights = np.array([0] + [rows.stop - rows.start for rows, _ in ndimage.find_objects(parts)])
    of_letters = heights[heights >= 4]
    usual = int(np.median(of_letters)) if len(of_letters) else 4
    is_text = (heights >= 2) & (
        heights <= 3 * usual
    )  # neither frames, barcodes and logos nor grain
    ink &= is_text[parts]
    gap = max(2, usual // 2)
    wide = ndimage.binary_dilation(ink, np.ones((1, 2 * gap + 1)))
    words, _ = ndimage.label(wide, _NEIGHBOURS)
    boxes: list[Box] = []
    for rows, columns in ndimage.find_objects(words):
        top = max(0, rows.start - 1)
        left = max(0, columns.start + gap)
        bottom = min(rows.stop + 1, len(page))
        box = Box(top, left, bottom, columns.stop - gap)
        if box.usable and box.height <= 3 * usual:
            boxes.append(box)
    return boxes


def forge_pages(
    folder: Path,
    out: Path,
    *,
    words: int = 4,
    kinds: Sequence[str] = KINDS,
    seed: int = 0,
    most: int = MAX_PIXELS,
) -> dict[str, int]:
    """Write forged copies of genuine pages with masks of the forged parts, as a folder for `load_documents`.

    Parameters
    ----------
    folder : Path
        Folder with ``images``, or with images themselves: dark text on light paper. ``boxes.json`` may give the places
        of words (`fedveil.data.pages.read_boxes`); without it words are searched for. ``sensitive`` is copied.
    out : Path
        New or empty folder for ``images`` and ``masks``.
    words : int
        Number of words to forge on each page; fewer if the page has fewer.
    kinds : sequence of str
        Some of "copy-move", "splice" (text of another page), "erase" and "retype".
    seed : int
        Seed of all random choices.
    most : int
        Most pixels to which a page may unpack.

    Returns
    -------
    dict of str to int
        Number of forged words by page.

    Raises
    ------
    FieldError
        For an unusable file or page; the text names it.
    """
    require_count("words", words)
    for kind in kinds:
        require_choice("kinds", kind, KINDS)
    pages = dict(grey_pages(folder, most))
    boxes = _boxes_of(folder, pages)
    if out.exists() and any(out.iterdir()):
        raise FieldError("out", str(out), "holds something already: name a new folder")
    for part in ("images", "masks"):
        (out / part).mkdir(parents=True, exist_ok=True)
    names = list(pages)
    done: dict[str, int] = {}
    for i, name in enumerate(names):
        rng = np.random.default_rng(keyed_seed("forge", seed, i))
        forged = pages[name]
        mask = np.zeros_like(forged)
        chosen = rng.permutation(len(boxes[name]))[:words].tolist()
        for j in chosen:
            further = int(rng.integers(1, max(len(names), 2)))
            other = names[(i + further) % len(names)]
            kind = kinds[int(rng.integers(len(kinds)))]
            donor = (pages[other], boxes[other])
            forged, changed = tamper(forged, boxes[name], donor, boxes[name][j], kind, rng)
            changed.cut(mask)[...] = 255
        file = f"{Path(name).stem}.png"
        pillow().fromarray(forged).save(out / "images" / file)
        pillow().fromarray(mask).save(out / "masks" / file)
        done[name] = len(chosen)
    if (folder / "sensitive").is_dir():
        shutil.copytree(folder / "sensitive", out / "sensitive")
    return done


def _boxes_of(folder: Path, pages: Mapping[str, Grey]) -> dict[str, list[Box]]:
    """Return each page's text boxes that are large enough to forge, from ``boxes.json`` or found on the page."""
    known = read_boxes(folder / BOXES) if (folder / BOXES).is_file() else {}
    unknown = sorted(set(known) - set(pages))
    if unknown:
        raise FieldError(str(folder / BOXES), unknown[0], "is none of the images")
    boxes: dict[str, list[Box]] = {}
    for name, page in pages.items():
        every = known.get(name) or text_boxes(page)
        boxes[name] = [box for box in every if box.usable]
    for name, own in boxes.items():
        if not own:
            raise FieldError(
                str(folder),
                name,
                f"shows no text that could be forged: say where it stands in {BOXES}",
            )
    return boxes


def _part(page: Grey, box: Box, rng: np.random.Generator) -> Box:
    """Choose a part of at least a third of the box, cut at gaps between letters if there are any."""
    share = float(rng.uniform(1 / 3, 1))
    width = min(box.width, max(LEAST, round(box.width * share)))
    left = int(rng.integers(0, box.width - width + 1))
    right = left + width
    gaps = _gaps(box.cut(page))
    if len(gaps):
        least = max(LEAST, -(-box.width // 3))
        begin = _nearest(gaps, left)
        ends = gaps[gaps >= begin + least]
        if len(ends):
            left = begin
            right = _nearest(ends, right)
    return Box(box.top, box.left + left, box.bottom, box.left + right)


def _nearest(places: NDArray[np.int64], place: int) -> int:
    """Return the place that is nearest to `place`."""
    return int(places[np.abs(places - place).argmin()])


def _gaps(pixels: Grey) -> NDArray[np.int64]:
    """Return the columns without ink, and both edges."""
    ink, paper = _tones(pixels.astype(np.float64))
    free = np.flatnonzero(pixels.min(0) > ink + 0.6 * (paper - ink))
    return np.unique(np.concatenate([[0], free, [pixels.shape[1]]]))


def _tones(pixels: Pixels) -> tuple[float, float]:
    """Return the grey values of the ink and of the paper."""
    ink, paper = np.quantile(pixels, [0.05, 0.8])
    return float(ink), float(paper)


def _matched(patch: Pixels, around: Pixels) -> Pixels:
    """Change a patch's ink and paper to those of its surroundings; grain stays."""
    ink, paper = _tones(patch)
    own_ink, own_paper = _tones(around)
    contrast = (own_paper - own_ink) / max(paper - ink, 1.0)
    scaled = own_paper + (patch - paper) * contrast
    return np.asarray(np.clip(scaled, max(0.0, own_ink - 25), 255), dtype=np.float64)


def _borrowed(
    source: Grey,
    texts: Sequence[Box],
    part: Box,
    rng: np.random.Generator,
) -> Pixels:
    """Take text from another box, scaled to the part's height: the longest of three boxes, so that little is stretched."""
    drawn = [texts[int(rng.integers(len(texts)))] for _ in range(3)]
    box = max(drawn, key=lambda one: one.width / max(one.height, 1))
    own = box.cut(source)
    needed = min(box.width, max(1, round(part.width * box.height / part.height)))
    starts = _gaps(own)
    starts = starts[starts <= box.width - needed]
    start = int(starts[rng.integers(len(starts))])
    return _resized(own[:, start : start + needed].astype(np.float64), part.height, part.width)


def _resized(pixels: Pixels, height: int, width: int) -> Pixels:
    rows = np.linspace(0, pixels.shape[0] - 1, height)
    columns = np.linspace(0, pixels.shape[1] - 1, width)
    grid = np.meshgrid(rows, columns, indexing="ij")
    return np.asarray(
        ndimage.map_coordinates(pixels, grid, order=1, mode="nearest"), dtype=np.float64
    )


def _paper(own: Pixels, part: Box, box: Box, rng: np.random.Generator) -> Pixels:
    """Return a piece of paper for the part: the brightness of the visible paper continued, with its grain."""
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
    """Return approximately the text in the part of a box, or as many digits as fit."""
    length = max(1, round(1.7 * part.width / part.height))
    digits = "0" * length
    if not box.text:
        return digits
    first = round((part.left - box.left) / box.width * len(box.text))
    last = round((part.right - box.left) / box.width * len(box.text))
    return box.text[first : max(last, first + 1)].strip() or digits


def _other(text: str, rng: np.random.Generator) -> str:
    """Replace every digit by another digit, and every letter by another letter."""
    changed: list[str] = []
    for sign in text:
        others = ""
        for kind in _SIGNS:
            if sign in kind:
                others = kind.replace(sign, "")
        changed.append(others[int(rng.integers(len(others)))] if others else sign)
    return "".join(changed)


def _pillow_part(name: str) -> Any:
    return optional(f"PIL.{name}", "retyping text needs Pillow", '"fedveil[data]"')


def _written(text: str, part: Box) -> Pixels:
    """Write black text on white, in the size of the part, with edges as soft as a scan's."""
    image = _pillow_part("Image")
    font = _pillow_part("ImageFont").load_default(size=4 * part.height)
    left, top, right, bottom = font.getbbox(text)
    size = (max(1, int(right - left)), max(1, int(bottom - top)))
    canvas = image.new("L", size, 255)
    _pillow_part("ImageDraw").Draw(canvas).text((-left, -top), text, fill=0, font=font)
    width = max(1, part.width - 2)
    height = max(1, round(part.height * 0.74))
    small = np.asarray(canvas.resize((width, height), image.Resampling.BOX), dtype=np.float64)
    page = np.full((part.height, part.width), 255.0)
    row = (part.height - height) // 2
    column = (part.width - width) // 2
    page[row : row + height, column : column + width] = small
    return np.asarray(ndimage.gaussian_filter(page, _BLUR), dtype=np.float64)


def _fade(height: int, width: int) -> Pixels:
    """Return the weights [height, width] of a pasted patch: 1 inside, one half along the edge."""
    weights = np.full((height, width), 0.5)
    weights[1:-1, 1:-1] = 1.0
    return weights
