"""Data sets of documents with masks of forgeries: folders of images and masks, T-SROIE's or DocTamper's own files."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.data.arrays import images
from fedveil.data.labels import data_set
from fedveil.data.pages import Document, Grey, documents_of, kinds_of
from fedveil.data.pictures import MAX_PIXELS
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.errors import FieldError, require_count
from fedveil.mechanisms.source import keyed_seed


def load_documents(
    path: str | Path,
    *,
    tile: int = 128,
    tiles: int = 4,
    tile_seed: int = 0,
    documents: int = 0,
    max_pixels: int = MAX_PIXELS,
) -> DataSet:
    """Load square tiles of documents, [1, tile, tile]; labels are 0 or 1 (tampered) for each pixel.

    Every second tile contains a tampered pixel if the document has one; the other tiles lie anywhere. Tiles of one
    document stay together at one client.

    Parameters
    ----------
    path : str or Path
        Folder with ``images`` and ``masks`` (and ``sensitive``), DocTamper's ``data.mdb``, or T-SROIE's images and JSON
        file. Or folders ``train`` and ``test`` of such a form (docs/data.md has each).
    tile : int
        Height and width in pixels; smaller documents are refused.
    tiles : int
        Number of tiles of each document.
    tile_seed : int
        Seed of the tiles' positions and of the drawn documents.
    documents : int
        Number of documents drawn from each half; 0: all.
    max_pixels : int
        Most pixels of a decoded page.

    Raises
    ------
    FieldError
        For an unusable file; the text names it.
    FedVeilError
        If Pillow is not installed, or for DocTamper lmdb.
    """
    root = Path(path).expanduser()
    require_count("data.tile", tile)
    require_count("data.tiles", tiles)
    require_count("data.documents", documents, least=0)
    folders = [root]
    if (root / "train").is_dir():
        folders = [root / "train", root / "test"]
    halves = [_documents(folder, documents, tile_seed) for folder in folders if folder.is_dir()]
    if not halves:
        raise MissingDataError(
            "data.path", str(root), "is no folder: give one that holds images and masks"
        )
    require_count("data.max_pixels", max_pixels)
    made = [_tiles(half, tile, tiles, tile_seed, max_pixels) for half in halves]
    kinds = kinds_of(folders[0])
    _, _, sensitive = made[0]
    return data_set(
        [(images(pages), torch.from_numpy(truths)) for pages, truths, _ in made],
        people=("documents", np.arange(len(halves[0])).repeat(tiles)),
        name="documents",
        classes=2,
        class_names=("genuine", "tampered"),
        regions=torch.from_numpy(sensitive) if kinds else None,
        region_names=tuple(kinds),
        note=f"From the folder {root.name}.",
        licence="that of the folder",
    )


def _documents(folder: Path, number: int, seed: int) -> list[Document]:
    """Draw `number` documents of a half, or return all for 0."""
    documents = documents_of(folder)
    if len(documents) < max(number, 1):
        raise FieldError("data.documents", number, f"{folder} holds {len(documents)}")
    shuffled = np.random.default_rng(keyed_seed("documents", seed)).permutation(len(documents))
    chosen = shuffled[: number or len(documents)]
    return [documents[i] for i in sorted(chosen.tolist())]


def _tiles(
    documents: list[Document],
    tile: int,
    tiles: int,
    seed: int,
    most: int,
) -> tuple[Grey, NDArray[np.int64], Grey]:
    """Return tiles, their forged pixels (0 or 1), and the bits of sensitive kinds, [N, tile, tile] each."""
    x = np.empty((len(documents) * tiles, tile, tile), dtype=np.uint8)
    y = np.empty(x.shape, dtype=np.int64)
    bits = np.empty_like(x)
    for i, document in enumerate(documents):
        page, truth = document.read(most)
        shown = document.bits(page.shape, most)
        if min(page.shape) < tile:
            size = " x ".join(map(str, page.shape))
            raise FieldError("data.tile", tile, f"is more than {document.name} has: {size}")
        rng = np.random.default_rng(keyed_seed("patches", seed, i))
        tampered = np.argwhere(truth)
        for k in range(tiles):
            corner = [int(rng.integers(0, side - tile + 1)) for side in page.shape]
            if k % 2 == 0 and len(tampered):
                spot = tampered[int(rng.integers(len(tampered)))]
                corner = [
                    _around(at, side, tile, rng)
                    for at, side in zip(spot.tolist(), page.shape, strict=True)
                ]
            window = tuple(slice(at, at + tile) for at in corner)
            row = i * tiles + k
            x[row] = page[window]
            y[row] = truth[window]
            bits[row] = shown[window]
    return x, y, bits


def _around(at: int, side: int, tile: int, rng: np.random.Generator) -> int:
    """Draw the first pixel of a tile that contains the pixel `at`, in an axis of `side` pixels."""
    first = max(0, at - tile + 1)
    last = min(at, side - tile)
    return int(rng.integers(first, last + 1))
