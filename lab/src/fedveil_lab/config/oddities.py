"""Find odd values in a column: codes for missing values, counters, and times written as numbers."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.values import VAGUE
from fedveil_lab.config.written import Column

FEW = 20  # texts, or whole numbers, that are classes or categories; more are values or ids
LEAST_ROWS = 40  # in fewer a column may part two classes by chance
TELLS = 0.99  # of the rows are told by a column that leaks
MOST_OF_ONE = (
    0.9  # of the rows are of one class; beyond, a column that says nothing tells nearly as many
)
_EPOCH = (6e8, 2.2e9)  # seconds since 1970: 1989 to 2039
_UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_SERIAL = (14_000, 75_000)  # days since 1900, as spreadsheets count them: 1938 to 2105
_MONTH = re.compile(r"(?:0?[1-9]|1[0-2])[.,](?:19|20)\d\d")
_DAY_WORDS = (
    "date datum day tag birth birthday dob geburt geburtsdatum admission admitted discharge"
)


def words_of(name: str) -> list[str]:
    """Split ``PatientID`` and ``patient_id`` into patient, id."""
    return [word.lower() for word in re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])", name)]


def in_any_case(texts: Any, words: frozenset[str]) -> list[str]:
    """Return the texts of a column that are one of the words, in upper or lower case."""
    return [text for text in texts.unique() if text.casefold() in words]


def are_days(numbers: NDArray[np.float64]) -> bool:
    """Whether numbers are days written as 20240131."""
    return _within(
        (numbers % 100, 1, 31), (numbers // 100 % 100, 1, 12), (numbers // 10000, 1900, 2100)
    )


def _within(*parts: tuple[NDArray[np.float64], int, int]) -> bool:
    return all(bool(((part >= low) & (part <= high)).all()) for part, low, high in parts)


def odd(column: Column, fix: str = "") -> list[str]:
    """List notes on odd values of a used column; `fix` says what to do about a code for missing values."""
    if not column.numeric:
        words = ", ".join(map(repr, in_any_case(column.present_texts, VAGUE)))
        said = f"column {column.name!r}: {words} is taken as one of its texts, not as missing"
        if words:
            return [said]
        return []
    numbers = column.present_numbers
    kinds, counts = np.unique(numbers, return_counts=True)
    ends = (0, -1) if len(kinds) > 2 else ()
    said_of = [_time(column, fix)]
    said_of += [
        _sentinel(column.name, float(kinds[end]), int(counts[end]), kinds, fix) for end in ends
    ]
    whole = bool((numbers == np.floor(numbers)).all())
    if (
        whole
        and 2 < len(kinds) <= FEW * 5
        and set(words_of(column.name)) & {"id", "ids", "code", "key", "type"}
    ):
        said_of.append(
            f"column {column.name!r} is read as amounts: if its numbers are codes, list them as texts"
        )
    if whole and len(numbers) > FEW and bool((np.diff(numbers) > 0).all()):
        said_of.append(
            f"column {column.name!r} rises from row to row: if it counts rows or visits, take it out"
        )
    return [line for line in said_of if line]


def leak(column: Column, target: Column) -> str:
    """Return a warning if an input alone determines the target in nearly every row, else "".

    Texts determine it if each text occurs with one target value. Numbers determine it if limits between them separate
    the target values. A numeric target is determined by a column that equals it up to scale and offset.
    """
    rows = ~column.missing & ~target.missing
    if rows.sum() < LEAST_ROWS:
        return ""
    if target.numeric and target.texts.nunique() > FEW:
        same = column.numeric and _proportional(column.numbers[rows], target.numbers[rows])
        if same:
            return _leaks(column, "is the target but for scale and offset")
        return ""
    classes = np.unique(target.texts[rows].to_numpy(dtype=str), return_inverse=True)[1]
    told, most = _told(column, rows, classes), int(np.bincount(classes).max())
    if told < TELLS * len(classes) or most > MOST_OF_ONE * len(classes):
        return ""
    return _leaks(column, f"alone tells the target in {told} of {len(classes)} rows")


def _leaks(column: Column, what: str) -> str:
    return (
        f"column {column.name!r} {what}: if it is not known before what is predicted, take it out"
    )


def _proportional(values: NDArray[np.float64], target: NDArray[np.float64]) -> bool:
    if np.ptp(values) == 0 or np.ptp(target) == 0:
        return False
    return bool(abs(np.corrcoef(values, target)[0, 1]) > 1 - 1e-6)


def _told(column: Column, rows: NDArray[np.bool_], classes: NDArray[np.int64]) -> int:
    """Count the rows that the best rule on this column alone predicts correctly; 0 if it has too many texts."""
    if column.numeric and len(np.unique(column.numbers[rows])) > FEW:
        return _parted(column.numbers[rows], classes)
    kinds = np.unique(column.texts[rows].to_numpy(dtype=str), return_inverse=True)[1]
    if int(kinds.max()) + 1 > len(kinds) / 4:
        return 0
    counts = np.zeros((int(kinds.max()) + 1, int(classes.max()) + 1), dtype=np.int64)
    np.add.at(counts, (kinds, classes), 1)
    return int(counts.max(1).sum())


def _parted(values: NDArray[np.float64], classes: NDArray[np.int64]) -> int:
    """Count the correctly classified rows when limits between the classes' medians divide the values."""
    medians = np.array(
        [np.median(values[classes == kind]) for kind in range(int(classes.max()) + 1)]
    )
    order = np.argsort(medians)
    right = np.zeros(len(values), dtype=bool)
    low = -np.inf
    for here, after in zip(order, [*order[1:], None], strict=True):
        if after is None:
            high = np.inf
        else:
            high = _limit(values, classes, int(here), int(after))
        right |= (classes == here) & (values > low) & (values <= high)
        low = high
    return int(right.sum())


def _limit(values: NDArray[np.float64], classes: NDArray[np.int64], here: int, after: int) -> float:
    """Return the limit that best separates two classes."""
    both = (classes == here) | (classes == after)
    by_size = np.argsort(values[both], kind="stable")
    ordered, lower = values[both][by_size], (classes[both] == here)[by_size]
    rightly = np.cumsum(lower) + (~lower).sum() - np.cumsum(~lower)
    ends = np.append(np.diff(ordered) > 0, True)  # no limit lies between two equal numbers
    return float(ordered[np.flatnonzero(ends)[np.argmax(rightly[ends])]])


def _sentinel(column: str, value: float, count: int, kinds: NDArray[np.float64], fix: str) -> str:
    """Write a note on the lowest or highest number if it looks like a code for a missing value, else ""."""
    others = kinds[kinds != value]
    spread = max(float(others.max() - others.min()), 1e-300)
    gap = float(np.abs(others - value).min())
    nines = re.fullmatch(r"-?(9{2,}|8{3,}|7{3,})", f"{value:.15g}") is not None
    nines = nines or (value in (7, 8, 9) and len(others) > 1 and gap >= spread)
    alone = value < 0 <= others.min() and value == int(value)
    lonely = (
        value == 0
        and len(others) > 2
        and float(others.min()) >= 5 * float(np.median(np.diff(others)))
    )
    if not alone and not lonely and (not nines or (gap <= spread / 2 and value >= 0)):
        return ""
    if re.fullmatch(r"[A-Za-z0-9_-]+", column):
        key = column
    else:
        key = json.dumps(column, ensure_ascii=False)
    fix = fix or f"write {key} = {{ indicator = true, marks = [{value:.15g}] }} in [data.missing]"
    return (
        f"column {column!r}: {value:.15g} in {count} rows: if it stands for a missing value, {fix}"
    )


def _time(column: Column, fix: str) -> str:
    """Write a note if numbers look like times or dates, else ""."""
    kinds = np.unique(column.present_numbers)
    months = len(kinds) > 2 and column.sort == "texts" and all(map(_MONTH.fullmatch, column.kinds))
    if months:
        looks = "months such as 1.2024"
    else:
        looks = _moment(kinds) or _day(kinds, set(words_of(column.name)))
    fix = "store what matters as a number, such as a year or an age" + (
        " in years" if fix else ", or take it out"
    )
    if looks:
        return f"column {column.name!r} is read as amounts, and looks like {looks}: {fix}"
    return ""


def _moment(kinds: NDArray[np.float64]) -> str:
    for unit, each in _UNITS.items():
        if kinds[0] >= _EPOCH[0] * each and kinds[-1] <= _EPOCH[1] * each:
            first, last = (
                datetime.fromtimestamp(kinds[end] / each, UTC).date().isoformat() for end in (0, -1)
            )
            return f"{unit} since 1970 ({first} to {last})"
    return ""


def _day(kinds: NDArray[np.float64], words: set[str]) -> str:
    if not (kinds == np.floor(kinds)).all() or kinds[0] < 1:
        return ""
    years, months = (kinds // 100, 1900, 2100), (kinds % 100, 1, 12)
    days_first = (
        (kinds // 1_000_000, 1, 31),
        (kinds // 10_000 % 100, 1, 31),
        (kinds % 10_000, 1900, 2100),
    )
    if are_days(kinds) or are_days(kinds // 10_000) or are_days(kinds // 1_000_000):
        return "dates such as 20240131"
    if _within(*days_first):
        return "dates such as 31012024"
    if len(kinds) > 2 and _within(years, months):
        return "months such as 202401"
    if words & set(_DAY_WORDS.split()) and kinds[0] >= _SERIAL[0] and kinds[-1] <= _SERIAL[1]:
        return "days as a spreadsheet counts them"
    return ""
