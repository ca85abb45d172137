"""Conversion of a file of new examples to a released model's inputs, by the constants stored with the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data.arrays import images, read_npz
from fedveil.data.frames import TableSpec, inputs_of
from fedveil.data.pictures import MAX_PIXELS, SUFFIXES, decode
from fedveil.data.sets import own_scale
from fedveil.data.table import read_table
from fedveil.data.values import Style
from fedveil.errors import FieldError, require_choice
from fedveil.home.description import Description

TABLES = (".csv", ".csv.gz", ".parquet")
MOST_ROWS = 2_000_000
MOST_BYTES = 2**30
MOST_PICTURES = 200_000


def examples_of(
    about: Description, path: Path, reference: Path | None = None
) -> tuple[Tensor, list[str]]:
    """Read examples [N, ...] from a file or folder, with the name of each.

    Parameters
    ----------
    about : Description
        Description of the model, which says how rows become examples.
    path : Path
        Table, npz file with an array ``x``, picture, or folder of pictures.
    reference : Path, optional
        Table of the site's own rows, needed if each site's columns were scaled by its own rows in training.

    Raises
    ------
    FieldError
        For a file of another kind than the run's, a missing column, or an unusable value.
    """
    if not path.exists():
        raise FieldError("DATA", str(path), "is neither a file nor a folder")
    kind = _kind(path)
    wanted = str(about.inputs.get("kind", ""))
    if kind == "arrays":
        return _arrays(path)
    if kind != wanted:
        takes = {
            "table": "a table (.csv, .csv.gz, .parquet)",
            "pictures": "pictures, or a folder of them",
        }
        accepted = takes.get(
            wanted, f"arrays: the run's data ({about.data}) came from no file of rows or pictures"
        )
        raise FieldError(
            "DATA",
            str(path),
            f"is no input of this model, which takes {accepted}; or an npz with x",
        )
    if kind == "table":
        return _table(about.inputs, path, reference)
    return _pictures(about.inputs, path)


def labelled_examples(about: Description, path: Path) -> tuple[Tensor, NDArray[np.int64]]:
    """Read examples from a file or folder, with the numbers of their classes [N].

    Parameters
    ----------
    about : Description
        Description of a classification model.
    path : Path
        Table with the run's target, npz file with ``x`` and ``y``, or folder with a folder of pictures for each class.

    Raises
    ------
    FieldError
        As in `examples_of`. Also for a label that is not one of the classes.
    """
    x, names = examples_of(about, path)
    kind = _kind(path)
    if kind == "table":
        target = str(about.inputs["target"])
        rows = _rows("DATA", path, about.inputs)
        rows.require("target", target)
        return x, np.asarray(rows.codes(target, about.classes), dtype=np.int64)
    if kind == "pictures":
        numbers = []
        for name in names:
            label = name.replace("\\", "/").split("/")[0]
            numbers.append(
                about.classes.index(require_choice("class folder", label, about.classes))
            )
        return x, np.array(numbers)
    arrays = read_npz(path)
    if "y" not in arrays or arrays["y"].shape != (len(x),) or arrays["y"].dtype.kind not in "bui":
        raise FieldError(
            "y", sorted(arrays), f"must hold y, the number of a class for each of the {len(x)} rows"
        )
    y = arrays["y"].astype(np.int64)
    if y.min() < 0 or y.max() >= len(about.classes):
        raise FieldError(
            "y", (int(y.min()), int(y.max())), f"must be 0 to {len(about.classes) - 1}"
        )
    return x, y


def _kind(path: Path) -> str:
    name = path.name.lower()
    if path.is_dir() or name.endswith(SUFFIXES):
        return "pictures"
    if name.endswith(TABLES):
        return "table"
    if name.endswith(".npz"):
        return "arrays"
    known = ", ".join((*TABLES, ".npz", *SUFFIXES))
    raise FieldError("DATA", str(path), f"must be a folder of pictures, or end in one of {known}")


def _table(
    inputs: Mapping[str, Any], path: Path, reference: Path | None
) -> tuple[Tensor, list[str]]:
    """Read the rows of a table; target and ids may be missing."""
    columns = {str(name): list(declared) for name, declared in inputs["columns"]}
    spec = _spec(inputs, columns)
    rows = _rows("DATA", path, inputs)
    for name in columns:
        rows.require(f"column {name}", name)
    x, numeric = inputs_of(rows, list(columns), spec)
    if spec.scale == "client" and numeric:
        if reference is None:
            accepted = "each site scaled its columns by its own training rows, which no run stores: give the rows of "
            raise FieldError(
                "--reference", None, f"{accepted}the site that asks, --reference ROWS.csv"
            )
        own, _ = inputs_of(_rows("--reference", reference, inputs), list(columns), spec)
        x = own_scale(x, numeric, own)
    elif reference is not None:
        raise FieldError(
            "--reference",
            str(reference),
            f"is for data.scale = 'client'; this run's is {spec.scale!r}",
        )
    return x, [str(row + 1) for row in range(len(x))]


def _spec(inputs: Mapping[str, Any], columns: Mapping[str, list[Any]]) -> TableSpec:
    """Return the declaration of the run's input columns; the target is left out."""
    given = {name: inputs[name] for name in ("scale", "outside", "missing") if name in inputs}
    declared: Any = columns if any(columns.values()) else list(columns)
    return TableSpec(target="", target_range=(0.0, 1.0), columns=declared, **given)


def _rows(field: str, path: Path, inputs: Mapping[str, Any]) -> Any:
    style = Style(str(inputs.get("decimal", ".")), str(inputs.get("thousands", "")))
    separator, encoding = str(inputs.get("separator", ",")), str(inputs.get("encoding", "utf-8"))
    return read_table(field, path, separator, style, (MOST_ROWS, MOST_BYTES), encoding)


def _pictures(inputs: Mapping[str, Any], path: Path) -> tuple[Tensor, list[str]]:
    """Read a single image, or the images of a folder in the order of their names."""
    files, names = [path], [path.name]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.name.lower().endswith(SUFFIXES))
        names = [str(file.relative_to(path)) for file in files]
    if not files:
        raise FieldError("DATA", str(path), f"holds no picture ({', '.join(SUFFIXES)})")
    if len(files) > MOST_PICTURES:
        raise FieldError(
            "DATA", str(path), f"holds more than {MOST_PICTURES:,} pictures: give a smaller folder"
        )
    size = tuple(inputs["size"]) if inputs.get("size") else None
    mode = str(inputs.get("mode", "auto"))
    made = []
    for name, file in zip(names, files, strict=True):
        pixels = decode(name, file, mode=mode, size=size, max_pixels=MAX_PIXELS)
        made.append(images(pixels[None], "last", name))
        if made[-1].shape != made[0].shape:
            raise FieldError(
                name,
                tuple(made[-1].shape[1:]),
                f"must be like {names[0]}, {tuple(made[0].shape[1:])}",
            )
    return torch.cat(made), names


def _arrays(path: Path) -> tuple[Tensor, list[str]]:
    """Read the array ``x`` of an npz file, in the same way as a run does."""
    arrays = read_npz(path)
    if "x" not in arrays:
        raise FieldError(
            "DATA", str(path), f"holds {', '.join(sorted(arrays)) or 'no array'}, and must hold x"
        )
    x = arrays["x"]
    if x.dtype.kind not in "buif" or x.ndim < 2 or not len(x):
        raise FieldError("x", (str(x.dtype), x.shape), "must hold numbers, a row an example")
    if not np.isfinite(x.astype(np.float64)).all():
        raise FieldError("x", "NaN or infinity", "must be finite: remove the row or fill it in")
    return images(x, "auto", "x"), [str(row + 1) for row in range(len(x))]
