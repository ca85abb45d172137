"""Documents with masks of what was tampered with: folders of images and masks, or DocTamper's own files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.data.arrays import images
from fedveil.data.files import MissingDataError
from fedveil.data.pictures import SUFFIXES, decode
from fedveil.data.sets import DataSet
from fedveil.errors import FieldError, require_count
from fedveil.mechanisms.source import keyed_seed
from fedveil.optional import optional

Grey = NDArray[np.uint8]
MOST_KINDS = 8  # one bit each


@dataclass(frozen=True)
class _Document:
    """One page: its name, how its image and mask are read, and a mask a kind of what is sensitive, where it has one."""

    name: str
    read: Callable[[], tuple[Grey, Grey]]
    sensitive: tuple[Path | None, ...] = ()


def load_documents(
    path: str | Path, *, tile: int = 128, tiles: int = 4, tile_seed: int = 0, documents: int = 0
) -> DataSet:
    """Load square tiles of documents, [1, tile, tile]; y says 0 or 1 (tampered) for every pixel.

    Every second tile holds a tampered pixel where the document has one; the others lie anywhere. Tiles of one
    document stay together, as those of receipts do.

    Parameters
    ----------
    path : str or Path
        Holds ``images`` and ``masks``, in which a mask has the name of its image (any suffix; not 0 means tampered), as
        T-SROIE can be laid out, and may hold ``sensitive``: a folder a kind, with masks of where images show that kind
        (no mask: nowhere); or the ``data.mdb`` of DocTamper (needs lmdb); or ``train`` and, where there is one,
        ``test``, each of which holds one of these.
    tile : int
        Height and width in pixels; smaller documents are refused.
    tiles : int
        Of each document.
    tile_seed : int
        Decides where tiles lie, and which documents are drawn.
    documents : int
        Draw so many of each half; 0 takes all.

    Raises
    ------
    FieldError
        Naming the file that cannot be used.
    FedVeilError
        If Pillow, or for DocTamper lmdb, is not installed.
    """
    root = Path(path).expanduser()
    require_count("data.tile", tile)
    require_count("data.tiles", tiles)
    require_count("data.documents", documents, least=0)
    folders = [root / half for half in ("train", "test")] if (root / "train").is_dir() else [root]
    halves = [_documents(folder, documents, tile_seed) for folder in folders if folder.is_dir()]
    if not halves:
        raise MissingDataError("data.path", str(root), "is no folder: give one that holds images and masks")
    made = [_tiles(half, tile, tiles, tile_seed) for half in halves]
    test, kinds = made[1] if len(made) > 1 else None, _kinds(folders[0])
    return DataSet(
        name="documents",
        x=images(made[0][0]),
        y=torch.from_numpy(made[0][1]),
        test_x=None if test is None else images(test[0]),
        test_y=None if test is None else torch.from_numpy(test[1]),
        classes=2,
        class_names=("genuine", "tampered"),
        group=torch.arange(len(halves[0])).repeat_interleave(tiles),
        regions=torch.from_numpy(made[0][2]) if kinds else None,
        region_names=tuple(kinds),
        note=f"From the folder {root.name}.",
        licence="that of the folder",
    )


def _documents(folder: Path, number: int, seed: int) -> list[_Document]:
    found = list(_stored(folder) if (folder / "data.mdb").is_file() else _pairs(folder))
    if len(found) < max(number, 1):
        raise FieldError("data.documents", number, f"{folder} holds {len(found)}")
    chosen = np.random.default_rng(keyed_seed("documents", seed)).permutation(len(found))[: number or len(found)]
    return [found[i] for i in sorted(chosen.tolist())]


def _pairs(folder: Path) -> Iterator[_Document]:
    for part in ("images", "masks"):
        if not (folder / part).is_dir():
            raise MissingDataError("data.path", str(folder), f"must hold images and masks; there is no {part}")
    files, masks, kinds = _by_name(folder / "images"), _by_name(folder / "masks"), _kinds(folder)
    for marked in kinds.values():
        for name, file in marked.items():
            if name not in files:
                raise FieldError(str(file), None, f"belongs to no image: images/{name}.png is missing")
    for name, file in sorted(files.items()):
        if name not in masks:
            raise FieldError(str(file), None, f"has no mask: masks/{name}.png is missing")
        sensitive = tuple(marked.get(name) for marked in kinds.values())
        yield _Document(file.name, partial(_read, str(file), file, masks[name]), sensitive)


def _by_name(folder: Path) -> dict[str, Path]:
    return {file.stem: file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES}


def _kinds(folder: Path) -> dict[str, dict[str, Path]]:
    """Masks of what is sensitive, by kind and document."""
    kinds = sorted(p for p in (folder / "sensitive").glob("*") if p.is_dir())
    if len(kinds) > MOST_KINDS:
        raise FieldError(str(folder / "sensitive"), len(kinds), f"holds more than {MOST_KINDS} kinds")
    return {kind.name: _by_name(kind) for kind in kinds}


def _stored(folder: Path) -> Iterator[_Document]:
    """DocTamper: an LMDB with ``num-samples``, ``image-000000000`` (JPEG) and ``label-000000000`` (PNG), and so on."""
    lmdb = optional("lmdb", "reading DocTamper's data.mdb needs lmdb", '"fedveil[documents]"')
    store = lmdb.open(str(folder), readonly=True, lock=False)

    def get(key: bytes) -> bytes:
        with store.begin() as transaction:
            value = transaction.get(key)
        if not isinstance(value, bytes):
            raise FieldError(str(folder / "data.mdb"), key.decode(), "is missing; DocTamper's own files have it")
        return value

    count = get(b"num-samples")
    if not count.isdigit():
        raise FieldError(f"{folder / 'data.mdb'}: num-samples", count, "must be a number")
    for i in range(int(count)):
        name = f"{folder.name} image {i}"
        yield _Document(name, partial(_stored_pair, name, get, i))


def _stored_pair(name: str, get: Callable[[bytes], bytes], i: int) -> tuple[Grey, Grey]:
    return _read(name, get(b"image-%09d" % i), get(b"label-%09d" % i))


def _read(name: str, image: Path | bytes, mask: Path | bytes) -> tuple[Grey, Grey]:
    page, truth = (decode(name, part, mode="grey") for part in (image, mask))
    page, truth = np.atleast_2d(page.squeeze()), np.atleast_2d(truth.squeeze())
    if page.shape != truth.shape:
        raise FieldError(name, truth.shape, f"its mask must be as large as the image, {page.shape}")
    return page.astype(np.uint8), (truth > 0).astype(np.uint8)


def _bits(document: _Document, shape: tuple[int, ...]) -> Grey:
    """[H, W]: bit j of a pixel says that kind j of what is sensitive stands there."""
    bits = np.zeros(shape, dtype=np.uint8)
    for j, file in enumerate(document.sensitive):
        if file is not None:
            marked = np.atleast_2d(decode(str(file), file, mode="grey").squeeze())
            if marked.shape != shape:
                raise FieldError(str(file), marked.shape, f"must be as large as the image, {shape}")
            bits |= ((marked > 0) << j).astype(np.uint8)
    return bits


def _tiles(documents: list[_Document], tile: int, tiles: int, seed: int) -> tuple[Grey, NDArray[np.int64], Grey]:
    x = np.empty((len(documents) * tiles, tile, tile), dtype=np.uint8)
    y, bits = np.empty(x.shape, dtype=np.int64), np.empty_like(x)
    for i, document in enumerate(documents):
        page, truth = document.read()
        shown = _bits(document, page.shape)
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
                    int(rng.integers(max(0, at - tile + 1), min(at, side - tile) + 1))
                    for at, side in zip(spot.tolist(), page.shape, strict=True)
                ]
            window = tuple(slice(at, at + tile) for at in corner)
            row = i * tiles + k
            x[row], y[row], bits[row] = page[window], truth[window], shown[window]
    return x, y, bits
