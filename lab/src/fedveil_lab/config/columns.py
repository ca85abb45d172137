"""Find a table's input columns for `fedveil init`, with their ranges or categories."""

import math
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.labels import require_roles
from fedveil.data.several import are_lists, labels_in
from fedveil.data.values import LOOSE, VAGUE, is_time, missing_of, nearly_number, spelt_twice
from fedveil.errors import FieldError, require_choice
from fedveil.units import WORDS
from fedveil_lab.config.oddities import FEW, are_days, in_any_case, leak, odd, words_of
from fedveil_lab.config.written import MOST_ARE, Column, read_written

MANY = 10  # rows in which a value may be expected to come twice
_SITES = f"{WORDS['client']} ward station praxis department abteilung facility trust branch"
_PEOPLE = f"{WORDS['person']} patients patienten pat mrn nhs ssn case fall pid insured"
SITES = {*_SITES.split()} - {"lab"}  # which stands before what a laboratory measured
PEOPLE = {*_PEOPLE.split()}
IDS = "id ids nr no nbr nummer name key uuid guid index code number identifier kennung"
YES_OR_NO = {*"01yntfj", "yes", "no", "true", "false", "ja", "nein", "oui", "non", "si"}
FIX = 'fill it in, or take the row or the column out; fedveil init --missing indicator adds an input that says "missing"'


@dataclass
class TableReading:
    """Result of reading a table for `fedveil init`.

    Attributes
    ----------
    about : mapping
        Keys of the configuration's table ``[data]``.
    left_out : mapping of str to str
        Columns that are not inputs, each with its kind: "site", "person", "id", "counter", "date", "texts", "codes",
        "objects", "index" or "empty".
    said : list of str
        Further notes for the user. They may name values, so they stay out of the file.
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
    encoding: str = "",
) -> tuple[dict[str, Any], dict[str, str]]:
    """Make the keys of ``[data]`` for a table; also return the kind of each column that is not an input.

    Raises
    ------
    FieldError
        If the file is not a table, a column does not exist, or a value cannot be read.
    """
    written = {"decimal": decimal, "thousands": thousands, "encoding": encoding}
    reading = read_off(path, target, person, site, missing=missing, **written)
    return reading.about, reading.left_out


def read_off(
    path: Path,
    target: str,
    person: str,
    site: str,
    *,
    missing: str = "",
    decimal: str = "",
    thousands: str = "",
    encoding: str = "",
) -> TableReading:
    """Read columns as `read_columns` does, and collect notes for the user.

    Parameters
    ----------
    path : Path
        File of the table.
    target, person, site : str
        Column names of target, person and site. Default target: the last column.
    missing : {"", "indicator"}
        "": refuse missing input values. "indicator": add an input that marks them.
    decimal, thousands : str
        Decimal and thousands separators of a CSV file. Default: found from the file.
    encoding : str
        Encoding of a CSV file; by default UTF-8.
    """
    require_choice("missing", missing, ("", "indicator"))
    rows, style = read_written(path, decimal, thousands, encoding)
    names = list(map(str, rows.frame.columns))
    offered = [name for name in names if name not in (*rows.index, person, site)] or names
    chosen, target = bool(target), require_choice("target", target or offered[-1], offered)
    for option, name in (("person", person), ("site", site)):
        if name:
            require_choice(option, name, names)
    require_roles({"target": target, "site": site, "person": person})
    inputs, gaps = dict[str, list[Any]](), dict[str, str]()
    found = TableReading(
        {"name": "table", "path": str(path), **style, "target": target, "columns": inputs}
    )
    for name in names:
        if name in (target, person, site):
            continue
        column = Column(rows, name)
        kind = "index"
        if name not in rows.index:
            kind = _kind(column)
        if kind:
            found.left_out[name] = kind
            if kind == "codes":
                found.said.append(_no_number(column))
            continue
        if column.missing.any():
            if not missing:
                column.refuse(column.missing, f"a value is needed: {FIX}")
            gaps[name] = "indicator"
        inputs[name] = _limits_of(column)
        found.said += odd(column)
    if not inputs:
        named = ", ".join(found.left_out) or "the rest"
        accepted = f"has no column left for inputs: {named} are ids, sites, dates or texts; add measurements"
        raise FieldError("data", str(path), accepted)
    if gaps:
        found.about["missing"] = gaps
    predicted = Column(rows, target)
    found.about |= _classes_of(predicted, chosen)
    if not are_lists(predicted.values):
        found.said += odd(predicted, "take these rows out") + _rare(predicted, found.about)
        leaks = [leak(Column(rows, name), predicted) for name in inputs]
        found.said += filter(None, leaks)
    if site:
        found.about["client_column"] = site
    return found


def _kind(column: Column) -> str:
    """Return the kind of a column that is not an input; "" for an input.

    Raises
    ------
    FieldError
        If a value looks like a number but cannot be read as one; the message names its row.
    """
    fractions = column.numeric and bool(
        (column.present_numbers != np.floor(column.present_numbers)).any()
    )
    if not fractions and (kind := _named(column)):  # years of practice are no name
        return kind
    if column.sort in ("times", "other", "empty"):
        return {"times": "date", "other": "objects", "empty": "empty"}[column.sort]
    if column.missing.all():
        return "empty"
    if column.numeric:
        return _counter_or_date(column)
    if all(map(is_time, column.kinds)):
        return "date"
    _refuse_nearly(column)
    if _mostly_numbers(column):
        odd_ones = np.isnan(column.numbers) & ~column.missing
        if odd_ones.sum() == 1:
            column.refuse(
                odd_ones[:1],
                "is no number, as all others are: a second header, or units? Take the row out",
            )
        return "codes"
    if column.present_texts.nunique() > FEW:
        return "texts"
    return ""


def _named(column: Column) -> str:
    """Return "site", "person" or "id" if the column's name says so, else ""."""
    known = SITES | PEOPLE | {*IDS.split()}
    words = {
        word if word in known else re.sub(r"(?<=.)(id|nr|nummer|name)$", "", word)
        for word in words_of(column.name)
    }
    for kind, names in (("site", SITES), ("person", PEOPLE), ("id", {*IDS.split()})):
        if words & names and words <= names | set(IDS.split()):
            return kind
    return ""


def _counter_or_date(column: Column) -> str:
    """Return "counter", "id" or "date" if numbers count rows or persons, look like ids, or look like 20240131."""
    if any(re.fullmatch(r"0\d+", text) for text in column.kinds):
        return "id"
    numbers = column.present_numbers
    kinds = np.unique(numbers)
    column.refuse(
        np.abs(column.numbers) > np.finfo(np.float32).max, "must be a finite number of at most 3e38"
    )
    if np.abs(numbers).max() >= 2**53 and (numbers == np.floor(numbers)).all():
        return "id"  # more digits than a number here has
    if len(numbers) <= FEW or not (numbers == np.floor(numbers)).all():
        return ""
    if len(kinds) == len(numbers) == numbers.max() - numbers.min() + 1:
        return "counter"
    if len(kinds) == len(numbers) and set(words_of(column.name)) & set(IDS.split()):
        return "id"
    if len(kinds) > FEW and bool(np.isin(np.diff(numbers), (0, 1)).all()):
        return "counter"
    if are_days(kinds):
        return "date"
    return ""


def _refuse_nearly(column: Column) -> None:
    """Refuse a column whose numbers are written in a way that cannot be read; the message names the first such row."""
    if column.declared_texts:
        return
    kinds, style = column.kinds, column.rows.style
    few = len(kinds) <= FEW
    some = [text for text in kinds[:200] if style.reads(text) or nearly_number(text, style)]
    if len(some) < max(MOST_ARE * len(kinds[:200]), 1):
        return
    numbers = [text for text in kinds if style.reads(text)]
    nearly = {}
    for text in kinds:
        if style.reads(text):
            continue
        why = nearly_number(text, style)
        if why:
            nearly[text] = why
    both = len(numbers) + len(nearly)
    if not nearly or both < max(MOST_ARE * len(kinds), 1):
        return
    loose = all(why.startswith(LOOSE) for why in nearly.values())
    if loose and few and (not numbers or both < len(kinds)):
        return  # categories such as <50, 50-70, >70
    text, why = next(iter(nearly.items()))
    column.refuse_text(text, why)


def _classes_of(column: Column, chosen: bool) -> dict[str, Any]:
    """Return the target's classes or range; `chosen` means that the user named the target column.

    Raises
    ------
    FieldError
        If a target is missing or cannot be read; the message names its row.
    """
    if are_lists(column.values):
        return {"classes": labels_in(column.values, partial(column.rows.where, column.name))}
    if column.sort in ("times", "other"):
        raise FieldError(
            "target", column.name, f"holds {column.sort}: a number or few texts can be predicted"
        )
    column.refuse(_missing_target(column), "a value is needed: fill it in, or remove the row")
    _refuse_ids(column, chosen)
    if len(column.texts) > 1 and column.texts.nunique() == 1:
        raise FieldError(
            "target", column.name, "is the same in each row: there is nothing to predict"
        )
    if not column.numeric:
        if all(map(is_time, column.kinds)):
            raise FieldError(
                "target", column.name, "holds dates or times: store them as numbers, such as years"
            )
        _refuse_nearly(column)
        if _mostly_numbers(column):
            column.refuse(
                np.isnan(column.numbers),
                "is no number, as most others are: correct it, or remove the row",
            )
        if FEW < column.texts.nunique() > len(column.texts) / 2:
            raise FieldError(
                "target", column.name, "holds nearly as many texts as rows: they are no classes"
            )
        return {"classes": _texts_once(column)}
    column.refuse(
        np.abs(column.numbers) > np.finfo(np.float32).max, "must be a finite number of at most 3e38"
    )
    kinds = np.unique(column.numbers)
    if len(kinds) <= FEW and kinds.tolist() == [*range(len(kinds))]:
        return {"classes": len(kinds)}
    if len(kinds) <= FEW and (kinds == np.floor(kinds)).all():
        return {"classes": _texts_once(column)}
    return {"target_range": _limits_of(column)}


def _rare(column: Column, about: dict[str, Any]) -> list[str]:
    """Return notes on classes with a single row, numbers used as classes, and numbers that are not classes."""
    said: list[str] = []
    if len(column.texts) < MANY:
        return said
    whole = column.numeric and bool((column.numbers == np.floor(column.numbers)).all())
    counts = column.texts.value_counts()
    if "classes" not in about:
        if whole and len(counts) == len(column.texts):
            question = (
                "holds another whole number in each row, and is read as an amount: is it one?"
            )
            said.append(f"target {column.name!r} {question}")
        return said
    once = ", ".join(map(repr, sorted(counts.index[counts == 1])[:3]))
    if once:
        said.append(f"target {column.name!r}: a single row is of class {once}: is it one?")
    if whole and len(counts) > 2:
        limits = _limits_of(column)
        said.append(
            f"target {column.name!r}: its numbers are classes; to predict an amount, target_range = {limits}"
        )
    return said


def _refuse_ids(column: Column, chosen: bool) -> None:
    """Refuse a target that names rows or persons.

    Such a target has the name of an id, or a different text or whole number in each row. If the user named a column of
    numbers, it counts as amounts. Numbers that count the rows or always rise are still refused.
    """
    whole = column.numeric and bool((column.numbers == np.floor(column.numbers)).all())
    kind = _named(column)
    if kind and column.texts.nunique() > FEW and (whole or not column.numeric):
        accepted = f"is called like a {kind}'s number or name: name the column to predict"
        raise FieldError("target", column.name, accepted)
    if len(column.texts) < MANY or column.texts.nunique() < len(column.texts):
        return
    if not column.numeric:
        raise FieldError(
            "target", column.name, "holds another text in each row: it names rows, and is no class"
        )
    pointed = column.rows.style.decimal
    floats = column.sort == "numbers" and column.values.dtype.kind == "f"
    steps = np.diff(column.numbers)
    counts = bool((steps > 0).all()) or column.numbers.max() - column.numbers.min() + 1 == len(
        column.numbers
    )
    if (
        whole
        and not floats
        and not any(pointed in text for text in column.texts)
        and (counts or not chosen)
    ):
        fix = f"give --target {column.name}"
        if chosen:
            fix = f"write its numbers with a point (5{pointed}0)"
        accepted = "holds another whole number in each row, as ids and counters do: name the column to predict. "
        raise FieldError("target", column.name, f"{accepted}If it is an amount, {fix}")


def _missing_target(column: Column) -> NDArray[np.bool_]:
    """Mark the missing targets; "unknown" counts as missing beside other texts too, "none" among numbers alone."""
    if column.numeric or column.sort == "empty":
        return missing_of(column.values, vague=True)
    return missing_of(column.values, marks=in_any_case(column.texts, VAGUE - {"none", "nil", "na"}))


def _limits_of(column: Column) -> list[Any]:
    """Return the lowest and highest number, rounded outwards, or the different texts."""
    if column.numeric:
        return around(column.present_numbers)
    return _texts_once(column)


def around(numbers: NDArray[np.float64]) -> list[float]:
    """Return a range around numbers, rounded outwards to whole numbers, or to one digit of their spread if it is below 1."""
    low, high = float(numbers.min()), float(numbers.max())
    digits = 0
    if 0 < high - low < 1:
        digits = -math.floor(math.log10(high - low))
    if digits == 0 or digits > 300:
        return [math.floor(low), max(math.ceil(high), math.floor(low) + 1)]
    step = 10.0**-digits
    rounded = [
        round(math.floor(low / step) * step, digits),
        round(math.ceil(high / step) * step, digits),
    ]
    while rounded[0] > low:
        rounded[0] = round(rounded[0] - step, digits)
    while rounded[1] < high or rounded[1] <= rounded[0]:
        rounded[1] = round(rounded[1] + step, digits)
    return rounded


def _texts_once(column: Column) -> list[str]:
    """Return the different texts of a column, numeric ones sorted by value; two spellings of one text are refused."""
    texts = column.present_texts.unique()
    pair = spelt_twice(texts)
    if pair:
        fix = "one category, or two? Write each in one way, or list both in [data]"
        column.refuse_text(pair[1], f"is like {pair[0]!r} of another row: {fix}")
    if len(texts) > 2 and {text.casefold() for text in texts} <= YES_OR_NO:
        column.refuse_text(
            texts[-1], f"is yes or no, which is written in several ways: {', '.join(sorted(texts))}"
        )
    style = column.rows.style
    if all(map(style.reads, texts)):
        return sorted(map(str, texts), key=style.number)
    return sorted(map(str, texts))


def _mostly_numbers(column: Column) -> bool:
    """Whether nearly all values of a column of texts are numbers."""
    if column.declared_texts:
        return False
    present = ~column.missing
    return bool(present.sum() >= 10) and bool(
        (~np.isnan(column.numbers[present])).mean() >= MOST_ARE
    )


def _no_number(column: Column) -> str:
    """Return the value because of which a column of numbers counts as a column of texts."""
    row = int(np.flatnonzero(np.isnan(column.numbers) & ~column.missing)[0])
    return f"{column.rows.where(column.name, row)} = {column.texts.iloc[row]!r}: is no number, as most others are"
