"""Apply a run's model for tampered pixels to a user's pages; draw its findings and write their boxes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy import ndimage
from torch import nn

from fedveil.data.pages import Grey, grey_pages
from fedveil.data.pictures import MAX_PIXELS, pillow
from fedveil.errors import FieldError
from fedveil.files import MODEL, refuse_used
from fedveil.learning import build_model, evaluating
from fedveil_lab.config import load
from fedveil_lab.config.tables import fields_of

CLASSES = 2  # genuine, tampered
RED = np.array([220.0, 30.0, 30.0])
LEAST = 9  # pixels: a smaller spot is no finding
_AT_ONCE = 32  # tiles


@dataclass(frozen=True)
class MarkedPage:
    """Findings on one page: the probability [H, W] of each pixel, and boxes (left, top, right, bottom, mean probability)."""

    name: str
    page: Grey
    score: NDArray[np.float32]
    boxes: list[tuple[int, int, int, int, float]]


def model_of(run: Path) -> tuple[nn.Module, int]:
    """Read the last model of a run on documents; return it with the edge of its tiles, in pixels.

    Raises
    ------
    FieldError
        If the run has not exactly one model that classifies pixels.
    """
    if (run / "comparison.json").is_file():
        inside = ", ".join(sorted(str(path.parent) for path in run.glob(f"*/{MODEL}"))[:3])
        raise FieldError(
            "RUN",
            str(run),
            f"is a comparison: give one of its runs ({inside or 'none has a model'})",
        )
    config, file = load(run), run / MODEL
    tile = int(config.data.options.get("tile", 128))
    options = config.model.options | {"input_shape": (1, tile, tile), "outputs": CLASSES}
    with fields_of("model"):
        module = build_model(config.model.name, seed=config.seed, **options)
    if not file.is_file():
        raise FieldError(
            "RUN", str(run), f"holds no {MODEL}: finish it with `fedveil run --resume`"
        )
    try:
        module.load_state_dict(load_file(file))
    except RuntimeError as error:
        accepted = "holds no single model of pages with a class a pixel (documents, sroie)"
        raise FieldError("RUN", str(run), accepted) from error
    with evaluating(module), torch.no_grad():
        given = tuple(module(torch.zeros(1, 1, tile, tile)).shape)
    if given != (1, CLASSES, tile, tile):
        raise FieldError(
            "RUN", str(run), f"its model gives {given} for a tile: one of a class a pixel is needed"
        )
    return module, tile


def probability(module: nn.Module, page: Grey, tile: int) -> NDArray[np.float32]:
    """Compute the probability [H, W] that a pixel was tampered with, averaged over tiles that overlap by half."""
    low = [max(0, tile - side) for side in page.shape]
    whole = np.pad(page, [(0, more) for more in low], mode="edge")
    total, count = np.zeros(whole.shape), np.zeros(whole.shape)
    rows, columns = (
        sorted({*range(0, side - tile, tile // 2), side - tile}) for side in whole.shape
    )
    places = [(r, c) for r in rows for c in columns]
    with evaluating(module), torch.no_grad():
        for first, last in pairwise([*range(0, len(places), _AT_ONCE), len(places)]):
            some = places[first:last]
            tiles = np.stack([whole[r : r + tile, c : c + tile] for r, c in some])
            given = module(torch.from_numpy(tiles)[:, None].float() / 255).softmax(1)[:, 1].numpy()
            for (r, c), scored in zip(some, given, strict=True):
                total[r : r + tile, c : c + tile] += scored
                count[r : r + tile, c : c + tile] += 1
    return (total / count)[: page.shape[0], : page.shape[1]].astype(np.float32)


def findings(run: Path, pages: Path, threshold: float = 0.5) -> Iterator[MarkedPage]:
    """Yield the findings of a run's model on one page, or on each page of a folder.

    Parameters
    ----------
    run : Path
        The folder of a run on documents.
    pages : Path
        An image, or a folder of images: dark text on light paper, at the scale of the training images.
    threshold : float
        Least probability at which a pixel counts as tampered with, between 0 and 1.

    Raises
    ------
    FieldError
        If the run has no such model, or a page cannot be read.
    """
    if not 0 < threshold < 1:
        raise FieldError("--threshold", threshold, "must be above 0 and below 1")
    module, tile = model_of(run)
    for name, page in grey_pages(pages, MAX_PIXELS):
        score = probability(module, page, tile)
        parts, _ = ndimage.label(score >= threshold)
        boxes = []
        for label, (rows, columns) in enumerate(ndimage.find_objects(parts), 1):
            inside = parts[rows, columns] == label
            if inside.sum() >= LEAST:
                mean = float(score[rows, columns][inside].mean())
                boxes.append((columns.start, rows.start, columns.stop, rows.stop, round(mean, 3)))
        yield MarkedPage(name, page, score, sorted(boxes, key=lambda box: -box[-1]))


def write_finding(finding: MarkedPage, folder: Path, threshold: float = 0.5) -> None:
    """Write ``NAME.png``, the page with findings in red, and ``NAME-mask.png``."""
    marked = (finding.score >= threshold)[..., None]
    colours = np.repeat(finding.page[..., None].astype(np.float64), 3, axis=2)
    drawn = np.where(marked, 0.5 * colours + 0.5 * RED, colours)
    for left, top, right, bottom, _ in finding.boxes:
        drawn[top:bottom, [left, right - 1]] = RED
        drawn[[top, bottom - 1], left:right] = RED
    folder.mkdir(parents=True, exist_ok=True)
    stem = Path(finding.name).stem
    pillow().fromarray(drawn.astype(np.uint8)).save(folder / f"{stem}.png")
    pillow().fromarray(marked[..., 0].astype(np.uint8) * 255).save(folder / f"{stem}-mask.png")


def apply_model(run: Path, pages: Path, out: Path, threshold: float = 0.5) -> Iterator[MarkedPage]:
    """Write drawings, masks and ``found.json`` (boxes by page) into a new folder, page by page; see `findings`."""
    refuse_used(out)
    boxes = {}
    for page in findings(run, pages, threshold):
        write_finding(page, out, threshold)
        boxes[page.name] = page.boxes
        yield page
    (out / "found.json").write_text(json.dumps(boxes, indent=1) + "\n")
