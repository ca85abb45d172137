"""Checks of labels, and numbering of clients and persons; classes are numbered from 0 without gaps."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unicodedata import category, normalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data.sets import DataSet
from fedveil.data.values import is_gap, plain_form, spelt_twice
from fedveil.errors import FieldError, require_count

Array = NDArray[Any]
Ids = Sequence[Any] | Array
_ACCENT = "Mn"  # of Unicode's categories
_ROUNDED = re.compile(
    r"\d([.,]\d+)?[eE]\+\d+"
)  # as spreadsheets write whole numbers of many digits
_MERGED = "is a rounded number, as spreadsheets write long ones: several may have become one. Export it as text"


def count_classes(
    labels: Mapping[str, Array],
    declared: int = 0,
    absent: Sequence[int] = (),
) -> int:
    """Return the number of classes, after checking that they are numbered 0, 1, 2, ... and each occurs.

    Parameters
    ----------
    labels : mapping of str to ndarray
        Integers [N] or [N, H, W] of each part of a set (training, test), by its name in refusals.
    declared : int
        Declared number of classes; 0 if none was declared.
    absent : sequence of int
        Classes declared to have no example here.

    Raises
    ------
    FieldError
        For a negative class or one above the declared number (the text names part and row), or for missing classes.
    """
    if declared:
        require_count("data.classes", declared)
    for name, values in labels.items():
        _refuse(name, values, values < 0, "classes are numbered from 0 on")
        if declared:
            accepted = f"must be one of the {declared} declared classes, 0 to {declared - 1}"
            _refuse(name, values, values >= declared, accepted)
    found: set[int] = set()
    for values in labels.values():
        found.update(np.unique(values).tolist())
    parts = " and ".join(labels)
    if not found:
        raise FieldError(parts, 0, "must hold at least one label")
    number = declared or 1 + max(*found, *absent, 0)
    outside = [c for c in absent if not 0 <= c < number]
    if outside:
        raise FieldError("data.absent", outside, f"must be classes, 0 to {number - 1}")
    lowest = min(found)
    accounted = found | set(absent)
    left_out = {c for c in absent if c < lowest}
    if len(left_out) < lowest:
        accepted = f"the lowest label is {lowest}, but classes are numbered from 0 on: subtract {lowest} from all"
        for name, values in labels.items():
            _refuse(name, values, values == lowest, accepted)
    if len(accounted) < number:
        nearby = range(min(number, len(accounted) + 6))
        missing = [str(c) for c in nearby if c not in accounted][:5]
        shown = ", ".join(missing)
        fix = f"number them 0, 1, 2, ... without gaps, or say that it is meant, e.g. data.absent = [{shown}]"
        accepted = f"no example of class {shown} among {number} classes: {fix}"
        raise FieldError(parts, sorted(found)[:20], accepted)
    return number


def classes_in(
    field: str,
    declared: int,
    absent: Sequence[int],
    parts: Mapping[str, Tensor],
) -> int:
    """Return the number of classes in the parts of a set, by `count_classes`; 0 if targets are numbers.

    Raises
    ------
    FieldError
        If classes are declared (in `field`), but the targets are not classes.
    """
    floating = [name for name, part in parts.items() if part.is_floating_point()]
    if not floating:
        return count_classes({name: part.numpy() for name, part in parts.items()}, declared, absent)
    if declared:
        raise FieldError(field, declared, f"{floating[0]} holds floating-point targets, no classes")
    return 0


def require_roles(roles: Mapping[str, str]) -> None:
    """Refuse a column with two roles; `roles` maps each option to a column name (or "")."""
    taken: dict[str, str] = {}
    for option, name in roles.items():
        if not name:
            continue
        other = taken.setdefault(name, option)
        if other != option:
            fix = ""
            if "person" in option and "target" not in other:
                fix = ": where each client is a person, leave it out and protect clients"
            raise FieldError(
                option, name, f"is what {other} names as well, and can be one of the two{fix}"
            )


def data_set(
    halves: Sequence[tuple[Tensor, Tensor]],
    clients: tuple[str, Ids] | tuple[str, Ids, Callable[[int], str]] | None = None,
    people: tuple[str, Ids] | tuple[str, Ids, Callable[[int], str]] | None = None,
    **known: Any,
) -> DataSet:
    """Make a data set from examples and labels, with an optional test half.

    Parameters
    ----------
    halves : sequence of two Tensors
        x and y to distribute to clients; then, optionally, x and y of the test half.
    clients, people : tuple of str and sequence, optional
        Natural client, and person, of each example to distribute. The first item is the name of these ids in refusals.
        An optional last item is a function from an example's number to its name.
    **known
        Further fields of `DataSet`.
    """
    x, y = halves[0]
    if len(halves) > 1:
        known["test_x"], known["test_y"] = halves[1]
    if clients:
        name, ids, *place = clients
        known["owner"], known["owners"] = natural_clients(name, ids, len(x), *place)
    if people:
        name, ids, *place = people
        known["group"] = people_of(name, ids, len(x), *place)
    return DataSet(x=x, y=y, **known)


def _by_row(name: str) -> Callable[[int], str]:
    """Return a function that names an example ``name[row]`` in refusals."""

    def place(row: int) -> str:
        return f"{name}[{row}]"

    return place


def natural_clients(
    name: str,
    values: Ids,
    examples: int,
    place: Callable[[int], str] | None = None,
) -> tuple[Tensor, tuple[str, ...]]:
    """Number the natural clients from a value for each example.

    Parameters
    ----------
    name : str
        Name of the values in refusals.
    values : sequence
        [N] numbers or texts; equal ones are one client.
    examples : int
        Number of examples, N.
    place : callable, optional
        Function from an example's number (from 0) to its name in refusals; ``name[i]`` by default.

    Returns
    -------
    owner : Tensor
        [N] int64, number of each example's client.
    owners : tuple of str
        Names of the clients, sorted; `owner` holds indices into them.

    Raises
    ------
    FieldError
        For values of another length or kind, or a missing value. Also for two texts that may mean one client (``Ward
        1`` and ``ward 1``): a promise for clients must cover all data of a client.
    """
    if np.ma.is_masked(values):
        raise FieldError(
            name, "masked", "must name a client for each example: fill the masked ones in"
        )
    given = np.asarray(values)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim != 1 or given.dtype.kind not in "iuU" or len(given) != examples:
        accepted = f"must be one whole number or text for each of the {examples} examples"
        raise FieldError(name, (str(given.dtype), given.shape), accepted)
    names, first_rows, inverse = np.unique(given, return_index=True, return_inverse=True)
    if names.dtype.kind == "U":
        rows = dict(zip(names.tolist(), first_rows.tolist(), strict=True))
        _require_sites(rows, place or _by_row(name))
    return torch.from_numpy(inverse.astype(np.int64)), tuple(str(one) for one in names)


def _require_sites(rows: dict[str, int], at: Callable[[int], str]) -> None:
    """Refuse names of clients that are missing, rounded numbers, or spelt in two ways; `rows` is the first row of each."""
    for text, row in rows.items():
        if is_gap(text, vague=True):
            raise FieldError(
                at(row), text or None, "must name a client: fill it in, or remove the example"
            )
        if _ROUNDED.fullmatch(text.strip()):
            raise FieldError(at(row), text, _MERGED)
    pair = spelt_twice(rows, _site_form)
    if pair:
        first, second = sorted(pair, key=rows.__getitem__)
        fix = "one client, or two? Write each client's name in one way"
        raise FieldError(at(rows[second]), second, f"is like {first!r} of {at(rows[first])}: {fix}")


def _site_form(text: str) -> Any:
    """Return a site's name without accidental differences (`plain_form`), accents and forms of umlauts."""
    plain = plain_form(text)
    if not isinstance(plain, str):
        return plain
    letters = "".join(sign for sign in normalize("NFD", plain) if category(sign) != _ACCENT)
    return re.sub("([aou])e", r"\1", letters)


def people_of(
    name: str,
    values: Ids,
    examples: int,
    place: Callable[[int], str] | None = None,
) -> Tensor:
    """Number the persons from an id for each example, in the order of their first examples.

    Parameters
    ----------
    name : str
        Name of the values in refusals.
    values : sequence
        [N] integers or texts; equal ones are one person. The ids themselves are not stored.
    examples : int
        Number of examples, N.
    place : callable, optional
        Function from an example's number (from 0) to its name in refusals; ``name[i]`` by default.

    Returns
    -------
    Tensor
        [N] int64, number of each example's person.

    Raises
    ------
    FieldError
        For another length, a missing id, or both numbers and texts. Also for texts that may mean one person or two:
        ``"7"`` and ``"007"``, ``"Ann"`` and ``"ann "``. No id is shown in the text, as it may be a name.
    """
    given = values.tolist() if hasattr(values, "tolist") else list(values)
    at = place or _by_row(name)
    if len(given) != examples:
        accepted = f"must be one id for each of the {examples} examples"
        raise FieldError(name, f"{len(given)} ids", accepted)
    for row, value in enumerate(given):
        gap = is_gap(value, vague=True) if isinstance(value, str) else _is_nothing(value)
        if gap or isinstance(value, list):
            accepted = "must not be empty: whose example it is decides what protects it. Fill it in or remove the row"
            raise FieldError(at(row), None, accepted)
        if isinstance(value, str) and _ROUNDED.fullmatch(value.strip()):
            raise FieldError(at(row), "an id", _MERGED)
    kinds = {type(value).__name__ for value in given}
    if kinds - {"int", "str"} or len(kinds) > 1:
        accepted = "must be whole numbers alone or texts alone; numbers with a point come of rows without an id"
        raise FieldError(name, " and ".join(sorted(kinds)), accepted)
    numbers = {value: number for number, value in enumerate(dict.fromkeys(given))}
    pair = spelt_twice(numbers)
    if pair:
        first, second = pair
        like = f"is like that of {at(given.index(first))} but for case, spaces, accents' form or how a number is written"
        fix = "one person, or two? Write each person's id in one way"
        raise FieldError(at(given.index(second)), "an id", f"{like}: {fix}")
    return torch.tensor([numbers[value] for value in given], dtype=torch.int64)


def _is_nothing(value: Any) -> bool:
    """Whether a value means missing in Python, NumPy or pandas: None, NaN, NA or NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _refuse(name: str, values: Array, bad: Array, accepted: str) -> None:
    """Refuse labels if any of them is `bad`; the text names the first such row."""
    if bad.any():
        row, *_ = np.argwhere(bad)[0]
        raise FieldError(f"{name}[{row}]", int(values[bad][0]), accepted)
