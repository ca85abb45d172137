"""Data sets from npz files: arrays are checked, scaled and converted to the models' axis order."""

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedveil.data.labels import Array, classes_in, data_set, require_roles
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.errors import FieldError, require_choice, require_positive

_CHANNELS = (1, 3, 4)  # that an image may have
# The names of the arrays that are understood: (x, y, test x, test y).
LAYOUTS: tuple[tuple[str, str, str, str], ...] = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x", "y", "x_test", "y_test"),
)


def load_npz(
    path: str | Path,
    *,
    channels: str = "auto",
    classes: int = 0,
    absent: Sequence[int] = (),
    client_array: str = "",
    person: str = "",
    max_gib: float = 4.0,
) -> DataSet:
    """Load a data set from an npz file without pickle.

    Parameters
    ----------
    path : str or Path
        File with arrays ``x_train, y_train[, x_test, y_test]``, ``train_images, train_labels[, test_images,
        test_labels]`` or ``x, y[, x_test, y_test]``. x of type uint8 is scaled by 1/255, other numbers are not scaled;
        [N, H, W] becomes [N, 1, H, W]. Integer y are classes, one for each example [N] or each pixel [N, H, W].
        Floating-point y are targets of a regression.
    channels : {"auto", "first", "last"}
        Axis of the channels in 4-d images; "auto" takes the first or last axis with length 1, 3 or 4.
    classes : int
        Number of classes. 0: one more than the largest label; methods with a promise refuse this, as one record could
        change it.
    absent : sequence of int
        Classes that may have no example here; any other missing class is refused.
    client_array : str
        Name of an array [N] in the file with the natural client of each example, e.g. ``"train_writer"``.
    person : str
        Name of an array [N] in the file with the person (patient) of each example, as integers or texts.
    max_gib : float
        Largest unpacked size of the file in GiB.

    Raises
    ------
    FieldError
        For a missing, too large or unreadable file, or arrays that do not fit; the text names file, array and row.
    """
    file = Path(path).expanduser()
    require_choice("data.channels", channels, ("auto", "first", "last"))
    arrays = read_npz(file, require_positive("data.max_gib", max_gib))
    keys = _names_in(file, arrays)
    x_key, y_key, test_x_key, test_y_key = keys
    pairs = [(x_key, y_key)]
    if test_x_key in arrays or test_y_key in arrays:
        pairs.append((test_x_key, test_y_key))
    halves: list[tuple[Tensor, Tensor]] = []
    labels: dict[str, Tensor] = {}
    for inputs, targets in pairs:
        half = _pair(file, arrays, inputs, targets, channels)
        halves.append(half)
        labels[f"{file.name}:{targets}"] = half[1]
    x, y = halves[0]
    test_x, test_y = halves[-1]
    if test_x.shape[1:] != x.shape[1:] or test_y.is_floating_point() != y.is_floating_point():
        raise FieldError(
            f"{file.name}:{test_x_key}",
            tuple(test_x.shape),
            f"must be as {x_key}, {tuple(x.shape)}",
        )
    number = classes_in("data.classes", classes, absent, labels)
    names = tuple(map(str, arrays["class_names"].reshape(-1))) if "class_names" in arrays else ()
    require_roles(
        {
            "inputs": x_key,
            "targets": y_key,
            "data.client_array": client_array,
            "data.person": person,
        }
    )
    return data_set(
        halves,
        _ids_in(file, arrays, "data.client_array", client_array),
        _ids_in(file, arrays, "data.person", person),
        name="npz",
        classes=number,
        counted=not classes,
        class_names=names if len(names) == number else (),
        note=f"From the file {file.name}.{_unused(arrays, {*keys, 'class_names', client_array, person})}",
        licence="that of the file",
    )


def _names_in(file: Path, arrays: Mapping[str, Array]) -> tuple[str, str, str, str]:
    """Return the names of the arrays: inputs and labels of the training half, and of the test half."""
    for names in LAYOUTS:
        if names[0] in arrays and names[1] in arrays:
            return names
    held = ", ".join(sorted(arrays)) or "no array"
    wanted = "; or ".join(f"{x} and {y}" for x, y, *_ in LAYOUTS)
    raise FieldError("data.path", str(file), f"holds {held}, but needs {wanted}")


def _ids_in(
    file: Path,
    arrays: Mapping[str, Array],
    field: str,
    name: str,
) -> tuple[str, Array] | None:
    """Return an array with clients or persons, and its name for refusals; None if it is not requested."""
    if not name:
        return None
    return f"{file.name}:{name}", arrays[require_choice(field, name, arrays)]


def _unused(arrays: Collection[str], used: Collection[str | None]) -> str:
    """Return a note with the unused arrays; "" if all are used."""
    rest = ", ".join(sorted(set(arrays) - set(used)))
    return f" Not used of it: {rest}." if rest else ""


# what zipfile, its decompressors and NumPy's reader raise for damaged files
_UNREADABLE = (
    *(OSError, EOFError, MemoryError, RuntimeError, ValueError, TypeError, KeyError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)


def read_npz(file: Path, max_gib: float = 4.0) -> dict[str, Array]:
    """Read the arrays of an npz file that unpacks to at most `max_gib` GiB; pickled objects are refused."""
    if not file.is_file():
        raise MissingDataError("data.path", str(file), "is no file: give the path of an npz file")
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries) / 2**30
            if size > max_gib:
                accepted = f"unpacks to {size:.1f} GiB; raise data.max_gib ({max_gib:g})"
                raise FieldError("data.path", str(file), accepted)
            for entry in entries:
                _check_header(file, archive, entry)
        with np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except FieldError:
        raise
    except _UNREADABLE as error:
        raise FieldError(
            "data.path", str(file), f"cannot be read as an npz file without pickle ({error})"
        ) from error


def _check_header(file: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Refuse an array whose header claims more data than its file holds, before memory is allocated."""
    with archive.open(entry) as member:
        version = np.lib.format.read_magic(member)
        is_first = version == (1, 0)
        read_header = (
            np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(member)
        needed = math.prod(shape) * dtype.itemsize
        if needed > entry.file_size - member.tell():
            name = entry.filename.removesuffix(".npy")
            accepted = f"array {name!r} claims {needed} bytes, and has {entry.file_size}"
            raise FieldError("data.path", str(file), accepted)


def _pair(
    file: Path,
    arrays: dict[str, Array],
    x_key: str,
    y_key: str,
    channels: str,
) -> tuple[Tensor, Tensor]:
    """Return examples and labels of one half, after checks."""
    for key in (x_key, y_key):
        if key not in arrays:
            raise FieldError("data.path", str(file), f"holds no array {key}, which the others need")
        if arrays[key].dtype.kind not in "buif" or arrays[key].ndim < 1:
            raise FieldError(
                f"{file.name}:{key}", str(arrays[key].dtype), "must hold numbers, a row an example"
            )
        if not arrays[key].size:
            accepted = "is empty: there must be an example, a row each, and a number in each"
            raise FieldError(f"{file.name}:{key}", arrays[key].shape, accepted)
        if arrays[key].dtype.kind == "f":
            _finite(f"{file.name}:{key}", arrays[key])
    x = arrays[x_key]
    y = arrays[y_key]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if len(x) != len(y):
        raise FieldError(
            f"{file.name}:{y_key}", len(y), f"must be as long as {x_key}, which has {len(x)} rows"
        )
    if y.dtype.kind != "f" and y.ndim not in (1, 3):
        raise FieldError(
            f"{file.name}:{y_key}",
            y.shape,
            "must hold one class an example [N] or a pixel [N, H, W]",
        )
    kind = np.float32 if y.dtype.kind == "f" else np.int64
    target = torch.from_numpy(y.astype(kind))
    own = images(x, channels, f"{file.name}:{x_key}")
    is_of_pixels = target.dim() == 3 and not target.is_floating_point()
    if is_of_pixels and own.shape[2:] != target.shape[1:]:
        raise FieldError(
            f"{file.name}:{y_key}", y.shape, f"must have the height and width of {x_key}, {x.shape}"
        )
    return own, target


def images(x: Array, channels: str = "auto", name: str = "x") -> Tensor:
    """Convert images to float32: uint8 is scaled to [0, 1], channels come first, and grey images get one channel.

    Raises
    ------
    FieldError
        If `channels` is "auto", and not exactly one of the first and last axis of 4-d images has length 1, 3 or 4.
    """
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4:
        possible: list[str] = []
        if x.shape[1] in _CHANNELS:
            possible.append("first")
        if x.shape[3] in _CHANNELS:
            possible.append("last")
        if channels == "auto" and len(possible) != 1:
            ends = "both ends can be" if possible else "neither end is one of"
            accepted = (
                f"{ends} 1, 3 or 4 channels; say where they are: data.channels = 'first' or 'last'"
            )
            raise FieldError(name, x.shape, accepted)
        if channels == "last" or (channels == "auto" and possible == ["last"]):
            x = np.moveaxis(x, 3, 1)
    scaled = np.ascontiguousarray(x, dtype=np.float32)
    if x.dtype == np.uint8:
        scaled = scaled / np.float32(255)
    return torch.from_numpy(scaled)


def _finite(name: str, values: Array) -> None:
    usable = np.abs(values) <= np.finfo(np.float32).max  # NaN is not
    bad = np.flatnonzero(~usable.reshape(len(values), -1).all(1))
    if len(bad):
        raise FieldError(
            f"{name}[{int(bad[0])}]",
            "NaN or infinity",
            "must be finite: remove the row or fill it in",
        )
