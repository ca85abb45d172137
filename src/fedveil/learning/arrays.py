"""Conversion of NumPy arrays, data frames and lists to tensors, and of samples of data sets to pairs (x, y)."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.errors import FieldError, kind_of

Array = NDArray[Any]

_NUMBERS = "must be numbers, one row an example"
_CLASSES = "number the classes from 0 on, in the same order for every client"
_OTHER_KINDS = {
    "M": "times",
    "m": "times",
    "U": "texts",
    "S": "texts",
    "c": "complex numbers",
}  # kinds of NumPy types
_NO_NUMBERS = (
    "date",
    "time",
    "period",
    "duration",
    "str",
    "categ",
    "enum",
    "list",
)  # prefixes of column types
_LABELS = ("y", "label", "labels", "target", "targets", "class", "classes")
_PAIRS = "DataLoader(dataset, collate_fn=...), whose function returns (x, y) of a list of samples"


def tensor_of(value: Any, name: str, *, labels: bool = False) -> Tensor:
    """Convert an array, data frame or list to a tensor; float64 becomes float32, except in labels.

    Parameters
    ----------
    value : Tensor, array, data frame, series or list
        One row for each example.
    name : str
        Name of the value in refusals.
    labels : bool
        Whether the values are labels: classes (integers become int64) or targets.

    Raises
    ------
    FieldError
        For texts, times, missing or masked values, sparse or structured arrays.
    """
    tensor = _as_tensor(value, name, labels)
    if labels and not tensor.is_floating_point():
        return tensor.to(torch.int64)
    if not labels and tensor.dtype == torch.float64:
        return tensor.to(torch.float32)
    return tensor


def _as_tensor(value: Any, name: str, labels: bool) -> Tensor:
    """Convert a value to a tensor without a change of its number type."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise FieldError(name, str(value.layout), "must be dense: x.to_dense()")
        return value
    if (
        isinstance(value, list | tuple)
        and len(value)
        and all(isinstance(row, Tensor) for row in value)
    ):
        shapes = {row.shape for row in value}
        if len(shapes) > 1:
            raise FieldError(
                name, "tensors of several shapes", "must be of one shape, one row an example"
            )
        return torch.stack(tuple(value))
    array = array_of(value, name, labels=labels)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise FieldError(name, str(array.dtype), f"{_NUMBERS} ({error})") from error


def array_of(value: Any, name: str, *, labels: bool = False) -> Array:
    """Convert anything but a tensor to a NumPy array, in this machine's byte order and C memory order.

    Parameters
    ----------
    value : array, data frame, series or list
        The numbers.
    name : str
        Name of the value in refusals.
    labels : bool
        Whether a refusal of texts should say how classes are numbered.
    """
    if hasattr(value, "toarray"):
        raise FieldError(name, kind_of(value), "must be dense: x.toarray()")
    _refuse_masked(value, name)
    held = _from_frame(value, name) if hasattr(value, "to_numpy") else value
    try:
        array = np.asarray(held)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FieldError(name, kind_of(value), f"{_NUMBERS}: {error}") from error
    if array.dtype.kind == "O":
        array = _from_objects(array, name, labels)
    if array.dtype.names:
        fields = ", ".join(array.dtype.names)
        accepted = f"has fields ({fields}): numpy.lib.recfunctions.structured_to_unstructured makes columns of them"
        raise FieldError(name, "a structured array", accepted)
    if array.dtype.kind not in "buif":
        held_instead = _OTHER_KINDS.get(array.dtype.kind, "something else")
        accepted = f"{_NUMBERS}, and holds {held_instead}"
        if labels:
            accepted = f"{accepted}; {_CLASSES}"
        raise FieldError(name, str(array.dtype), accepted)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    usual = array.dtype.newbyteorder("=")
    is_backwards = any(stride < 0 for stride in array.strides)
    if array.dtype != usual or not array.flags.writeable or is_backwards:
        return np.array(array, dtype=usual, order="C")
    return array


def _refuse_masked(value: Any, name: str) -> None:
    """Refuse masked values (NumPy's form of missing values), also within a list."""
    if isinstance(value, list | tuple):
        for row, one in enumerate(value):
            if isinstance(one, np.ma.MaskedArray):
                _refuse_masked(one, f"{name}[{row}]")
    elif np.ma.is_masked(value):
        mask = np.ma.getmaskarray(value)
        field = name
        if mask.ndim:
            row = int(np.argwhere(mask)[0][0])
            field = f"{name}[{row}]"
        accepted = f"must not be missing ({int(mask.sum())} in all): fill it in, as by x.filled(0), or remove the row"
        raise FieldError(field, "masked", accepted)


def _from_frame(value: Any, name: str) -> Any:
    """Return the array of a pandas or Polars data frame or series; refuse a missing value, naming its row."""
    if hasattr(value, "isna"):
        missing = np.asarray(value.isna())
        if missing.any():
            row, *column = np.argwhere(missing)[0].tolist()
            of = f", column {value.columns[column[0]]!r}" if column else ""
            raise FieldError(
                f"{name}[{row}]{of}", None, "must not be missing: fill it in or remove the row"
            )
    if hasattr(value, "columns") and hasattr(value, "dtypes"):
        for column, dtype in zip(value.columns, value.dtypes, strict=True):
            if str(dtype).lower().startswith(_NO_NUMBERS):
                fix = (
                    "give each text a column of its own (pandas.get_dummies), and times as numbers"
                )
                raise FieldError(
                    f"{name}, column {column!r}", str(dtype), f"must hold numbers: {fix}"
                )
    return np.array(value.to_numpy())


def _from_objects(array: Array, name: str, labels: bool) -> Array:
    """Return Python numbers from an array of objects; refuse anything else, naming its row."""
    are_whole = True
    for at, one in np.ndenumerate(array):
        if not isinstance(one, Real | Decimal | np.bool_):
            is_missing = one is None or type(one).__name__ in ("NAType", "NaTType")
            shown = None if is_missing else type(one).__name__
            fix = _CLASSES if labels and isinstance(one, str) else "x.astype(float) where they are"
            raise FieldError(f"{name}[{at[0]}]" if at else name, shown, f"{_NUMBERS}; {fix}")
        are_whole = are_whole and isinstance(one, int | np.integer | np.bool_)
    return array.astype(np.int64 if labels and are_whole else np.float64)


def columns_of(value: Any) -> tuple[str, ...] | None:
    """Return the names of a data frame's columns; None for anything else."""
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return tuple(map(str, value.columns))
    return None


def refuse_misaligned(x: Any, y: Any, name: str) -> None:
    """Refuse a pandas frame and labels with different row numbers, and labels that are also an input column."""
    index: Any = getattr(x, "index", None)
    other: Any = getattr(y, "index", None)
    have_indices = hasattr(index, "equals") and hasattr(other, "equals")
    if have_indices and len(x) == len(y) and not index.equals(other):
        accepted = "has another index than x: rows would be paired by place. Sort one by the other, or reset both"
        raise FieldError(name, "labels", accepted)
    label = getattr(y, "name", None)
    if isinstance(label, str) and label in (columns_of(x) or ()):
        raise FieldError(
            name, label, "is a column of x as well: the label would be an input. Drop it from x"
        )


def pair_of(sample: Any, name: str) -> tuple[Any, Any]:
    """Return the two parts (x, y) of a sample or of a batch.

    Raises
    ------
    FieldError
        For a mapping, for more or fewer than two parts, or for a named tuple whose first part is the label.
    """
    if isinstance(sample, Mapping):
        keys = ", ".join(map(str, sample))
        accepted = f"must be a pair (x, y), and is a mapping (dict) with the keys {keys}: pair two of them by {_PAIRS}"
        raise FieldError(name, kind_of(sample), accepted)
    if not isinstance(sample, Sequence) or isinstance(sample, str):
        raise FieldError(name, kind_of(sample), f"must be a pair (x, y): {_PAIRS}")
    if len(sample) != 2:
        raise FieldError(
            name, f"{len(sample)} parts", f"must be a pair (x, y): leave the others out by {_PAIRS}"
        )
    fields = [str(field).lower() for field in getattr(sample, "_fields", ("x", "y"))]
    first, second = fields
    if first in _LABELS and second not in _LABELS:
        accepted = f"must be (x, y), and begins with its label: turn it by {_PAIRS}"
        raise FieldError(name, f"({first}, {second})", accepted)
    return sample[0], sample[1]
