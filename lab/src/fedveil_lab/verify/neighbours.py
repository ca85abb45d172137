"""Make neighbouring data for an app that loads its own: one canary among the rows that the app would have loaded.

The rows of what an app's loading function returns are replaced, and returned in the same form. Known forms are arrays
or tensors ``(x, y)``, a data class with x and y, and a PyTorch loader whose items are pairs or mappings. For any other
form the app's author writes a function.
"""

import importlib
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler

from fedveil.errors import FieldError, kind_of
from fedveil_lab.verify.relations import same_arrays, why_no_rows

FIELD = "[verify.app] data"
SCALE = 10.0  # of an outlier, over the largest number that there is
Item = tuple[Any, Any]  # numbers and label of one row
Rebuilt = Callable[[list[Item]], Any]


def canary_data(
    data: Any, unit: str, relation: str, canary: str, inside: bool, rows: int = 1
) -> Any:
    """Make the target client's data for one world.

    Parameters
    ----------
    data : object
        What the app's loading function returned for the target client.
    unit, relation : str
        Unit and neighbouring relation of the claim.
    canary : {"outlier", "mislabelled"}
        Kind of canary that the unit holds.
    inside : bool
        Whether the world with the unit is made, or the one without.
    rows : int
        Number of the unit's rows: 1 for a record.
    """
    items, rebuilt = rows_of(data)
    if not items:
        raise FieldError(FIELD, "no rows", "the client that is asked about needs some")
    if unit == "client":
        changed = [held(item, items, canary) for item in items]
        return rebuilt(changed if inside else [opposite(item) for item in changed])
    if rows > len(items):
        raise FieldError("rows", rows, f"the client that is asked about has {len(items)} of them")
    own, others = held(items[0], items, canary), items[:-rows]
    if inside:
        return rebuilt([*others, *[own] * rows])
    if relation == "add/remove":
        return rebuilt(others)
    return rebuilt([*others, *[opposite(own)] * rows])


def data_of_run(data: Any, run: Mapping[str, Any], site: str) -> Any:
    """Make the data of one site for a run with many canaries.

    Parameters
    ----------
    data : object
        What the app's loading function returned at the site.
    run : dict
        unit, relation; base, a file for data that all sites share (empty: each keeps its own); rows, of a unit;
        neighbours, a function's place (or empty); worlds, by site: units, pairs of a canary's number and whether it is in.
    site : str
        Name of the site.
    """
    units = run["worlds"][site]["units"]
    if run["base"]:
        data = shared_base(data, Path(run["base"]))
    if run["neighbours"]:
        return of_author(run["neighbours"], data, run["unit"], run["relation"], units[0][1])
    return with_canaries(data, run["unit"], run["relation"], units, run["rows"])


def of_author(function: str, data: Any, unit: str, relation: str, inside: bool) -> Any:
    """Return the data of one world that the app's author makes, by a function ``module:function``.

    Raises
    ------
    FieldError
        If rows of known form differ by more than one record or person.
    """
    place, _, name = function.rpartition(":")
    both = getattr(importlib.import_module(place), name)(data, unit, relation)
    try:
        first, second = rows_of(both[0])[0], rows_of(both[1])[0]
    except FieldError:  # data of a form of its own
        return both[0 if inside else 1]
    why = "" if unit == "client" else why_no_rows(first, second, relation, unit, same_items)
    if why:
        accepted = f"makes no neighbours under {relation} {unit}: {why}"
        raise FieldError("neighbours", function, accepted)
    return both[0 if inside else 1]


def same_items(one: Item, other: Item) -> bool:
    """Whether two rows have equal numbers and labels."""
    return same_arrays(one[0], other[0]) and same_arrays(one[1], other[1])


def with_canaries(
    data: Any, unit: str, relation: str, units: Sequence[tuple[int, bool]], rows: int = 1
) -> Any:
    """Put numbered canaries into data, or leave them out, as told.

    Parameters
    ----------
    data : object
        Data of the site.
    unit, relation : str
        Unit and relation of the claim. A client that is out under zero-out still holds its canary, as its answer is
        replaced later.
    units : sequence of (int, bool)
        Number of each canary, and whether it is in. If the unit is a client there is one.
    rows : int
        Number of a unit's rows.
    """
    items, rebuilt = rows_of(data)
    if not items:
        raise FieldError(FIELD, "no rows", "every client needs some")
    if unit == "client":
        [(number, inside)] = units
        turned = not inside and relation == "replace-one"
        return rebuilt([numbered(item, items, number, turned) for item in items])
    kept = list(items)
    for number, inside in units:
        if inside or relation != "add/remove":
            kept += [numbered(items[0], items, number, not inside)] * rows
    return rebuilt(kept)


def numbered(item: Item, items: Sequence[Item], number: int, turned: bool) -> Item:
    """Make canary `number`: a row with the data's largest absolute value in each coordinate, and signs that follow from `number`.

    The canary has the largest label, or the smallest one if `turned`. So its gradient differs by the same amount for
    every model. If there is only one label, the signs of its numbers are reversed instead.
    """
    x, y = item
    labels = [float(np.asarray(one[1]).reshape(-1)[0]) for one in items]
    low, high = min(labels), max(labels)
    signs = np.random.default_rng(number).choice((-1.0, 1.0), np.shape(np.asarray(x)))
    far = largest_of(items) * signs * (-1.0 if turned and low == high else 1.0)
    numbers = (
        torch.as_tensor(far).to(x.dtype)
        if isinstance(x, torch.Tensor)
        else np.asarray(far, np.asarray(x).dtype)
    )
    return numbers, like(y, low if turned else high)


def largest_of(items: Sequence[Item]) -> float:
    """Return the largest absolute value of all rows, at least 1."""
    return max(1.0, *(float(np.abs(np.asarray(one[0], dtype=np.float64)).max()) for one in items))


def shared_base(data: Any, file: Path) -> Any:
    """Return for every site the data of the site that loads first.

    Raises
    ------
    FieldError
        If the data cannot be written to the file, or no site wrote them within a minute.
    """
    part = file.with_suffix(".part")
    try:
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return _waited_for(file)
    try:
        with os.fdopen(handle, "wb") as stream:
            pickle.dump(data, stream)
    except Exception as error:
        accepted = f"cannot be kept for other sites ({error}): name a function neighbours of yours"
        raise FieldError(FIELD, type(data).__name__, accepted) from error
    os.replace(part, file)
    part.touch()  # the first one has been
    return data


def _waited_for(file: Path) -> Any:
    until = time.monotonic() + 60
    while not file.is_file():
        if time.monotonic() > until:
            raise FieldError(FIELD, file.name, "no other site has loaded its data in a minute")
        time.sleep(0.05)
    return pickle.loads(file.read_bytes())


def held(item: Item, items: Sequence[Item], canary: str) -> Item:
    """Make a canary from a row: far from the others, or with a wrong label."""
    x, y = item
    if canary == "outlier":
        return like(x, SCALE * largest_of(items)), y
    labels = sorted({float(np.asarray(one[1]).reshape(-1)[0]) for one in items})
    at = labels.index(float(np.asarray(y).reshape(-1)[0]))
    return x, like(y, labels[(at + 1) % len(labels)])


def opposite(item: Item) -> Item:
    """Reverse the signs of a row's numbers."""
    return -item[0], item[1]


def like(value: Any, number: float) -> Any:
    """Return a number in the type and shape of a value."""
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, number)
    if isinstance(value, np.ndarray):
        return np.full_like(value, number)
    return type(value)(number)


def rows_of(data: Any) -> tuple[list[Item], Rebuilt]:
    """Return the rows of an app's data, and a function that rebuilds the data from other rows.

    Raises
    ------
    FieldError
        If the form of the data is not known.
    """
    if isinstance(data, DataLoader):
        return _loader(data)
    if (
        is_dataclass(data)
        and not isinstance(data, type)
        and hasattr(data, "x")
        and hasattr(data, "y")
    ):
        items, pair = _arrays(data.x, data.y)
        return items, lambda rows: replace(data, **dict(zip("xy", pair(rows), strict=True)))
    if isinstance(data, tuple | list) and data:
        if len(data) >= 2 and _array(data[0]) and _array(data[1]) and len(data[0]) == len(data[1]):
            items, pair = _arrays(data[0], data[1])
            return items, lambda rows: type(data)([*pair(rows), *data[2:]])
        items, first = rows_of(data[0])
        return items, lambda rows: type(data)([first(rows), *data[1:]])
    accepted = "returns no arrays (x, y), data class with x and y, or DataLoader: name a function neighbours of yours"
    raise FieldError(FIELD, kind_of(data), accepted)


def _array(value: Any) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor)


def _arrays(x: Any, y: Any) -> tuple[list[Item], Callable[[list[Item]], list[Any]]]:
    """Return the rows of two arrays, and a function that makes arrays from other rows."""
    stack: Callable[[list[Any]], Any] = torch.stack if isinstance(x, torch.Tensor) else np.stack

    def rebuilt(rows: list[Item]) -> list[Any]:
        labels = [one[1] for one in rows]
        ys = torch.stack(labels) if isinstance(y, torch.Tensor) else np.array(labels, dtype=y.dtype)
        return [stack([one[0] for one in rows]), ys]

    return list(zip(x, y, strict=True)), rebuilt


def _loader(loader: DataLoader[Any]) -> tuple[list[Item], Rebuilt]:
    """Return the items of a loader's data set, and a function that makes the same kind of loader from other items."""
    size = len(loader.dataset)  # type: ignore[arg-type]
    kept = [loader.dataset[i] for i in range(size)]
    names = _names(kept)

    def rebuilt(rows: list[Item]) -> DataLoader[Any]:
        made: list[Any] = []
        for x, y in rows:
            made.append((x, y) if names is None else {names[0]: x, names[1]: y})
        return DataLoader(
            made,  # type: ignore[arg-type]
            batch_size=loader.batch_size,
            shuffle=isinstance(loader.sampler, RandomSampler),
            collate_fn=loader.collate_fn,
            drop_last=loader.drop_last,
        )

    if names is None:
        return [(one[0], one[1]) for one in kept], rebuilt
    return [(one[names[0]], one[names[1]]) for one in kept], rebuilt


def _names(items: Sequence[Any]) -> tuple[str, str] | None:
    """Return the keys of input and label if items are mappings; None if they are pairs."""
    if not items or not isinstance(items[0], Mapping):
        return None
    numbers = [key for key, value in items[0].items() if np.ndim(value) > 0]
    labels = [key for key, value in items[0].items() if np.ndim(value) == 0]
    if len(numbers) != 1 or len(labels) != 1:
        accepted = "items need one array and one label: name a function neighbours of yours"
        raise FieldError(FIELD, ", ".join(map(str, items[0])), accepted)
    return numbers[0], labels[0]
