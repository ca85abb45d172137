"""Data sets known by name: scikit-learn's handwritten digits and breast cancer table, and the Alzheimer MRI slices."""

import os
import tempfile
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.data.arrays import images
from fedveil.data.labels import data_set
from fedveil.data.pictures import decode
from fedveil.data.sets import (
    ALZHEIMER_CONTENT,
    ALZHEIMER_FILE,
    ALZHEIMER_OFFICIAL,
    DataSet,
    cache_folder,
    find,
    locate,
)
from fedveil.data.versions import require_version
from fedveil.errors import require_choice, require_count

CLASS_NAMES = ("mild demented", "moderate demented", "non demented", "very mild demented")
NOTE = (
    "Subjects are unknown: slices of one person may be on both sides of the split, so a high accuracy partly rewards "
    "memorising persons."
)
ENCODED = ("jpeg", "offsets")
LABELS = ("labels", "split_kaggle", "split_hf_counts")
_NOTES = {
    "hf_counts": "The split has the paper's class counts; its membership is a seeded draw, not the paper's.",
    "kaggle": "The split is the set's original one, whose counts are not the paper's.",
}

# Examples a class (mild, moderate, non, very mild) that the paper gives its four clients.
ALZHEIMER_HOMOGENEOUS = (
    (181, 13, 641, 445),
    (181, 12, 641, 446),
    (181, 12, 642, 445),
    (181, 12, 642, 445),
)
ALZHEIMER_NON_IID = (
    (280, 16, 881, 615),
    (107, 13, 368, 280),
    (257, 17, 1054, 720),
    (80, 3, 263, 166),
)

_MEAN, _DEVIATION = (
    0.3,
    0.3,
)  # of the pixels, rounded: fixed and public, so that scaling needs nobody's data


def _shipped(file: str) -> Path:
    """Return the path of a data file in scikit-learn without importing scikit-learn, which takes long."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets" / "data" / file


def load_digits(*, centre: float = 0.0) -> DataSet:
    """Load the handwritten digits of scikit-learn, [1, 8, 8] scaled to [0, 1].

    Parameters
    ----------
    centre : float
        Number subtracted from every pixel. Choose it without the images: a number computed from them would be a
        release.
    """
    rows = np.loadtxt(_shipped("digits.csv.gz"), delimiter=",")
    return DataSet(
        name="digits",
        x=images(rows[:, :-1].reshape(-1, 8, 8).astype("float32") / 16) - centre,
        y=torch.from_numpy(rows[:, -1].astype("int64")),
        classes=10,
        class_names=tuple(str(c) for c in range(10)),
        licence="CC BY 4.0 (UCI, optical recognition of handwritten digits)",
    )


def load_breast_cancer() -> DataSet:
    """Load the breast cancer table of scikit-learn: 30 standardised columns, two classes."""
    rows = np.loadtxt(_shipped("breast_cancer.csv"), delimiter=",", skiprows=1)
    x = torch.from_numpy(rows[:, :-1].copy())
    return DataSet(
        name="breast-cancer",
        x=((x - x.mean(0)) / x.std(0)).to(torch.float32),
        y=torch.from_numpy(rows[:, -1].astype("int64")),
        classes=2,
        class_names=("malignant", "benign"),
        note="Columns are standardised with means and deviations of the whole set, held-out rows included: a real "
        "federation would have to agree on public constants.",
        licence="CC BY 4.0 (UCI, breast cancer Wisconsin, diagnostic)",
    )


def load_alzheimer(
    *,
    resolution: int = 128,
    split: str = "hf_counts",
    scale: str = "unit",
) -> DataSet:
    """Load the Alzheimer MRI slices, grey images in four classes.

    Parameters
    ----------
    resolution : int
        Height and width in pixels, 8 to 128; smaller ones are averaged (box filter).
    split : {"hf_counts", "kaggle"}
        Choice of the set's test half.
    scale : {"unit", "standard"}
        "unit": pixels in [0, 1]. "standard": (pixel - 0.3) / 0.3, which trains faster. Both are fixed and need no
        statistics of the images.

    Raises
    ------
    MissingDataError
        If the data file is not on this machine.
    """
    require_choice("data.split", split, _NOTES)
    require_choice("data.scale", scale, ("unit", "standard"))
    path = _cached(resolution)
    stored = _read(path)
    if stored is None:
        stored = _decode(resolution)
        with suppress(
            OSError
        ):  # if the cache cannot be written, only the time to decode again is lost
            _write(path, stored)
    x, y = images(stored["images"]), torch.from_numpy(stored["labels"].astype(np.int64))
    if scale == "standard":
        x = x.sub_(_MEAN).div_(_DEVIATION)
    test = torch.from_numpy(stored[f"split_{split}"] == 1)
    return data_set(
        [(x[~test], y[~test]), (x[test], y[test])],
        name="alzheimer",
        classes=len(CLASS_NAMES),
        class_names=CLASS_NAMES,
        note=f"{NOTE} {_NOTES[split]}",
        licence="ODbL",
    )


def prepare_alzheimer(*, resolution: int = 128) -> Path:
    """Decode the images into the cache, and return the path of the cached copy."""
    path = _cached(resolution)
    if _read(path) is None:
        _write(path, _decode(resolution))
    return path


def _cached(resolution: int) -> Path:
    require_count("data.resolution", resolution, least=8, most=128)
    source, folder = find(ALZHEIMER_FILE), cache_folder()
    if source is not None:  # another source file gets another copy
        return folder / f"alzheimer-{resolution}-{source.stat().st_size:x}.npz"
    return next(
        iter(sorted(folder.glob(f"alzheimer-{resolution}-*.npz"))),
        folder / f"alzheimer-{resolution}.npz",
    )


def _read(path: Path) -> dict[str, NDArray[Any]] | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {
                key: stored[key] for key in ("images", "labels", "split_kaggle", "split_hf_counts")
            }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # absent or damaged: decode again


def _write(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder, path.name)
        np.savez(part, **arrays)  # type: ignore[arg-type]
        os.replace(part, path)


def _decode(resolution: int) -> dict[str, NDArray[Any]]:
    source = locate("alzheimer", ALZHEIMER_FILE, ALZHEIMER_OFFICIAL)
    with np.load(source, allow_pickle=False) as stored:
        whole = {key: stored[key] for key in (*ENCODED, *LABELS)}
    require_version("alzheimer", ALZHEIMER_FILE, whole, ALZHEIMER_CONTENT, ALZHEIMER_OFFICIAL)
    jpeg, offsets = whole["jpeg"].tobytes(), whole["offsets"].tolist()
    arrays = {key: whole[key] for key in LABELS}
    decoded = np.empty((len(offsets) - 1, resolution, resolution), dtype=np.uint8)
    for i, (start, stop) in enumerate(pairwise(offsets)):
        name = f"{source.name}, image {i}"
        decoded[i] = decode(name, jpeg[start:stop], mode="grey", size=(resolution, resolution))
    return {"images": decoded, **arrays}
