"""Replacement of missing values of a column: the option `data.missing`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.errors import FieldError, nearest

_KEYS = ("value", "indicator", "marks")
_LARGEST = 3.4e38  # of a float32
_ACCEPTED = 'must be a number (or one of the column\'s texts), "indicator", or {value = 120, indicator = true, marks = [-999]}'


@dataclass(frozen=True)
class Gap:
    """Replacement of a column's missing values.

    Attributes
    ----------
    value : float, str or None
        Replacement: a number or one of the column's texts. None: the lowest declared number, or for texts no text.
    indicator : bool
        Whether a further input marks the rows with a missing value.
    marks : tuple
        Further numbers and texts that mean a missing value in this column.
    """

    value: float | str | None
    indicator: bool = False
    marks: tuple[Any, ...] = ()

    def __str__(self) -> str:
        parts: list[str] = []
        if self.value is not None:
            parts.append(str(self.value))
        if self.indicator:
            parts.append("an indicator")
        return " and ".join(parts)


def gap_of(column: str, given: Any, declared: Sequence[Any]) -> Gap:
    """Read the entry of ``data.missing`` for one column.

    Parameters
    ----------
    column : str
        Name of the column.
    given : number, str or mapping
        Value of the column's key in ``data.missing``.
    declared : sequence
        Declaration of the column in ``data.columns``: [low, high] or texts; may be empty.

    Raises
    ------
    FieldError
        For a number outside the declared range, or a text that the column does not declare.
    """
    field = f"data.missing.{column}"
    are_texts = bool(declared) and all(isinstance(value, str) for value in declared)
    gap = _written_gap(field, given)
    if gap.value is None:
        if not gap.indicator:
            raise FieldError(field, given, "needs a value, an indicator, or both")
        if not declared:
            raise FieldError(
                field,
                given,
                "needs a value beside the indicator: no range of the column is declared",
            )
    elif not are_texts:
        _require_within(field, gap.value, declared)
    elif gap.value not in declared:
        raise FieldError(field, gap.value, nearest(str(gap.value), declared))
    return gap


def _written_gap(field: str, given: Any) -> Gap:
    """Parse the three forms: a value, "indicator", or a table."""
    if given == "indicator":
        return Gap(None, True)
    if not isinstance(given, Mapping):
        return Gap(given)
    for key in given:
        if key not in _KEYS:
            raise FieldError(f"{field}.{key}", given[key], f"is no key; {nearest(str(key), _KEYS)}")
    indicator = given.get("indicator", False)
    marks = given.get("marks", ())
    if not isinstance(indicator, bool) or not isinstance(marks, list | tuple):
        raise FieldError(field, dict(given), _ACCEPTED)
    return Gap(given.get("value"), indicator, tuple(marks))


def _require_within(field: str, value: Any, declared: Sequence[Any]) -> None:
    """Refuse anything but a number within the declared range."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= _LARGEST:
        raise FieldError(field, value, _ACCEPTED)
    if len(declared) == 2 and not declared[0] <= value <= declared[1]:
        raise FieldError(field, value, f"is outside the declared {list(declared)}")
