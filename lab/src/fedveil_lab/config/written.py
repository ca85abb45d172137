"""Find how a user's table is written: separators, decimal sign, and the type of each column."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.rows import Rows
from fedveil.data.table import read_table
from fedveil.data.values import (
    PLAIN,
    STYLES,
    Sort,
    Style,
    is_gap,
    is_number,
    is_time,
    missing_of,
    numbers_of,
    pandas_module,
    sort_of,
    texts_of,
)
from fedveil.errors import FieldError

LARGEST = (2_000_000, 2**30)  # rows and bytes, as `TableFile` has them
UTF8 = "utf-8"
FEWEST = 5  # rows of a table that may end in their sum
TOTALS = "total totals sum summe gesamt mean average mittelwert durchschnitt"
MOST_ARE = 0.8  # of the values; then the others are the odd ones


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table; each view of it is made once.

    Attributes
    ----------
    rows : Rows
        The table.
    name : str
        Name of the column.
    """

    rows: Rows
    name: str

    @cached_property
    def values(self) -> Any:
        """Values of the column, a pandas Series."""
        return self.rows.frame[self.name]

    @cached_property
    def sort(self) -> Sort:
        """Type of the column's values: numbers, texts, times and others."""
        return sort_of(self.values)

    @cached_property
    def texts(self) -> Any:
        """Values as texts, without surrounding spaces."""
        return texts_of(self.values)

    @cached_property
    def kinds(self) -> list[str]:
        """Different texts of the column, without codes for missing numbers."""
        present = self.texts[self.values.notna()]
        return [text for text in pandas_module().unique(present) if not is_gap(text, vague=True)]

    @property
    def declared_texts(self) -> bool:
        """Whether the file declares the texts as categories, even if they look like numbers."""
        return (
            isinstance(self.values.dtype, pandas_module().CategoricalDtype) and self.sort == "texts"
        )

    @cached_property
    def numeric(self) -> bool:
        """Whether the column holds numbers, with or without missing values."""
        if self.declared_texts:
            return False
        if self.sort in ("numbers", "times", "other", "empty"):
            return self.sort == "numbers"
        return bool(self.kinds) and all(map(self.rows.style.reads, self.kinds))

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """Values as numbers [N]; NaN for a missing value."""
        return numbers_of(self.values, self.rows.style)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Mask [N] of missing values; words such as "unknown" count as missing only among numbers."""
        return missing_of(self.values, vague=self.numeric)

    @property
    def present_numbers(self) -> NDArray[np.float64]:
        """Return the numbers that are present."""
        return self.numbers[~self.missing]

    @property
    def present_texts(self) -> Any:
        """Return the texts that are present."""
        return self.texts[~self.missing]

    def refuse(self, bad: NDArray[np.bool_], accepted: str, shown: str = "") -> None:
        """Refuse the column by the first row where `bad` is true, with its value or with `shown`."""
        self.rows.refuse(
            self.name, bad, lambda row: shown or self.rows.shown(self.name, row), accepted
        )

    def refuse_text(self, text: str, accepted: str) -> None:
        """Refuse the column by the first row that holds this text."""
        self.refuse((self.texts == text).to_numpy(dtype=bool), accepted, text)


def read_written(
    path: Path, decimal: str, thousands: str, encoding: str = ""
) -> tuple[Rows, dict[str, str]]:
    """Read a table; return its rows, and the keys of ``[data]`` for the format of a CSV file.

    Parameters
    ----------
    path : Path
        File of the table.
    decimal, thousands : str
        Decimal and thousands separators; both empty: found from the file.
    encoding : str
        Encoding of a CSV file; by default UTF-8.

    Raises
    ------
    FieldError
        If the file has fewer than two columns or no header line, or a text can be read as two different numbers.
    """
    if decimal or thousands:
        given = Style(decimal or ".", thousands)
    else:
        given = None
    for separator in (",", ";", "\t", "|"):
        try:
            rows = read_table("data", path, separator, given or PLAIN, LARGEST, encoding or UTF8)
        except FieldError as error:
            if error.field != "data.separator":
                raise
            continue
        if len(rows.frame.columns) < 2:
            break
        _refuse_own_names(rows)
        if given is None and rows.file.lower().endswith((".csv", ".csv.gz")):
            rows = replace(rows, style=_style(rows, separator))
        _refuse_total(rows)
        keys = {
            "separator": separator,
            "decimal": rows.style.decimal,
            "thousands": rows.style.thousands,
        }
        usual = {"separator": ",", "decimal": ".", "thousands": "", "encoding": UTF8}
        keys["encoding"] = encoding or UTF8
        return rows, {key: value for key, value in keys.items() if value != usual[key]}
    raise FieldError("data", str(path), "has one column: a target and an input are needed")


def _refuse_own_names(rows: Rows) -> None:
    """Refuse a column that contains its own name: a header line stands between the rows, or is missing."""
    for name in rows.frame.columns:
        column = Column(rows, name)
        if column.sort == "texts" and str(name) in column.kinds:
            accepted = (
                "is what its column is called: the file has no header line, or one between its rows"
            )
            column.refuse(
                (column.texts == str(name)).to_numpy(dtype=bool), accepted, "a name of a column"
            )


def _refuse_total(rows: Rows) -> None:
    """Refuse a last row that is the sum of the others."""
    last = np.arange(len(rows.frame)) == len(rows.frame) - 1
    for name in rows.frame.columns if len(last) >= FEWEST else ():
        column = Column(rows, name)
        if column.sort == "texts" and str(column.texts.iloc[-1]).casefold() in TOTALS.split():
            accepted = "sums up the rows above it: take the last row out"
            column.refuse(
                last & (column.texts.value_counts()[column.texts.iloc[-1]] == 1), accepted
            )
        if column.numeric and not column.missing[-1]:
            above, total = column.present_numbers[:-1], column.present_numbers[-1]
            sums_up = (
                len(above) > 2
                and total > 2 * np.abs(above).max()
                and np.isclose(total, above.sum(), 1e-9)
            )
            column.refuse(last & sums_up, "is the sum of the rows above it: take the last row out")


def _style(rows: Rows, separator: str) -> Style:
    """Find how most numeric columns are written; refuse texts that two styles read as different numbers."""
    columns: dict[str, list[str]] = {}
    every: list[str] = []
    for name in rows.frame.columns:
        texts = _telling(Column(rows, name))
        if texts:
            columns[name] = texts
            every += texts
    if all(map(PLAIN.reads, every)) and separator != ";":
        return PLAIN
    fits = dict.fromkeys(STYLES, 0)  # columns that a style reads whole
    for style in STYLES:
        for texts in columns.values():
            fits[style] += all(map(style.reads, texts))
    best = [style for style in STYLES if fits[style] == max(fits.values())]
    chosen = best[0]
    if chosen == Style(",") and separator == "," and Style(".", ",") in best:
        return Style(".", ",")  # quoted, as spreadsheets in English write thousands
    doubtful = {Style("."): ";", Style(","): ";\t|"}.get(chosen, "")
    if chosen.decimal == ".":
        rival = Style(",", ".")
    else:
        rival = Style(".", ",")
    if separator in doubtful and rival in best:
        for name, text in _differing(columns, chosen, rival):
            accepted = f"may be {chosen.number(text):.15g} or {rival.number(text):.15g}: say which by fedveil init "
            accepted += f"--decimal '{chosen.decimal}', or "
            accepted += f"--decimal '{rival.decimal}' --thousands '{rival.thousands}'"
            Column(rows, name).refuse_text(text, accepted)
    return chosen


def _telling(column: Column) -> list[str]:
    """Return the texts that show how a numeric column is written; empty for other columns."""
    if column.sort != "texts":
        return []
    texts = [text for text in column.kinds if not is_time(text)]
    if not _mostly(is_number, texts[:200]) or not _mostly(is_number, texts):
        return []
    return [text for text in texts if not text.isdecimal() and is_number(text)]


def _mostly(test: Callable[[str], bool], texts: list[str]) -> bool:
    return sum(map(test, texts)) >= max(MOST_ARE * len(texts), 1)


def _differing(
    columns: dict[str, list[str]], one: Style, other: Style
) -> Iterator[tuple[str, str]]:
    """Yield columns in which two styles read different numbers, each with the first such text."""
    for name, texts in columns.items():
        for text in texts:
            if one.reads(text) and other.reads(text) and one.number(text) != other.number(text):
                yield name, text
                break
