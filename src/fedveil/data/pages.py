"""Pages of a folder and what is marked in them: images and masks, T-SROIE's own files, or DocTamper's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.files import MissingDataError
from fedveil.data.outlines import Outline, filled, forged, outlined_by
from fedveil.data.pictures import SUFFIXES, decode
from fedveil.errors import FieldError
from fedveil.optional import optional

Grey = NDArray[np.uint8]
MOST_KINDS = 8  # one bit each


@dataclass(frozen=True)
class Document:
    """One page: its name, how its image and mask are read, and a mask a kind of what is sensitive, where it has one."""

    name: str
    read: Callable[[int], tuple[Grey, Grey]]  # of a page with at most so many pixels
    sensitive: tuple[Path | None, ...] = ()

    def bits(self, shape: tuple[int, ...], most: int) -> Grey:
        """[H, W]: bit j of a pixel says that kind j of what is sensitive stands there."""
        bits = np.zeros(shape, dtype=np.uint8)
        for j, file in enumerate(self.sensitive):
            if file is not None:
                marked = _grey(str(file), file, most)
                if marked.shape != shape:
                    raise FieldError(str(file), marked.shape, f"must be as large as the image, {shape}")
                bits |= ((marked > 0) << j).astype(np.uint8)
        return bits


def documents_of(folder: Path) -> list[Document]:
    """All documents of one half, none of them read yet.

    Raises
    ------
    FieldError
        Naming the file or folder that is missing or of no known form.
    """
    if (folder / "data.mdb").is_file():
        return list(_stored(folder))
    file = None if (folder / "images").is_dir() else outlined_by(folder)
    return list(_pairs(folder) if file is None else _outlined(folder, file))


def _pairs(folder: Path) -> Iterator[Document]:
    for part in ("images", "masks"):
        if not (folder / part).is_dir():
            raise MissingDataError("data.path", str(folder), f"must hold images and masks; there is no {part}")
    files, masks = _by_name(folder / "images"), _by_name(folder / "masks")
    sensitive = _sensitive(folder, files)
    for name, file in sorted(files.items()):
        if name not in masks:
            raise FieldError(str(file), None, f"has no mask: masks/{name}.png is missing")
        yield Document(file.name, partial(_read, str(file), file, masks[name]), sensitive(name))


def _outlined(folder: Path, file: Path) -> Iterator[Document]:
    """Those that the JSON file names."""
    outlines = forged(file)
    sensitive = _sensitive(folder, {Path(name).stem for name in outlines})
    for name, found in sorted(outlines.items()):
        image = folder / name
        if not image.is_file():
            raise FieldError(str(image), None, f"is missing, and {file.name} names it")
        yield Document(name, partial(_read, str(image), image, found), sensitive(Path(name).stem))


def _sensitive(folder: Path, names: Collection[str]) -> Callable[[str], tuple[Path | None, ...]]:
    """The masks of what is sensitive in a document of that name, a kind each."""
    kinds = kinds_of(folder)
    for marked in kinds.values():
        for name, file in marked.items():
            if name not in names:
                raise FieldError(str(file), None, f"belongs to no image: there is none of the name {name}")
    return lambda name: tuple(marked.get(name) for marked in kinds.values())


def _by_name(folder: Path) -> dict[str, Path]:
    return {file.stem: file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES}


def kinds_of(folder: Path) -> dict[str, dict[str, Path]]:
    """Masks of what is sensitive, by kind and document."""
    kinds = sorted(p for p in (folder / "sensitive").glob("*") if p.is_dir())
    if len(kinds) > MOST_KINDS:
        raise FieldError(str(folder / "sensitive"), len(kinds), f"holds more than {MOST_KINDS} kinds")
    return {kind.name: _by_name(kind) for kind in kinds}


def _stored(folder: Path) -> Iterator[Document]:
    """DocTamper: an LMDB with ``num-samples``, ``image-000000000`` (JPEG) and ``label-000000000`` (PNG), and so on."""
    if (folder / "sensitive").exists():
        accepted = "cannot belong to DocTamper's data.mdb, whose pages have no names: lay them out as images and masks"
        raise FieldError(str(folder / "sensitive"), "a folder of masks", accepted)
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
        yield Document(name, partial(_stored_pair, name, get, i))


def _stored_pair(name: str, get: Callable[[bytes], bytes], i: int, most: int) -> tuple[Grey, Grey]:
    return _read(name, get(b"image-%09d" % i), get(b"label-%09d" % i), most)


def _read(name: str, image: Path | bytes, mask: Path | bytes | list[Outline], most: int) -> tuple[Grey, Grey]:
    page = _grey(name, image, most)
    truth = filled(name, mask, page.shape) if isinstance(mask, list) else _grey(name, mask, most)
    if page.shape != truth.shape:
        raise FieldError(name, truth.shape, f"its mask must be as large as the image, {page.shape}")
    return page.astype(np.uint8), (truth > 0).astype(np.uint8)


def _grey(name: str, source: Path | bytes, most: int) -> NDArray[Any]:
    return np.atleast_2d(decode(name, source, mode="grey", max_pixels=most).squeeze())
