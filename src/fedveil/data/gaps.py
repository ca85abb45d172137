"""What stands in for the missing values of a column: `data.missing`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.errors import FieldError, nearest

_KEYS = ("value", "indicator", "marks")
_LARGEST = 3.4e38  # of a float32
_ACCEPTED = (
    'must be a number (or one of the column\'s texts), "indicator", or {value = 120, indicator = true, marks = [-999]}'
)


@dataclass(frozen=True)
class Gap:
    """What stands in for missing values.

    Attributes
    ----------
    value : float, str or None
        A number, or one of the column's texts; None: the lowest declared number, and of texts none.
    indicator : bool
        Whether one more input says where a value was missing.
    marks : tuple
        Numbers and texts that stand for a gap in this column, beside those that always do.
    """

    value: float | str | None
    indicator: bool = False
    marks: tuple[Any, ...] = ()

    def __str__(self) -> str:
        value = () if self.value is None else (str(self.value),)
        return " and ".join((*value, *("an indicator",) * self.indicator))


def gap_of(column: str, given: Any, declared: Sequence[Any]) -> Gap:
    """What ``data.missing`` says of one column.

    Parameters
    ----------
    column : str
        Its name.
    given : number, str or mapping
        What was written.
    declared : sequence
        What ``data.columns`` says of it: [low, high] or texts; may be empty.

    Raises
    ------
    FieldError
        For what cannot stand in: a number outside the declared range, a text that is none of the column's.
    """
    field, texts = f"data.missing.{column}", bool(declared) and all(isinstance(v, str) for v in declared)
    if given == "indicator":
        gap = Gap(None, True)
    elif isinstance(given, Mapping):
        for key in given:
            if key not in _KEYS:
                raise FieldError(f"{field}.{key}", given[key], f"is no key; {nearest(str(key), _KEYS)}")
        indicator, marks = given.get("indicator", False), given.get("marks", ())
        if not isinstance(indicator, bool) or not isinstance(marks, list | tuple):
            raise FieldError(field, dict(given), _ACCEPTED)
        gap = Gap(given.get("value"), indicator, tuple(marks))
    else:
        gap = Gap(given)
    if gap.value is None:
        if not gap.indicator:
            raise FieldError(field, given, "needs a value, an indicator, or both")
        if not declared:
            raise FieldError(field, given, "needs a value beside the indicator: no range of the column is declared")
    elif texts and gap.value not in declared:
        raise FieldError(field, gap.value, nearest(str(gap.value), declared))
    elif not texts:
        _require_within(field, gap.value, declared)
    return gap


def _require_within(field: str, value: Any, declared: Sequence[Any]) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise FieldError(field, value, _ACCEPTED)
    if len(declared) == 2 and not declared[0] <= value <= declared[1]:
        raise FieldError(field, value, f"is outside the declared {list(declared)}")
