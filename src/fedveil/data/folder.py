"""Data sets from folders of images: one folder for each class, optionally inside one for each client."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data.arrays import images
from fedveil.data.labels import data_set
from fedveil.data.pictures import MAX_PIXELS, MODES, SUFFIXES, size_of, stack
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.data.values import spelt_twice
from fedveil.errors import FieldError, nearest, require_choice, require_count, require_positive

_CLUTTER = (
    "thumbs.db",
    "desktop.ini",
)  # files of file managers; hidden files are skipped as well


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
        Folder with one sub-folder for each class. Or with ``train`` and optionally ``test``, each with such
        sub-folders.
    layout : {"classes", "clients"}
        ``"clients"``: one more level, ``<client>/<class>/<image>``, for natural clients. A client may lack classes. The
        test half has the same levels, but its clients are not used.
    person : {"", "folder"}
        ``"folder"``: one more level below the class, ``<class>/<person>/<image>``. Folders with the same name are one
        person, also in two classes (but not at two clients).
    classes : sequence of str
        Names of the class folders, in the order of the class numbers. Default: all class folders, sorted by name.
    absent : sequence of str
        Declared classes that may have no image here.
    mode : {"auto", "grey", "rgb"}
        Colour mode to which images are converted; "auto" keeps theirs, and refuses a mixture.
    size : sequence of int
        Height and width to which images are resized; by default all images must have the same size.
    max_images, max_pixels : int
        Most images, and most pixels of one decoded image.
    max_gib : float
        Most memory of all decoded images in GiB (4 bytes for each pixel and channel).

    Raises
    ------
    FieldError
        For an unusable folder or image file; the text names it.
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
        raise MissingDataError(
            "data.path", str(root), "is no folder: give one that holds a folder a class"
        )
    levels = _Levels(layout == "clients", bool(person))
    folders = _halves(root)
    halves: list[list[_Item]] = []
    every: list[_Item] = []
    for folder in folders:
        half = _items(folder, levels, max_images, absent)
        halves.append(half)
        every += half
    names = _classes(root, every, classes, absent)
    first = every[0]
    like = (first.shown if person else str(first.file.relative_to(root)), first.file)
    pixels: list[NDArray[Any]] = []
    parts: list[tuple[Tensor, Tensor]] = []
    for half in halves:
        files = ((item.shown, item.file) for item in half)
        each = limit / len(every)
        decoded = stack(files, len(half), like, each, mode=mode, size=wanted, max_pixels=max_pixels)
        labels = torch.tensor([names.index(item.label) for item in half], dtype=torch.int64)
        pixels.append(decoded)
        parts.append((images(decoded, "last"), labels))
    note = f"From the folder {root.name}.{_dark(pixels)}"
    clients = [item.client for item in halves[0]]
    if levels.clients:
        without = [folder.name for folder in _folders(folders[0]) if folder.name not in clients]
        if without:
            note += f" Clients without an image, left out: {', '.join(without)}."
    return data_set(
        parts,
        ("client folders", clients) if levels.clients else None,
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
    """Return a note if no 16-bit image uses the four highest bits, as images of 12-bit scanners; else ""."""
    highest = max(float(pixels.max()) for pixels in decoded)
    if decoded[0].dtype != np.float32 or highest >= 2**12 / 65535:
        return ""
    said = (
        f"16-bit pixels reach {highest * 65535:.0f} of 65535 at most: if they hold 12 bits or fewer"
    )
    return f" {said}, they are read as dark pictures; rewrite them over the whole range."


def _halves(root: Path) -> list[Path]:
    """Return the folder itself, or its folders ``train`` and ``test``."""
    halves = {folder.name: folder for folder in _folders(root)}
    if "train" not in halves:
        if "test" in halves:
            raise FieldError(
                "data.path", str(root), "holds test but no train: name the other folder train"
            )
        return [root]
    others = [name for name in halves if name not in ("train", "test")]
    if others:
        accepted = f"holds {', '.join(others)} beside train, where only test may stand: rename it test, or take it out"
        raise FieldError("data.path", str(root), accepted)
    return [halves[name] for name in ("train", "test") if name in halves]


@dataclass(frozen=True)
class _Levels:
    """Levels of folders in a half: whether there are clients above the classes, and persons below them."""

    clients: bool
    people: bool

    def form(self, half: Path) -> str:
        """Describe the paths of images in this half, for refusals."""
        client = "<client>/" if self.clients else ""
        return f"{half}/{client}<class>/<image>"

    def hint(self) -> str:
        """Return advice for refusals: further levels that could be declared."""
        hint = ""
        if not self.clients:
            hint += '; where the upper folders are clients, write layout = "clients"'
        if not self.people:
            hint += '; where the lower ones are patients, person = "folder"'
        return hint


def _items(
    half: Path,
    levels: _Levels,
    max_images: int,
    absent: Sequence[str],
) -> list[_Item]:
    """List the images of a half, each with its client, class and person."""
    form = levels.form(half)
    clients = _folders(half) if levels.clients else [half]
    if not clients:
        raise FieldError("data.path", str(half), f"holds no folder: put images into {form}")
    items: list[_Item] = []
    for client in clients:
        site = client.name if levels.clients else ""
        for group in _class_folders(client, form, levels):
            own = _images_of_class(group, site, form, levels)
            if not own and not levels.clients and group.name not in absent:
                raise FieldError(
                    str(group), "no image", "is empty: remove the folder, or list it in data.absent"
                )
            items += own
            if len(items) > max_images:
                raise FieldError(
                    str(half), f"over {max_images} images", "raise data.max_images if it is meant"
                )
    if not items:
        raise FieldError(str(half), "no image", "must hold at least one")
    return items


def _class_folders(client: Path, form: str, levels: _Levels) -> list[Path]:
    """Return the class folders of a client; refuse images next to them."""
    groups = _folders(client)
    loose = _image_in(client)
    if groups and not loose:
        return groups
    held = f"holds {loose}" if loose else "holds no folder"
    other = (
        '; where they lie in <class>/<image>, leave layout = "clients" out'
        if levels.clients
        else ""
    )
    raise FieldError("data.path", str(client), f"{held}: images lie in {form}{other}")


def _images_of_class(group: Path, site: str, form: str, levels: _Levels) -> list[_Item]:
    """List the images in a class folder, or in its folders of persons."""
    owners = [group]
    if levels.people:
        owners = _folders(group)
        stray = _image_in(group)
        if stray:
            raise FieldError(
                str(group), stray, "images must lie in one folder a person, below their class"
            )
    items: list[_Item] = []
    for number, owner in enumerate(owners, 1):
        files = [file for file in sorted(owner.iterdir()) if not _clutter(file)]
        for i, file in enumerate(files, 1):
            shown = (
                f"{group}/person {number}/image {i}{file.suffix}" if levels.people else str(file)
            )
            if file.is_dir():
                accepted = f"is a folder: images lie in {form}. Give data.path at the right level{levels.hint()}"
                raise FieldError("data.path", shown, accepted)
            if file.suffix.lower() not in SUFFIXES or not file.is_file():
                raise FieldError(
                    shown, file.suffix, f"is no image: {', '.join(SUFFIXES)} may stand here"
                )
            items.append(_Item(file, group.name, site, f"{site}/{owner.name}", shown))
    return items


def _image_in(folder: Path) -> str:
    """Return the name of the first image directly in a folder; "" if there is none."""
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in SUFFIXES:
            return file.name
    return ""


def _classes(
    root: Path,
    items: Sequence[_Item],
    declared: Sequence[str],
    absent: Sequence[str],
) -> list[str]:
    """Return the names of the classes in the order of their numbers, after checking declared and absent ones."""
    classes = sorted({item.label for item in items})
    if not declared:
        _require_distinct(root, classes)
        if absent:
            raise FieldError(
                "data.absent",
                list(absent),
                "is for declared classes: list all of them in data.classes",
            )
        return classes
    for name in classes:
        if name not in declared:
            raise FieldError(
                f"{root.name}: class folder",
                name,
                f"is not in data.classes; {nearest(name, declared)}",
            )
    if len(set(declared)) != len(declared):
        raise FieldError("data.classes", list(declared), "must name each class once")
    for name in absent:
        require_choice("data.absent", name, declared)
    for name in declared:
        if name not in classes and name not in absent:
            accepted = f"has no image in {root}: {nearest(name, classes)}; or list it in data.absent if it is meant"
            raise FieldError("data.classes", name, accepted)
    return list(declared)


def _require_distinct(root: Path, classes: Sequence[str]) -> None:
    """Refuse two folder names that may mean the same class, such as different spellings."""
    pair = spelt_twice(classes)
    if pair:
        first, second = pair
        accepted = f"is like {first!r}: one class, or two? Name folders in one way, or list both in data.classes"
        raise FieldError(f"{root.name}: class folder", second, accepted)


def _folders(folder: Path) -> list[Path]:
    """Return the visible folders in a folder, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _clutter(path))


def _clutter(path: Path) -> bool:
    """Whether a file is hidden, or a leftover of a file manager."""
    return path.name.startswith(".") or path.name.lower() in _CLUTTER
