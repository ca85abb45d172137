"""Pages of a folder with marks of forgeries: images and masks, T-SROIE's own files, or DocTamper's.

T-SROIE is a folder of receipts and a JSON file in COCO's form with outlines of their words. `images` have `id` and
`file_name`. `annotations` have `image_id`, `category_id` (2 for a forged word) and `segmentation`: four corners x, y in
pixels; COCO's other forms of outlines are read, too.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.pictures import SUFFIXES, decode, pillow
from fedveil.data.sets import MissingDataError
from fedveil.errors import FieldError, damaged
from fedveil.registry import optional

Grey = NDArray[np.uint8]  # [H, W]
FORGED = 2  # the category; all others are genuine

Outline = NDArray[np.int64]  # [corners, 2], x and y
Mark = Path | bytes | list[Outline]  # a mask's file or its content, or outlines
MOST_KINDS = 8  # one bit each
LEAST = 6  # pixels: smaller boxes of text hold nothing to forge


@dataclass(frozen=True)
class Box:
    """Rectangle of pixels, with the text in it; bottom and right are exclusive."""

    top: int
    left: int
    bottom: int
    right: int
    text: str = ""

    @property
    def height(self) -> int:
        """Number of pixel rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Number of pixel columns."""
        return self.right - self.left

    @property
    def usable(self) -> bool:
        """Whether the box is large enough for a forgery."""
        return self.height >= LEAST and self.width >= LEAST

    def cut(self, page: Grey) -> Grey:
        """Return the pixels of a page inside the box."""
        return page[self.top : self.bottom, self.left : self.right]


@dataclass(frozen=True)
class Document:
    """Page of a document: its name, a function that reads image and mask, and masks of sensitive kinds."""

    name: str
    read: Callable[[int], tuple[Grey, Grey]]  # of a page with at most so many pixels
    sensitive: tuple[Mark | None, ...] = ()

    def bits(self, shape: tuple[int, int], most: int) -> Grey:
        """Return the sensitive kinds of each pixel as bits [H, W]: bit j is set if kind j is there."""
        bits = np.zeros(shape, dtype=np.uint8)
        for j, mark in enumerate(self.sensitive):
            if mark is not None:
                name = str(mark) if isinstance(mark, Path) else self.name
                bits |= _marked(name, mark, shape, most) << j
        return bits


def documents_of(folder: Path) -> list[Document]:
    """List the documents of one half without reading them.

    Raises
    ------
    FieldError
        For a missing or unknown file or folder; the text names it.
    """
    if (folder / "data.mdb").is_file():
        return list(_stored(folder))
    file = None if (folder / "images").is_dir() else outlined_by(folder)
    found = _pairs(folder) if file is None else _outlined(folder, file)
    return list(found)


def _pairs(folder: Path) -> Iterator[Document]:
    """Yield the documents of a folder with ``images`` and ``masks``."""
    for part in ("images", "masks"):
        if not (folder / part).is_dir():
            raise MissingDataError(
                "data.path", str(folder), f"must hold images and masks; there is no {part}"
            )
    files = _by_name(folder / "images")
    masks = _by_name(folder / "masks")
    kinds = _kinds_for(folder, files)
    for name, file in sorted(files.items()):
        if name not in masks:
            raise FieldError(
                str(folder / "masks" / f"{name}.png"),
                None,
                f"{file.name} needs a mask of this name",
            )
        read = partial(_read, str(file), file, masks[name])
        yield Document(file.name, read, _sensitive(kinds, name))


def _outlined(folder: Path, file: Path) -> Iterator[Document]:
    """Yield the documents that a JSON file lists."""
    outlines = forged(file)
    kinds = _kinds_for(folder, {Path(name).stem for name in outlines})
    for name, own in sorted(outlines.items()):
        image = folder / name
        if not image.is_file():
            raise FieldError(str(image), None, f"{file.name} names it")
        read = partial(_read, str(image), image, own)
        yield Document(name, read, _sensitive(kinds, image.stem))


def _sensitive(kinds: Mapping[str, Mapping[str, Mark]], name: str) -> tuple[Mark | None, ...]:
    """Return the mask of each sensitive kind for a document; None for a kind without one."""
    return tuple(marked.get(name) for marked in kinds.values())


def _kinds_for(folder: Path, names: Collection[str]) -> dict[str, Mapping[str, Mark]]:
    """Return the sensitive kinds of a folder; refuse a mask without a document."""
    kinds = kinds_of(folder)
    for kind, marked in kinds.items():
        for name in marked:
            if name not in names:
                accepted = f"belongs to no image: there is none of the name {name}"
                raise FieldError(str(folder / "sensitive" / kind), name, accepted)
    return kinds


def _by_name(folder: Path) -> dict[str, Path]:
    """Return the images of a folder by their names without a suffix."""
    return {file.stem: file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES}


def kinds_of(folder: Path) -> dict[str, Mapping[str, Mark]]:
    """Return sensitive marks by kind and document, from masks in a folder ``KIND`` or boxes in ``KIND.json``."""
    place = folder / "sensitive"
    sources = [
        source for source in sorted(place.glob("*")) if source.is_dir() or source.suffix == ".json"
    ]
    if len(sources) > MOST_KINDS:
        raise FieldError(str(place), len(sources), f"holds more than {MOST_KINDS} kinds")
    kinds: dict[str, Mapping[str, Mark]] = {}
    for source in sources:
        if source.stem in kinds:
            names = [one.name for one in sources]
            raise FieldError(str(place), names, "give a kind as masks or boxes, not both")
        kinds[source.stem] = _by_name(source) if source.is_dir() else _outlines_by_name(source)
    return kinds


def _outlines_by_name(file: Path) -> dict[str, list[Outline]]:
    """Return the outlines of the boxes in a JSON file, by image."""
    outlines: dict[str, list[Outline]] = {}
    for name, boxes in read_boxes(file).items():
        own: list[Outline] = []
        for box in boxes:
            if box.top < 0 or box.left < 0 or box.height < 1 or box.width < 1:
                raise FieldError(
                    str(file), name, "has a box that is empty or begins outside the image"
                )
            own.append(_outline_of(box))
        outlines[Path(name).stem] = own
    return outlines


def _outline_of(box: Box) -> Outline:
    """Return the four corner pixels of a box."""
    right = box.right - 1
    bottom = box.bottom - 1
    return np.array([(box.left, box.top), (right, box.top), (right, bottom), (box.left, bottom)])


def read_boxes(file: Path) -> dict[str, list[Box]]:
    """Read boxes by image, from JSON such as ``{"a.png": [[left, top, right, bottom], ...]}``.

    An optional fifth item of a box is its text.

    Raises
    ------
    FieldError
        For a file that is damaged or of another form; the text names it.
    """
    try:
        content: Mapping[str, Sequence[Sequence[Any]]] = json.loads(file.read_bytes())
        found: dict[str, list[Box]] = {}
        for name, boxes in content.items():
            found[name] = []
            for left, top, right, bottom, *text in boxes:
                box = Box(int(top), int(left), int(bottom), int(right), str(*text))
                found[name].append(box)
        return found
    except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
        accepted = 'it must hold boxes by image: {"a.png": [[left, top, right, bottom], ...]}'
        raise damaged("boxes", file, error, accepted) from error


def _stored(folder: Path) -> Iterator[Document]:
    """Yield DocTamper's pages from an LMDB with ``num-samples``, ``image-000000000`` (JPEG), ``label-000000000`` (PNG)."""
    if (folder / "sensitive").exists():
        accepted = "cannot belong to DocTamper's data.mdb, whose pages have no names: lay them out as images and masks"
        raise FieldError(str(folder / "sensitive"), "a folder of masks", accepted)
    lmdb = optional("lmdb", "reading DocTamper's data.mdb needs lmdb", '"fedveil[documents]"')
    store = lmdb.open(str(folder), readonly=True, lock=False)

    def get(key: bytes) -> bytes:
        with store.begin() as transaction:
            value = transaction.get(key)
        if not isinstance(value, bytes):
            raise FieldError(
                str(folder / "data.mdb"), key.decode(), "is missing; DocTamper's own files have it"
            )
        return value

    def stored(name: str, i: int, most: int) -> tuple[Grey, Grey]:
        image = get(b"image-%09d" % i)
        label = get(b"label-%09d" % i)
        return _read(name, image, label, most)

    count = get(b"num-samples")
    if not count.isdigit():
        raise FieldError(f"{folder / 'data.mdb'}: num-samples", count, "must be a number")
    for i in range(int(count)):
        name = f"{folder.name} image {i}"
        yield Document(name, partial(stored, name, i))


def _read(name: str, image: Path | bytes, mask: Mark, most: int) -> tuple[Grey, Grey]:
    """Return a page and its mask, [H, W] each."""
    page = _grey(name, image, most)
    return page, _marked(name, mask, page.shape, most)


def _marked(name: str, mark: Mark, shape: tuple[int, int], most: int) -> Grey:
    """Convert a mask or outlines to [H, W]: 1 where something is marked, else 0."""
    if isinstance(mark, list):
        return filled(name, mark, shape)
    pixels = decode(name, mark, mode="grey", max_pixels=most)
    if pixels.shape != shape:
        raise FieldError(name, pixels.shape, f"must be as large as the image, {shape}")
    return (pixels > 0).astype(np.uint8)


def grey_pages(path: Path, most: int) -> Iterator[tuple[str, Grey]]:
    """Yield name and pixels [H, W] of one page, or of all pages in a folder (or its ``images``), sorted by name.

    Raises
    ------
    MissingDataError, FieldError
        If there are no pages, two differ only in the suffix, or one cannot be read.
    """
    within = path / "images" if (path / "images").is_dir() else path
    files = [path]
    if not path.is_file():
        files = sorted(file for file in within.glob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise MissingDataError(
            "PAGES", str(path), f"is no image, and no folder of images ({', '.join(SUFFIXES)})"
        )
    names = {file.stem for file in files}
    if len(names) < len(files):
        raise FieldError("PAGES", str(within), "holds two images of one name: rename one")
    for file in files:
        yield file.name, _grey(str(file), file, most)


def _grey(name: str, source: Path | bytes, most: int) -> Grey:
    """Return the pixels of an image, from 0 to 255."""
    pixels = decode(name, source, mode="grey", max_pixels=most)
    if pixels.dtype == np.float32:  # of 16 bits, from 0 to 1
        pixels = np.rint(255 * pixels).astype(np.uint8)
    grey: Grey = pixels
    return grey


def outlined_by(folder: Path) -> Path | None:
    """Return the JSON file next to a folder of images that has the folder's name in its own; None without one."""
    named: list[Path] = []
    for file in sorted(folder.parent.glob("*.json")):
        words = re.split(r"[^A-Za-z]+", file.stem)
        if folder.name in words:
            named.append(file)
    if len(named) > 1:
        names = [file.name for file in named]
        raise FieldError("data.path", names, f"leave one that outlines what is forged in {folder}")
    return named[0] if named else None


def forged(file: Path) -> dict[str, list[Outline]]:
    """Read the outlines of forged words in each image, by the image's file name.

    Raises
    ------
    FieldError
        For a file that is damaged, of another form, or without any forged word; the text names it.
    """
    try:
        content = json.loads(file.read_bytes())
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        outlines: dict[str, list[Outline]] = {name: [] for name in names.values()}
        if len(outlines) < len(content["images"]):
            raise ValueError("an id or a file_name stands there twice")
        marks: Sequence[Mapping[str, Any]] = content["annotations"]
        for mark in marks:
            if mark["category_id"] == FORGED:
                outlines[names[mark["image_id"]]] += _outlines(mark["segmentation"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise damaged(
            "data.path", file, error, "it must be of COCO's form, as T-SROIE's own are"
        ) from error
    if not any(outlines.values()):
        raise FieldError(
            "data.path", str(file), f"outlines nothing of category_id {FORGED}, which means forged"
        )
    return outlines


def filled(
    name: str,
    outlines: Sequence[Outline],
    shape: tuple[int, int],
) -> NDArray[np.uint8]:
    """Fill outlines: return [H, W] with 1 inside and on them, else 0.

    Raises
    ------
    FieldError
        If an outline lies outside the image; the text names the image.
    """
    height, width = shape
    mask = pillow().new("L", (width, height))
    pen = optional("PIL.ImageDraw", "filling outlines needs Pillow", '"fedveil[data]"').Draw(mask)
    for outline in outlines:
        least = outline.min(0)
        most = outline.max(0)
        if (most < 0).any() or (least >= (width, height)).any():
            raise FieldError(
                name, outline.tolist(), f"is an outline outside the image, {width} x {height}"
            )
        corners = [(int(x), int(y)) for x, y in outline]
        pen.polygon(corners, fill=1, outline=1)
    return np.asarray(mask, dtype=np.uint8)


def _outlines(segmentation: Any) -> list[Outline]:
    """Read outlines from a flat list x, y, x, y, ..., from pairs, or from a list of either."""
    several = isinstance(segmentation[0], list) and len(segmentation[0]) != 2
    parts = segmentation if several else [segmentation]
    outlines: list[Outline] = []
    for part in parts:
        corners = np.asarray(part, dtype=np.float64).reshape(-1, 2)
        if len(corners) < 3:
            raise ValueError(f"a segmentation has fewer than 3 corners: {segmentation}")
        outlines.append(corners.astype(np.int64))
    return outlines
