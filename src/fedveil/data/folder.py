"""Folders of images: one sub-folder a class, where wanted below one a client."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.data.arrays import images
from fedveil.data.labels import data_set
from fedveil.data.pictures import MAX_PIXELS, MODES, SUFFIXES, size_of, stack
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.data.values import spelt_twice
from fedveil.errors import FieldError, nearest, require_choice, require_count, require_positive

_CLUTTER = ("thumbs.db", "desktop.ini")  # what file managers leave behind; hidden files are passed over as well


@dataclass(frozen=True)
class _Item:
    file: Path
    label: str
    client: str
    person: str
    shown: str  # of the file; a person's folder may be a name, and her images are counted


def load_folder(
    path: str | Path,
    *,
    layout: str = "classes",
    person: str = "",
    classes: Sequence[str] = (),
    absent: Sequence[str] = (),
    mode: str = "auto",
    size: Sequence[int] = (),
    max_images: int = 200_000,
    max_pixels: int = MAX_PIXELS,
    max_gib: float = 4.0,
) -> DataSet:
    """Load a folder of PNG, JPEG, BMP, TIFF, GIF or DICOM (``.dcm``) images, in the order of their names.

    Parameters
    ----------
    path : str or Path
        Holds one folder a class, or ``train`` and, where there is one, ``test``, which do.
    layout : {"classes", "clients"}
        ``"clients"``: one more level, ``<client>/<class>/<image>``, so that clients may be natural. A client may lack
        classes. The test half has the same levels, and its clients are not looked at.
    person : {"", "folder"}
        ``"folder"``: one more level below the class, ``<class>/<person>/<image>``. Folders of one name are one person,
        also in two classes (but not at two clients).
    classes : sequence of str
        The class folders in the order of their numbers; by default all there are, by name.
    absent : sequence of str
        Declared classes that are meant to have no image here.
    mode : {"auto", "grey", "rgb"}
        What to convert images to; "auto" refuses a mixture.
    size : sequence of int
        Height and width to resize to; by default all images must have the same.
    max_images, max_pixels : int
        Most images, and most pixels one may unpack to.
    max_gib : float
        Most memory of all decoded images in GiB (4 bytes a pixel and channel).

    Raises
    ------
    FieldError
        Naming the folder or the image file that cannot be used.
    """
    root = Path(path).expanduser()
    require_choice("data.layout", layout, ("classes", "clients"))
    require_choice("data.person", person, ("", "folder"))
    require_choice("data.mode", mode, MODES)
    wanted = size_of(size)
    require_count("data.max_images", max_images)
    require_count("data.max_pixels", max_pixels)
    limit = require_positive("data.max_gib", max_gib) * 2**30
    if not root.is_dir():
        raise MissingDataError("data.path", str(root), "is no folder: give one that holds a folder a class")
    halves = [_items(half, layout == "clients", max_images, absent, bool(person)) for half in _halves(root)]
    names = _classes(root, [item for half in halves for item in half], classes, absent)
    first, each = halves[0][0], limit / sum(map(len, halves))
    how: dict[str, Any] = {"mode": mode, "size": wanted, "max_pixels": max_pixels}
    like = (first.shown if person else str(first.file.relative_to(root)), first.file)
    decoded = [stack(((item.shown, item.file) for item in half), len(half), like, each, **how) for half in halves]
    labels = [torch.tensor([names.index(item.label) for item in half], dtype=torch.int64) for half in halves]
    note, clients = f"From the folder {root.name}.{_dark(decoded)}", [item.client for item in halves[0]]
    if layout == "clients":
        without = [folder.name for folder in _folders(_halves(root)[0]) if folder.name not in clients]
        note += f" Clients without an image, left out: {', '.join(without)}." if without else ""
    return data_set(
        [(images(pixels, "last"), y) for pixels, y in zip(decoded, labels, strict=True)],
        ("client folders", clients) if layout == "clients" else None,
        ("person folders", [item.person for item in halves[0]]) if person else None,
        name="folder",
        classes=len(names),
        counted=not classes,
        class_names=tuple(names),
        inputs={"kind": "pictures", "mode": mode, "size": list(wanted or ())},
        note=note,
        licence="that of the folder",
    )


def _dark(decoded: Sequence[NDArray[Any]]) -> str:
    """What is said of 16-bit pictures of which none uses the four highest bits, as scanners of 12 bits write them."""
    highest = max(float(pixels.max()) for pixels in decoded)
    if decoded[0].dtype != np.float32 or highest >= 2**12 / 65535:
        return ""
    said = f"16-bit pixels reach {highest * 65535:.0f} of 65535 at most: if they hold 12 bits or fewer"
    return f" {said}, they are read as dark pictures; rewrite them over the whole range."


def _halves(root: Path) -> list[Path]:
    """The folder itself, or its training and test half."""
    halves = {folder.name: folder for folder in _folders(root)}
    if "train" not in halves:
        if "test" in halves:
            raise FieldError("data.path", str(root), "holds test but no train: name the other folder train")
        return [root]
    others = [name for name in halves if name not in ("train", "test")]
    if others:
        accepted = f"holds {', '.join(others)} beside train, where only test may stand: rename it test, or take it out"
        raise FieldError("data.path", str(root), accepted)
    return [halves[name] for name in ("train", "test") if name in halves]


def _items(half: Path, with_clients: bool, max_images: int, absent: Sequence[str], people: bool) -> list[_Item]:
    clients = _folders(half) if with_clients else [half]
    how = f"{half}/<client>/<class>/<image>" if with_clients else f"{half}/<class>/<image>"
    levels = "" if with_clients else '; where the upper folders are clients, write layout = "clients"'
    levels += "" if people else '; where the lower ones are patients, person = "folder"'
    if not clients:
        raise FieldError("data.path", str(half), f"holds no folder: images lie in {how}")
    items: list[_Item] = []
    for client in clients:
        groups, loose = _folders(client), _image_in(client)
        if loose or not groups:
            held = f"holds {loose}" if loose else "holds no folder"
            other = '; where they lie in <class>/<image>, leave layout = "clients" out' if with_clients else ""
            raise FieldError("data.path", str(client), f"{held}: images lie in {how}{other}")
        for group in groups:
            if people and (stray := _image_in(group)):
                raise FieldError(str(group), stray, "images must lie in one folder a person, below their class")
            before = len(items)
            for number, owner in enumerate(_folders(group) if people else [group], 1):
                for i, file in enumerate((p for p in sorted(owner.iterdir()) if not _clutter(p)), 1):
                    shown = f"{group}/person {number}/image {i}{file.suffix}" if people else str(file)
                    if file.is_dir():
                        accepted = f"is a folder: images lie in {how}. Give data.path at the right level{levels}"
                        raise FieldError("data.path", shown, accepted)
                    if file.suffix.lower() not in SUFFIXES or not file.is_file():
                        raise FieldError(shown, file.suffix, f"is no image: {', '.join(SUFFIXES)} may stand here")
                    site = client.name if with_clients else ""
                    items.append(_Item(file, group.name, site, f"{site}/{owner.name}", shown))
            if len(items) == before and not with_clients and group.name not in absent:
                raise FieldError(str(group), "no image", "is empty: remove the folder, or list it in data.absent")
            if len(items) > max_images:
                raise FieldError(str(half), f"over {max_images} images", "raise data.max_images if it is meant")
    if not items:
        raise FieldError(str(half), "no image", "must hold at least one")
    return items


def _image_in(folder: Path) -> str:
    """The first image that lies in a folder itself."""
    return next((p.name for p in sorted(folder.iterdir()) if p.suffix.lower() in SUFFIXES), "")


def _classes(root: Path, items: Sequence[_Item], declared: Sequence[str], absent: Sequence[str]) -> list[str]:
    classes = sorted({item.label for item in items})
    if not declared and (pair := spelt_twice(classes)):
        accepted = f"is like {pair[0]!r}: one class, or two? Name folders in one way, or list both in data.classes"
        raise FieldError(f"{root.name}: class folder", pair[1], accepted)
    if not declared:
        if absent:
            raise FieldError("data.absent", list(absent), "is for declared classes: list all of them in data.classes")
        return classes
    for name in classes:
        if name not in declared:
            raise FieldError(f"{root.name}: class folder", name, f"is not in data.classes; {nearest(name, declared)}")
    if len(set(declared)) != len(declared):
        raise FieldError("data.classes", list(declared), "must name each class once")
    for name in absent:
        require_choice("data.absent", name, declared)
    for name in declared:
        if name not in classes and name not in absent:
            accepted = f"has no image in {root}: {nearest(name, classes)}; or list it in data.absent if it is meant"
            raise FieldError("data.classes", name, accepted)
    return list(declared)


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not _clutter(p))


def _clutter(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in _CLUTTER
