"""Whether a published set's file is the version that figures are of: a checksum of its contents, however it is written."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedveil.errors import FieldError

_SHOWN = 12  # characters of a checksum


def content_of(columns: Mapping[str, Any]) -> str:
    """Return the SHA-256 of named columns or arrays.

    Numbers of a table count as float64 and texts as UTF-8, so that ``63`` and ``63.0`` are one number and line ends,
    order of columns and packing do not matter. Integer arrays keep their type.

    Parameters
    ----------
    columns : mapping of str to array
        What a set is made of: columns [N], or arrays of any shape.
    """
    digest = hashlib.sha256()
    for name in sorted(columns):
        values = np.asarray(columns[name])
        digest.update(f"{name} {values.shape} ".encode())
        if values.dtype.kind in "OUS":
            digest.update("\0".join(map(str, values.ravel().tolist())).encode())
        elif values.dtype.kind == "f":
            digest.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
        else:
            digest.update(f"{values.dtype.str} ".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def require_version(
    name: str, file: str, columns: Mapping[str, Any], known: str, official: str
) -> None:
    """Refuse other contents than those that the set's figures are of.

    Parameters
    ----------
    name : str
        Name of the set among the sources.
    file : str
        Its file.
    columns : mapping of str to array
        What was read from it.
    known : str
        `content_of` the version that is wanted.
    official : str
        Where that version is to be had.

    Raises
    ------
    FieldError
        If the checksums differ.
    """
    found = content_of(columns)
    if found == known:
        return
    accepted = f"its file {file} is another version: the checksum of its contents begins with {found[:_SHOWN]}, and "
    accepted += f"has to begin with {known[:_SHOWN]}. The official set: {official}"
    raise FieldError("data.name", name, accepted)
