"""Data sets in the form of the LEAF benchmark: JSON files of users with their examples."""

import json
from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.checks import require_unit_interval
from fedveil.data.labels import Array, data_set
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.errors import FieldError
from fedveil.mechanisms.source import keyed_seed

FEMNIST = tuple(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)  # FEMNIST's classes, in its order


def load_leaf(
    path: str | Path,
    *,
    classes: int = 0,
    rotated: float = 0.0,
    rotation_seed: int = 0,
) -> DataSet:
    """Load a LEAF benchmark such as FEMNIST; its users are the natural clients.

    Parameters
    ----------
    path : str or Path
        Folder with ``train`` and optionally ``test``, or with the files themselves. Files are ``*.json`` as LEAF writes
        them, with ``users`` and ``user_data`` (for each user ``x``, lists of numbers or flattened square images, and
        ``y``). Examples of ``test`` go to the server.
    classes : int
        Number of classes; by default 62 for FEMNIST's 28x28 images, otherwise the largest label plus one.
    rotated : float
        Probability with which all images of a user are turned by 90 degrees counter-clockwise. Such clients need
        another model.
    rotation_seed : int
        Seed for the choice of these users.

    Raises
    ------
    FieldError
        For an unusable file or user; the text names it.
    MissingDataError
        If there is no file.
    """
    root = Path(path).expanduser()
    train = _read(root / "train" if (root / "train").is_dir() else root)
    halves = [train]
    if (root / "test").is_dir():
        test = _read(root / "test")
        if test:
            halves.append(test)
    parts = list(map(_joined, halves))
    users = list(map(_owners, halves))
    x, _ = parts[0]
    is_femnist = x.shape[1:] == (1, 28, 28)
    labels = torch.cat([y for _, y in parts])
    highest = int(labels.max())
    lowest = int(labels.min())
    count = classes or (len(FEMNIST) if is_femnist else highest + 1)
    if highest >= count or lowest < 0:
        raise FieldError("data.classes", count, f"labels go from {lowest} to {highest}")
    if rotated != 0:
        for (images, _), own in zip(parts, users, strict=True):
            turned(images.numpy(), own, rotated, rotation_seed)
    return data_set(
        parts,
        ("users", users[0]),
        name="leaf",
        classes=count,
        counted=not classes and not is_femnist,
        class_names=FEMNIST if count == len(FEMNIST) else (),
        note=f"{len(train)} users of {root.name}, as LEAF splits them.",
        licence="yours",
    )


def _read(folder: Path) -> dict[str, tuple[Array, Array]]:
    """Read the examples of each user from a folder's files."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise MissingDataError(
            "data.path", str(folder), "holds no .json file; make them with LEAF's preprocess.sh"
        )
    examples: dict[str, tuple[Array, Array]] = {}
    for file in files:
        try:
            content = json.loads(file.read_bytes())
            held = content["user_data"]
            for user in content["users"]:
                if user in examples:
                    raise ValueError(f"user {user!r} stands in two files")
                examples[str(user)] = _examples(held[user])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FieldError(
                str(file), type(error).__name__, f"is no file of LEAF's form: {error}"
            ) from error
    return examples


def _examples(held: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return one user's rows and classes."""
    x = np.asarray(held["x"], dtype=np.float32)
    y = np.asarray(held["y"])
    has_rows = x.ndim == 2 and len(x) == len(y) and len(x) > 0
    if not has_rows or y.dtype.kind not in "iu":
        raise ValueError(f"x {x.shape} and y {y.dtype} {y.shape} are not a row and a class each")
    return x, y.astype(np.int64)


def _joined(half: Mapping[str, tuple[Array, Array]]) -> tuple[Tensor, Tensor]:
    """Join all users' rows; rows of square images of at least 8x8 become images [n, 1, side, side]."""
    x = np.concatenate([x for x, _ in half.values()])
    side = isqrt(x.shape[1])
    if side * side == x.shape[1] and side >= 8:
        x = x.reshape(len(x), 1, side, side)
    y = np.concatenate([y for _, y in half.values()])
    return torch.from_numpy(x), torch.from_numpy(y)


def _owners(half: Mapping[str, tuple[Array, Array]]) -> Array:
    """Return the user of each row."""
    return np.concatenate([np.repeat(user, len(y)) for user, (_, y) in half.items()])


def turned(pictures: Array, writers: Array, rotated: float, seed: int) -> None:
    """Turn the images [n, ..., H, W] of randomly chosen writers by 90 degrees counter-clockwise, in place.

    Raises
    ------
    FieldError
        If `rotated` is not between 0 and 1.
    """
    require_unit_interval("data.rotated", rotated)
    chosen = [writer for writer in np.unique(writers).tolist() if coin(seed, writer) < rotated]
    rows = np.isin(writers, chosen)
    pictures[rows] = np.rot90(pictures[rows], axes=(-2, -1))


def coin(seed: int, writer: int | str) -> float:
    """Draw a number in [0, 1) for a writer; it depends only on the seed and the writer."""
    return keyed_seed("rotation", seed, writer) / (1 << 32)
