"""What `fedveil init` reads off the columns of a table: what is an input, of which range or texts, and what is none."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.frames import Rows
from fedveil.data.table import read_table
from fedveil.data.values import (
    LOOSE,
    STYLES,
    VAGUE,
    Style,
    is_time,
    missing_of,
    nearly_number,
    numbers_of,
    pandas_module,
    sort_of,
    spelt_twice,
    texts_of,
)
from fedveil.errors import FieldError, require_choice

FEW = 20  # texts, or whole numbers, that are classes or categories; more are values or ids
LARGEST = (2_000_000, 2**30)  # rows and bytes, as `TableFile` has them
MOST_ARE = 0.8  # of the values; then the others are the odd ones
SITES = "site hospital clinic klinik klinikum krankenhaus ward station centre center zentrum standort silo institution"
SITES += " institute provider practice praxis department abteilung client facility trust branch"
PEOPLE = "patient patients patienten pat person subject participant proband mrn case fall pid member insured"
IDS = "id ids nr no nummer name key uuid guid index code number"
FIX = (
    'fill it in, or take the row or the column out; fedveil init --missing indicator adds an input that says "missing"'
)


@dataclass
class TableReading:
    """What `init` found.

    Attributes
    ----------
    about : mapping
        ``[data]``.
    left_out : mapping of str to str
        By column "site", "person", "id", "counter", "date", "texts", "codes", "objects", "index" or "empty" for what is
        no input.
    said : list of str
        What else its reader should know; may name values, so that it is no part of the file.
    """

    about: dict[str, Any]
    left_out: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)


def read_columns(
    path: Path,
    target: str,
    person: str,
    site: str,
    *,
    missing: str = "",
    decimal: str = "",
    thousands: str = "",
) -> tuple[dict[str, Any], dict[str, str]]:
    """``[data]`` of a table; and by column what it is, if it is no input.

    Raises
    ------
    FieldError
        For a file that is no table, a column that is not there, or a value that cannot be read.
    """
    reading = read_off(path, target, person, site, missing=missing, decimal=decimal, thousands=thousands)
    return reading.about, reading.left_out


def read_off(
    path: Path, target: str, person: str, site: str, *, missing: str = "", decimal: str = "", thousands: str = ""
) -> TableReading:
    """As `read_columns`, with what its reader should know.

    Parameters
    ----------
    path : Path
        The table.
    target, person, site : str
        Columns; by default the last one is the target.
    missing : {"", "indicator"}
        Refuse missing values of inputs, or add an input that says where one is missing.
    decimal, thousands : str
        How numbers of a CSV file are written; by default as it looks.
    """
    require_choice("missing", missing, ("", "indicator"))
    rows, style = _read(path, decimal, thousands)
    names = list(map(str, rows.frame.columns))
    offered = [name for name in names if name not in rows.index] or names
    target = require_choice("target", target or offered[-1], offered)
    for option, name in (("person", person), ("site", site)):
        if name:
            require_choice(option, name, names)
    inputs, gaps = dict[str, list[Any]](), dict[str, str]()
    found = TableReading({"name": "table", "path": str(path), **style, "target": target, "columns": inputs})
    for name in names:
        if name in (target, person, site):
            continue
        if kind := "index" if name in rows.index else _kind(rows, name):
            found.left_out[name] = kind
            continue
        absent = _missing(rows, name)
        if absent.any() and not missing:
            rows.refuse(name, absent, lambda row: _shown(rows, name, row), f"is missing: {FIX}")  # noqa: B023 - at once
        gaps |= {name: "indicator"} if absent.any() else {}
        inputs[name] = _limits_of(rows, name, ~absent)
        found.said += _odd(rows, name, ~absent)
    if not inputs:
        named = ", ".join(found.left_out) or "the rest"
        accepted = f"has no column left for inputs: {named} are ids, sites, dates or texts; add measurements"
        raise FieldError("data", str(path), accepted)
    found.about |= {"missing": gaps} if gaps else {}
    found.about |= _classes_of(rows, target)
    found.said += _odd(rows, target, ~_missing(rows, target))
    if site:
        found.about |= {"client_column": site}
    return found


def _read(path: Path, decimal: str, thousands: str) -> tuple[Rows, dict[str, str]]:
    """The rows, and how a CSV file is written."""
    given = Style(decimal or ".", thousands) if decimal or thousands else None
    for separator in (",", ";", "\t", "|"):
        try:
            rows = read_table("data", path, separator, given or Style(), LARGEST)
        except FieldError as error:
            if error.field != "data.separator":
                raise
            continue
        if len(rows.frame.columns) < 2:
            break
        _check_own_names(rows)
        if given is None and rows.file.lower().endswith((".csv", ".csv.gz")):
            rows = Rows(rows.file, rows.frame, _style(rows, separator), rows.index, rows.lines)
        keys = {"separator": separator, "decimal": rows.style.decimal, "thousands": rows.style.thousands}
        usual = {"separator": ",", "decimal": ".", "thousands": ""}
        return rows, {key: value for key, value in keys.items() if value != usual[key]}
    raise FieldError("data", str(path), "has one column: a target and an input are needed")


def _check_own_names(rows: Rows) -> None:
    """Refuse a column that holds its own name: the first line is no header, or one stands between the rows."""
    for column in rows.frame.columns:
        if sort_of(rows.frame[column]) == "texts":
            own = (texts_of(rows.frame[column]) == str(column)).to_numpy(dtype=bool)
            accepted = "is what its column is called: the file has no header line, or one between its rows"
            rows.refuse(column, own, lambda row: "a name of a column", accepted)


def _style(rows: Rows, separator: str) -> Style:
    """How most columns of numbers are written; refused where the same texts are other numbers in two ways."""
    held = list(filter(None, (_number_texts(rows, column) for column in rows.frame.columns)))
    fits = {style: sum(all(style.number(t) == style.number(t) for t in texts) for texts in held) for style in STYLES}
    best = [style for style in STYLES if fits[style] == max(fits.values())]
    chosen = best[0]
    if chosen == Style(",") and separator == "," and Style(".", ",") in best:
        return Style(".", ",")  # quoted, as spreadsheets in English write thousands
    doubtful = {Style("."): ";", Style(","): ";\t|"}.get(chosen, "")
    rival = Style("," if chosen.decimal == "." else ".", "." if chosen.decimal == "." else ",")
    if separator in doubtful and rival in best:
        for column, row in _differing(rows, chosen, rival):
            text = str(rows.frame[column].iloc[row])
            accepted = f"may be {chosen.number(text):.15g} or {rival.number(text):.15g}: say which by "
            accepted += f"fedveil init --decimal '{chosen.decimal}', or "
            accepted += f"--decimal '{rival.decimal}' --thousands '{rival.thousands}'"
            raise FieldError(rows.where(column, row), text, accepted)
    return chosen


def _number_texts(rows: Rows, column: str) -> list[str]:
    """The different texts of a column, if nearly all look like numbers of some kind."""
    values = rows.frame[column]
    if sort_of(values) != "texts":
        return []
    texts = [text for text in texts_of(values[~missing_of(values, vague=True)]).unique() if not is_time(text)]
    numbers = [text for text in texts if any(style.number(text) == style.number(text) for style in STYLES)]
    return numbers if numbers and len(numbers) >= MOST_ARE * len(texts) else []


def _differing(rows: Rows, one: Style, other: Style) -> Iterator[tuple[str, int]]:
    """Columns of numbers in which both styles read another number, and the first such row."""
    for column in rows.frame.columns:
        if _number_texts(rows, column):
            both = [numbers_of(rows.frame[column], style) for style in (one, other)]
            for row in np.flatnonzero(np.not_equal(*both) & ~np.isnan(both[0]) & ~np.isnan(both[1]))[:1].tolist():
                yield column, row


def _missing(rows: Rows, column: str) -> NDArray[np.bool_]:
    """Which values are missing; words such as "unknown" are so among numbers alone."""
    return missing_of(rows.frame[column], vague=_numeric(rows, column))


def _numeric(rows: Rows, column: str) -> bool:
    """Whether a column holds numbers, with gaps or without."""
    values = rows.frame[column]
    sort = sort_of(values)
    if sort in ("numbers", "times", "other", "empty"):
        return sort == "numbers"
    present = values[~missing_of(values, vague=True)]
    return bool(len(present)) and not np.isnan(numbers_of(present, rows.style)).any()


def _shown(rows: Rows, column: str, row: int) -> str:
    value = rows.frame[column].iloc[row]
    return value if isinstance(value, str) and value.strip() else "missing"


def _kind(rows: Rows, name: str) -> str:
    """What a column is, if it is no input; "" of an input.

    Raises
    ------
    FieldError
        By its row, for a value that looks like a number and is not written as one.
    """
    words = [re.sub(r"(?<=.)(id|nr|nummer|name)$", "", word) for word in _words(name)]
    for kind, known in (("site", SITES), ("person", PEOPLE), ("id", IDS)):
        if set(words) & set(known.split()) and set(words) <= set(known.split()) | set(IDS.split()):
            return kind
    values = rows.frame[name]
    if (sort := sort_of(values)) in ("times", "other", "empty"):
        return {"times": "date", "other": "objects", "empty": "empty"}[sort]
    values = values[~_missing(rows, name)]
    if not len(values):
        return "empty"
    if _numeric(rows, name):
        return _counter_or_date(numbers_of(values, rows.style), texts_of(values))
    texts = texts_of(values)
    if texts.map(is_time).all():
        return "date"
    _refuse_nearly(rows, name)
    numbers = numbers_of(values, rows.style)
    if (~np.isnan(numbers)).mean() >= MOST_ARE and len(np.unique(numbers[~np.isnan(numbers)])) >= 5:
        return "codes"
    return "texts" if texts.nunique() > FEW else ""


def _counter_or_date(numbers: NDArray[np.float64], texts: Any) -> str:
    """Whether numbers count rows or persons, are written as ids are, or are days such as 20240131."""
    if texts.str.fullmatch(r"0\d+").any():
        return "id"
    whole = len(numbers) > FEW and bool((numbers == np.floor(numbers)).all())
    if not whole:
        return ""
    if len(np.unique(numbers)) == len(numbers) == numbers.max() - numbers.min() + 1:
        return "counter"
    steps = np.diff(numbers)
    if len(np.unique(numbers)) > FEW and bool(np.isin(steps, (0, 1)).all()):
        return "counter"
    day, month, year = numbers % 100, numbers // 100 % 100, numbers // 10000
    days = (day >= 1) & (day <= 31) & (month >= 1) & (month <= 12) & (year >= 1900) & (year <= 2100)
    return "date" if bool(days.all()) else ""


def _refuse_nearly(rows: Rows, name: str) -> None:
    """Refuse a column in which numbers are written as no reader reads them, by the first such row."""
    values = rows.frame[name]
    present = values[~missing_of(values, vague=True)]
    kinds = pandas_module().unique(texts_of(present))
    numbers = [text for text in kinds if rows.style.number(text) == rows.style.number(text)]
    nearly = {text: why for text in kinds if text not in set(numbers) and (why := nearly_number(text, rows.style))}
    if not nearly or len(numbers) + len(nearly) < max(MOST_ARE * len(kinds), 1):
        return
    loose = all(why.startswith(LOOSE) for why in nearly.values())
    if loose and len(kinds) <= FEW and (not numbers or len(numbers) + len(nearly) < len(kinds)):
        return  # categories such as <50, 50-70, >70
    for text, why in nearly.items():
        rows.refuse(name, (texts_of(values) == text).to_numpy(dtype=bool), lambda row: text, why)  # noqa: B023 - at once


def _words(name: str) -> list[str]:
    """``PatientID`` and ``patient_id`` as patient, id."""
    return [word.lower() for word in re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])", name)]


def _classes_of(rows: Rows, target: str) -> dict[str, Any]:
    """Classes, or the range of a number.

    Raises
    ------
    FieldError
        By its row, for a target that is missing or cannot be read.
    """
    values = rows.frame[target]
    if (sort := sort_of(values)) in ("times", "other"):
        raise FieldError("target", target, f"holds {sort}: a number or few texts can be predicted")
    rows.refuse(
        target,
        _missing_target(rows, target),
        lambda row: _shown(rows, target, row),
        "is missing: fill it in, or remove the row",
    )
    if not _numeric(rows, target):
        if texts_of(values).map(is_time).all():
            raise FieldError("target", target, "holds dates or times: store them as numbers, such as years")
        _refuse_nearly(rows, target)
        if FEW < texts_of(values).nunique() > len(values) / 2:
            accepted = "holds nearly as many texts as rows: they are no classes"
            raise FieldError("target", target, accepted)
        return {"classes": _texts_once(rows, target, np.ones(len(values), dtype=bool))}
    numbers = numbers_of(values, rows.style)
    kinds = np.unique(numbers)
    if len(kinds) <= FEW and kinds.tolist() == [*range(len(kinds))]:
        return {"classes": len(kinds)}
    if len(kinds) <= FEW and (kinds == np.floor(kinds)).all():
        return {"classes": _texts_once(rows, target, np.ones(len(values), dtype=bool))}
    return {"target_range": _limits_of(rows, target, np.ones(len(values), dtype=bool))}


def _missing_target(rows: Rows, target: str) -> NDArray[np.bool_]:
    """Which targets are missing; "unknown" beside other texts too, and "none" among numbers alone."""
    values = rows.frame[target]
    if _numeric(rows, target) or sort_of(values) == "empty":
        return missing_of(values, vague=True)
    return missing_of(values, vague=False) | missing_of(
        values, marks=_in_any_case(values, VAGUE - {"none", "nil", "na"})
    )


def _in_any_case(values: Any, words: frozenset[str]) -> list[str]:
    return [text for text in texts_of(values).unique() if text.casefold() in words]


def _limits_of(rows: Rows, column: str, present: NDArray[np.bool_]) -> list[Any]:
    """Lowest and highest number, rounded outwards, or the texts there are."""
    if not _numeric(rows, column):
        return _texts_once(rows, column, present)
    return around(numbers_of(rows.frame[column], rows.style)[present])


def around(numbers: NDArray[np.float64]) -> list[float]:
    """A range that holds the numbers: whole, or of one digit of their spread where that is below 1."""
    low, high = float(numbers.min()), float(numbers.max())
    digits = 0 if high - low >= 1 or high == low else -math.floor(math.log10(high - low))
    if digits == 0 or digits > 300:
        return [math.floor(low), max(math.ceil(high), math.floor(low) + 1)]
    step = 10.0**-digits
    rounded = [round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)]
    while rounded[0] > low:
        rounded[0] = round(rounded[0] - step, digits)
    while rounded[1] < high or rounded[1] <= rounded[0]:
        rounded[1] = round(rounded[1] + step, digits)
    return rounded


def _texts_once(rows: Rows, column: str, present: NDArray[np.bool_]) -> list[str]:
    """The texts of a column; refused by its row is one that is spelt in two ways."""
    texts = texts_of(rows.frame[column])
    pair = spelt_twice(texts[present].unique())
    if pair:
        accepted = (
            f"is like {pair[0]!r} of another row: one category, or two? Write each in one way (or list both in [data])"
        )
        rows.refuse(column, ((texts == pair[1]) & present).to_numpy(dtype=bool), lambda row: pair[1], accepted)
    return sorted(map(str, texts[present].unique()))


def _odd(rows: Rows, column: str, present: NDArray[np.bool_]) -> list[str]:
    """What is odd about a column that is used, for whoever reads what `init` prints."""
    if not _numeric(rows, column):
        words = ", ".join(map(repr, _in_any_case(rows.frame[column][present], VAGUE)))
        return [f"column {column!r}: {words} is taken as one of its texts, not as missing"] if words else []
    numbers = numbers_of(rows.frame[column], rows.style)[present]
    kinds, counts = np.unique(numbers, return_counts=True)
    said = [_sentinel(column, float(kinds[end]), int(counts[end]), kinds) for end in (0, -1)] if len(kinds) > 2 else []
    whole = bool((numbers == np.floor(numbers)).all())
    if whole and len(numbers) > FEW and bool((np.diff(numbers) > 0).all()):
        said.append(f"column {column!r} rises from row to row: if it counts rows or visits, take it out")
    return [line for line in said if line]


def _sentinel(column: str, value: float, count: int, kinds: NDArray[np.float64]) -> str:
    """What is said of the lowest or highest number if it looks like a sign of a gap; "" otherwise."""
    others = kinds[kinds != value]
    spread = max(float(others.max() - others.min()), 1e-300)
    gap = float(np.abs(others - value).min())
    nines = re.fullmatch(r"-?(9{2,}|8{3,}|7{3,})", f"{value:.15g}") is not None
    alone = value < 0 <= others.min() and value == int(value)
    if not alone and (not nines or (gap <= spread / 2 and value >= 0)):
        return ""
    fix = f"{column} = {{ indicator = true, marks = [{value:.15g}] }} in [data.missing]"
    return f"column {column!r}: {value:.15g} in {count} rows: if it stands for a missing value, write {fix}"
