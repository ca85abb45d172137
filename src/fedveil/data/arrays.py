"""Arrays from an npz file: checked, scaled and brought into the order of the models."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data.sets import DataSet, MissingDataError
from fedveil.errors import FieldError, require_choice, require_positive

Array = NDArray[Any]

# The names of the arrays that are understood: (x, y, test x, test y).
LAYOUTS: tuple[tuple[str, str, str, str], ...] = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x", "y", "x_test", "y_test"),
)


def load_npz(path: str | Path, *, channels: str = "auto", max_gib: float = 4.0) -> DataSet:
    """Load a data set from an npz file without pickle.

    Parameters
    ----------
    path : str or Path
        Holds ``x_train, y_train[, x_test, y_test]``, ``train_images, train_labels[, test_images, test_labels]`` or
        ``x, y[, x_test, y_test]``. Integer x is scaled by 1/255 (uint8) or converted; [N, H, W] becomes
        [N, 1, H, W]. Integer y is classes; floating-point y is the targets of a regression.
    channels : {"auto", "first", "last"}
        Where 4-d images have their channels; "auto" takes a last axis of 1, 3 or 4 for them.
    max_gib : float
        Largest unpacked size of the file in GiB.

    Raises
    ------
    FieldError
        For a file that is missing, too large or no npz, and for arrays that do not fit, naming file, array and row.
    """
    file = Path(path).expanduser()
    require_choice("data.channels", channels, ("auto", "first", "last"))
    arrays = _read(file, require_positive("data.max_gib", max_gib))
    keys = next((keys for keys in LAYOUTS if keys[0] in arrays and keys[1] in arrays), None)
    if keys is None:
        wanted = "; or ".join(" and ".join(known[:2]) for known in LAYOUTS)
        raise FieldError("data.path", str(file), f"holds {', '.join(sorted(arrays))}, but needs {wanted}")
    x_key, y_key, test_x_key, test_y_key = keys
    x, y = _pair(file, arrays, x_key, y_key, channels)
    test_x: Tensor | None = None
    test_y: Tensor | None = None
    if test_x_key in arrays or test_y_key in arrays:
        test_x, test_y = _pair(file, arrays, test_x_key, test_y_key, channels)
        if test_x.shape[1:] != x.shape[1:] or test_y.is_floating_point() != y.is_floating_point():
            raise FieldError(
                f"{file.name}:{test_x_key}", tuple(test_x.shape), f"must be like {x_key}, {tuple(x.shape)}"
            )
    classes = 0
    if not y.is_floating_point():
        classes = 1 + max(int(part.max()) for part in (y, test_y) if part is not None and part.numel())
    names = tuple(str(n) for n in arrays["class_names"].reshape(-1)) if "class_names" in arrays else ()
    return DataSet(
        name="npz",
        x=x,
        y=y,
        test_x=test_x,
        test_y=test_y,
        classes=classes,
        class_names=names if len(names) == classes else (),
        note=f"From the file {file.name}.",
        licence="that of the file",
    )


def _read(file: Path, max_gib: float) -> dict[str, Array]:
    if not file.is_file():
        raise MissingDataError("data.path", str(file), "is no file: give the path of an npz file")
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist()) / 2**30
        if size > max_gib:
            raise FieldError("data.path", str(file), f"unpacks to {size:.1f} GiB; raise data.max_gib ({max_gib:g})")
        with np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except FieldError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FieldError("data.path", str(file), f"cannot be read as an npz file without pickle ({error})") from error


def _pair(file: Path, arrays: dict[str, Array], x_key: str, y_key: str, channels: str) -> tuple[Tensor, Tensor]:
    for key in (x_key, y_key):
        if key not in arrays:
            raise FieldError("data.path", str(file), f"holds no array {key}, which the others need")
        if arrays[key].dtype.kind not in "buif" or arrays[key].ndim < 1:
            raise FieldError(
                f"{file.name}:{key}", str(arrays[key].dtype), "must be an array of numbers, a row an example"
            )
        if arrays[key].dtype.kind == "f":
            _finite(f"{file.name}:{key}", arrays[key])
    x, y = arrays[x_key], arrays[y_key]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if len(x) != len(y) or not len(x):
        raise FieldError(
            f"{file.name}:{y_key}", len(y), f"must be as long as {x_key}, which has {len(x)} rows (at least 1)"
        )
    if y.dtype.kind != "f":
        negative = np.flatnonzero(y.reshape(len(y), -1).min(1) < 0)
        if len(negative):
            row = int(negative[0])
            raise FieldError(f"{file.name}:{y_key}[{row}]", y[row].tolist(), "classes are numbered from 0 on")
    target = torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64))
    return images(x, channels), target


def images(x: Array, channels: str = "auto") -> Tensor:
    """Examples as float32: uint8 scaled to [0, 1], channels first, grey images with a channel of their own."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and (channels == "last" or (channels == "auto" and x.shape[3] in (1, 3, 4))):
        x = np.moveaxis(x, 3, 1)
    scaled = np.ascontiguousarray(x, dtype=np.float32)
    if x.dtype == np.uint8:
        scaled = scaled / np.float32(255)
    return torch.from_numpy(scaled)


def _finite(name: str, values: Array) -> None:
    bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
    if len(bad):
        raise FieldError(f"{name}[{int(bad[0])}]", "NaN or infinity", "must be finite: remove the row or fill it in")
