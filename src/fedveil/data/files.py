"""Where the real data sets and their decoded copies lie."""

from __future__ import annotations

import os
from pathlib import Path

from fedveil.data.sets import MissingDataError
from fedveil.errors import FieldError


def data_folders() -> list[Path]:
    """The folders searched: that of the variable FEDVEIL_DATA, or else ``../shared/data`` beside the checkout."""
    named = os.environ.get("FEDVEIL_DATA")
    if named:
        return [Path(named).expanduser()]
    beside = Path("..", "shared", "data")
    return list(dict.fromkeys((root / beside).resolve() for root in (Path.cwd(), Path(__file__).parents[3])))


def find(file: str) -> Path | None:
    """The path of a real data file, or None where it is absent."""
    return next((folder / file for folder in data_folders() if (folder / file).is_file()), None)


def locate(name: str, file: str, official: str) -> Path:
    """The path of a real data file.

    Raises
    ------
    MissingDataError
        If it is absent, with where the official set is to be had.
    """
    path = find(file)
    if path is None:
        raise MissingDataError(
            "data.name",
            name,
            f"needs the file {file}, which was not found. Put it into a folder and set the variable FEDVEIL_DATA to "
            f"that folder. The official set: {official}",
        )
    return path


def cache_folder() -> Path:
    """Where decoded copies are kept: the variable FEDVEIL_CACHE, or ``~/.cache/fedveil``."""
    named = os.environ.get("FEDVEIL_CACHE")
    try:
        return Path(named).expanduser() if named else Path.home() / ".cache" / "fedveil"
    except RuntimeError as error:
        raise FieldError("FEDVEIL_CACHE", named, "must be a folder: this user has no home folder") from error
