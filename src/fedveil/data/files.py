"""Where the real data sets and their decoded copies lie, and where the official ones are to be had."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from fedveil.errors import FieldError

ALZHEIMER_FILE = "alzheimer_mri_128_jpeg.npz"
ALZHEIMER_OFFICIAL = (
    "Alzheimer MRI, Hugging Face data set Falah/Alzheimer_MRI (6,400 images; the file holds them as one npz: jpeg "
    "(uint8, all images one after another), offsets (6401), labels, class_names, split_kaggle, split_hf_counts)"
)


class MissingDataError(FieldError):
    """A data set that is not on this machine; the message says where it is to be had."""


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


def prepared_alzheimer() -> list[str]:
    """The options of which there are decoded copies, which need the file no longer."""
    copies = filter(zipfile.is_zipfile, cache_folder().glob("alzheimer-*.npz"))
    found = {path.name.split("-")[1].removesuffix(".npz") for path in copies}
    return [f"resolution={name}" for name in sorted((n for n in found if n.isdigit()), key=int)]
