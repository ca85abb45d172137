"""Check that a published data set's file is the version behind published figures, by its contents or its publisher's MD5."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.errors import FieldError

_SHOWN = 12  # characters of a checksum


def content_of(columns: Mapping[str, Any]) -> str:
    """Compute SHA-256 of the contents of named columns or arrays.

    Numbers of a table count as float64, and texts as UTF-8. So ``63`` and ``63.0`` are equal, and line ends, the order
    of columns and compression do not matter. Integer arrays keep their type.

    Parameters
    ----------
    columns : mapping of str to array
        Contents of the set: columns [N], or arrays of any shape.
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
    """Refuse a file whose contents are another version than the one behind published figures.

    Parameters
    ----------
    name : str
        Name of the set in the registry of sources.
    file : str
        Name of the file.
    columns : mapping of str to array
        Contents read from the file.
    known : str
        Checksum (`content_of`) of the wanted version.
    official : str
        Where to get that version.

    Raises
    ------
    FieldError
        If the checksums differ.
    """
    found = content_of(columns)
    if found != known:
        raise _another(name, file, "the checksum of its contents", found, known, official)


def require_published_file(name: str, path: Path, known: str, official: str) -> None:
    """Refuse another file than the one whose MD5 its publisher states.

    Parameters
    ----------
    name : str
        Name of the set among the sources.
    path : Path
        The file.
    known : str
        MD5 of all its bytes, as published.
    official : str
        Where that file is to be had.

    Raises
    ------
    FieldError
        If the MD5 is another.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != known:
        raise _another(name, path.name, "its MD5", found, known, official)


def _another(name: str, file: str, what: str, found: str, known: str, official: str) -> FieldError:
    accepted = f"its file {file} is another version: {what} begins with {found[:_SHOWN]}, and "
    accepted += f"has to begin with {known[:_SHOWN]}. The official set: {official}"
    return FieldError("data.name", name, accepted)
