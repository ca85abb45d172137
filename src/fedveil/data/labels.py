"""Checks of what examples are labelled with: classes from 0 on, without gaps, and the clients they belong to."""

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
_ROUNDED = re.compile(r"\d([.,]\d+)?[eE]\+\d+")  # as spreadsheets write whole numbers of many digits
_MERGED = "is a rounded number, as spreadsheets write long ones: several may have become one. Export it as text"


def count_classes(labels: Mapping[str, Array], declared: int = 0, absent: Sequence[int] = ()) -> int:
    """The number of classes, if they are numbered 0, 1, 2, ... and each of them occurs.

    Parameters
    ----------
    labels : mapping of str to ndarray
        Integers [N] or [N, H, W] of each part of a set (training, test), by the name a refusal gives it.
    declared : int
        The number that the user declared; 0 for none.
    absent : sequence of int
        Classes declared to have no example here.

    Raises
    ------
    FieldError
        Naming part and row of a class that is negative, or beyond the declared ones; or the classes that are missing.
    """
    if declared:
        require_count("data.classes", declared)
    for name, values in labels.items():
        _refuse(name, values, values < 0, "classes are numbered from 0 on")
        if declared:
            accepted = f"must be one of the {declared} declared classes, 0 to {declared - 1}"
            _refuse(name, values, values >= declared, accepted)
    classes = np.unique(np.concatenate([np.unique(values) for values in labels.values()]))
    if not len(classes):
        raise FieldError(" and ".join(labels), 0, "must hold at least one label")
    number = declared or 1 + int(max(classes.max(), max(absent, default=0)))
    outside = [c for c in absent if not 0 <= c < number]
    if outside:
        raise FieldError("data.absent", outside, f"must be classes, 0 to {number - 1}")
    lowest = int(classes.min())
    left_out = {c for c in absent if c < lowest}
    if len(left_out) < lowest:
        accepted = f"the lowest label is {lowest}, but classes are numbered from 0 on: subtract {lowest} from all"
        for name, values in labels.items():
            _refuse(name, values, values == lowest, accepted)
    if number - len(classes) > len(set(absent) - set(classes.tolist())):
        present = set(classes.tolist()) | set(absent)
        missing = [c for c in range(min(number, len(present) + 6)) if c not in present][:5]
        accepted = (
            f"no example of class {', '.join(map(str, missing))} among {number} classes: number them 0, 1, 2, ... "
            "without gaps, or say that it is meant, e.g. data.absent = [" + ", ".join(map(str, missing)) + "]"
        )
        raise FieldError(" and ".join(labels), classes[:20].tolist(), accepted)
    return number


def classes_in(field: str, declared: int, absent: Sequence[int], parts: Mapping[str, Tensor]) -> int:
    """The number of classes of the parts of a set, by `count_classes`; 0 where targets are numbers.

    Raises
    ------
    FieldError
        For classes that are declared (in `field`) of targets that are none.
    """
    floating = [name for name, part in parts.items() if part.is_floating_point()]
    if not floating:
        return count_classes({name: part.numpy() for name, part in parts.items()}, declared, absent)
    if declared:
        raise FieldError(field, declared, f"{floating[0]} holds floating-point targets, no classes")
    return 0


def require_roles(roles: Mapping[str, str]) -> None:
    """Refuse a column that is said to be two things; by the options that name columns, of which some are empty."""
    taken: dict[str, str] = {}
    for option, name in roles.items():
        if name and (other := taken.setdefault(name, option)) != option:
            fix = ""
            if "person" in option and "target" not in other:
                fix = ": where each client is a person, leave it out and protect clients"
            raise FieldError(option, name, f"is what {other} names as well, and can be one of the two{fix}")


def data_set(
    halves: Sequence[tuple[Tensor, Tensor]],
    clients: tuple[str, Ids] | tuple[str, Ids, Callable[[int], str]] | None = None,
    people: tuple[str, Ids] | tuple[str, Ids, Callable[[int], str]] | None = None,
    **known: Any,
) -> DataSet:
    """A set from examples and labels, and those of its test half if it has one.

    Parameters
    ----------
    halves : sequence of two Tensors
        x and y to deal out, and of the test half.
    clients, people : tuple of str and sequence, optional
        The natural client, and the person, of each example to deal out; before it what a refusal calls them, and
        behind it what it calls an example.
    **known
        Further fields of the set.
    """
    (x, y), (test_x, test_y) = halves if len(halves) > 1 else (halves[0], (None, None))
    owner, owners = natural_clients(clients[0], clients[1], len(x), *clients[2:]) if clients else (None, ())
    group = people_of(people[0], people[1], len(x), *people[2:]) if people else None
    return DataSet(x=x, y=y, test_x=test_x, test_y=test_y, owner=owner, owners=owners, group=group, **known)


def natural_clients(
    name: str, values: Ids, examples: int, place: Callable[[int], str] | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Natural clients from one value an example.

    Parameters
    ----------
    name : str
        Of the values, for a refusal.
    values : sequence
        [N] numbers or texts; equal ones are one client.
    examples : int
        N.
    place : callable, optional
        What a refusal calls example i, from 0 on; ``name[i]`` by default.

    Returns
    -------
    owner : Tensor
        [N] int64.
    owners : tuple of str
        The clients' names, in the order of the values.

    Raises
    ------
    FieldError
        For another length or kind of values, one that is missing, or two texts that differ by chance (``Ward 1`` and
        ``ward 1``): all data of a client are what a promise for clients is about.
    """
    if np.ma.is_masked(values):
        raise FieldError(name, "masked", "must name a client for each example: fill the masked ones in")
    given = np.asarray(values)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim != 1 or given.dtype.kind not in "iuU" or len(given) != examples:
        accepted = f"must be one whole number or text for each of the {examples} examples"
        raise FieldError(name, (str(given.dtype), given.shape), accepted)
    names, inverse = np.unique(given, return_inverse=True)
    texts = names.tolist() if names.dtype.kind == "U" else []
    at = place or (lambda row: f"{name}[{row}]")
    for text in texts:
        if is_gap(text, vague=True):
            row = int(np.flatnonzero(given == text)[0])
            raise FieldError(at(row), text or None, "must name a client: fill it in, or remove the example")
        if _ROUNDED.fullmatch(text.strip()):
            raise FieldError(at(int(np.flatnonzero(given == text)[0])), text, _MERGED)
    if pair := spelt_twice(texts, _site_form):
        first, second = sorted(pair, key=lambda text: int(np.flatnonzero(given == text)[0]))
        row, like = (int(np.flatnonzero(given == text)[0]) for text in (second, first))
        accepted = f"is like {first!r} of {at(like)}: one client, or two? Write each client's name in one way"
        raise FieldError(at(row), second, accepted)
    return torch.from_numpy(inverse.astype(np.int64)), tuple(str(v) for v in names)


def _site_form(text: str) -> Any:
    """A site's name as `plain_form` has it, without accents, and with one form of umlauts."""
    plain = plain_form(text)
    if not isinstance(plain, str):
        return plain
    letters = "".join(sign for sign in normalize("NFD", plain) if category(sign) != "Mn")
    return re.sub("([aou])e", r"\1", letters)


def people_of(name: str, values: Ids, examples: int, place: Callable[[int], str] | None = None) -> Tensor:
    """Who owns each example, as numbers that say nothing else: people count in the order in which they first occur.

    Parameters
    ----------
    name : str
        Of the values, for a refusal.
    values : sequence
        [N] whole numbers, or [N] texts; equal ones are one person. Ids themselves are kept nowhere.
    examples : int
        N.
    place : callable, optional
        What a refusal calls example i, from 0 on; ``name[i]`` by default.

    Returns
    -------
    Tensor
        [N] int64.

    Raises
    ------
    FieldError
        For another length, an id that is missing, numbers beside texts, or texts that differ by chance: ``1`` and
        ``"1"``, ``"7"`` and ``"007"``, ``"Ann"`` and ``"ann "`` may be one person, or two. No id is shown: it may be a
        name.
    """
    given = values.tolist() if hasattr(values, "tolist") else list(values)
    at = place or (lambda row: f"{name}[{row}]")
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
    if pair := spelt_twice(numbers):
        first, row = (given.index(value) for value in pair)
        like = f"is like that of {at(first)} but for case, spaces, accents' form or how a number is written"
        raise FieldError(at(row), "an id", f"{like}: one person, or two? Write each person's id in one way")
    return torch.tensor([numbers[value] for value in given], dtype=torch.int64)


def _is_nothing(value: Any) -> bool:
    """Whether a value is what Python, NumPy or pandas puts in place of one."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _refuse(name: str, values: Array, bad: Array, accepted: str) -> None:
    """Refuse labels of which `bad` is true somewhere, by the first such row."""
    if bad.any():
        row = np.argwhere(bad)[0][0]
        raise FieldError(f"{name}[{row}]", int(values[bad][0]), accepted)
