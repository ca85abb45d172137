"""Targets that are lists of labels, where several labels may hold for an example."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.values import is_gap, sort_of
from fedveil.errors import FieldError, nearest

if TYPE_CHECKING:
    import pandas

_LISTS = (list, tuple, set, frozenset, np.ndarray)
LOSS = "torch.nn.functional:binary_cross_entropy_with_logits"


def are_lists(values: "pandas.Series[Any]") -> bool:
    """Whether a column holds lists; missing values are allowed."""
    if sort_of(values) != "other":
        return False
    given = [value for value in values if value is not None and value is not np.nan]
    return all(isinstance(value, _LISTS) for value in given)


def labels_in(values: "pandas.Series[Any]", where: Callable[[int], str]) -> int | list[str]:
    """Find the labels in a column of lists: their names, or their number if they are numbered from 0.

    Raises
    ------
    FieldError
        For a missing value or one that is no label (the text names the row), or if there are fewer than two labels.
    """
    rows = _read(values, where)
    kinds: set[int | str] = set()
    for row in rows:
        kinds.update(row)
    if len(kinds) < 2:
        raise FieldError(
            "target", sorted(map(str, kinds)), "must hold at least two labels in lists"
        )
    numbers = [label for label in kinds if isinstance(label, int)]
    if len(numbers) < len(kinds):
        return sorted(map(str, kinds))
    if min(numbers) < 0:
        raise FieldError(
            "target",
            min(numbers),
            "labels in lists are texts, numbers from 0 on, or a 0 or 1 for each",
        )
    first = len(rows[0])
    return first if _marks_each(rows, first) else max(numbers) + 1


def held_labels(
    values: "pandas.Series[Any]",
    labels: int | Sequence[str],
    where: Callable[[int], str],
) -> NDArray[np.float32]:
    """Convert lists of labels to a matrix [N, L]: 1 if the label holds, else 0.

    Parameters
    ----------
    values : Series
        Lists of labels, or lists with one 0 or 1 for each label.
    labels : int or sequence of str
        Number of labels 0, 1, ..., or names of the labels.
    where : callable
        Function from a row's number to its name in refusals.

    Raises
    ------
    FieldError
        For a value that is no label, a label twice in a list, or an ambiguous list; the text names the row.
    """
    names: list[Any] = list(range(labels)) if isinstance(labels, int) else list(labels)
    rows = _read(values, where)
    if _marks_each(rows, len(names)):
        repeats = any(len(set(row)) < len(row) for row in rows)
        if names and not repeats:
            accepted = "may be labels, or say of each whether it holds: write labels as texts"
            raise FieldError(where(0), rows[0], accepted)
        return np.array(rows, dtype=np.float32)
    held = np.zeros((len(rows), len(names)), dtype=np.float32)
    places = {str(name): place for place, name in enumerate(names)}
    for i, row in enumerate(rows):
        for item in row:
            place = places.get(str(item))
            if place is None:
                raise FieldError(where(i), item, nearest(str(item), list(places)))
            if held[i, place]:
                raise FieldError(where(i), item, "is twice in a list")
            held[i, place] = 1
    return held


def _read(values: "pandas.Series[Any]", where: Callable[[int], str]) -> list[list[int | str]]:
    """Return the labels of each row."""
    rows: list[list[int | str]] = []
    for i, value in enumerate(values):
        if not isinstance(value, _LISTS):
            raise FieldError(where(i), None, "must be a list, an empty one where no label holds")
        rows.append([_label(item, i, where) for item in value])
    return rows


def _label(item: Any, row: int, where: Callable[[int], str]) -> int | str:
    if isinstance(item, str) and not is_gap(item):
        return item.strip()
    if isinstance(item, bool | np.bool_ | int | np.integer):
        return int(item)
    if isinstance(item, float | np.floating) and item == np.floor(item):
        return int(item)
    raise FieldError(where(row), item, "is no label: texts, or whole numbers from 0 on")


def _marks_each(rows: list[list[int | str]], labels: int) -> bool:
    """Whether every list has one 0 or 1 for each label."""
    if labels < 2:
        return False
    return all(len(row) == labels and set(row) <= {0, 1} for row in rows)
