"""Rows of a table, read column by column; each value is checked, and a refusal names its row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.gaps import Gap
from fedveil.data.values import (
    PLAIN,
    Style,
    marked,
    missing_of,
    nearly_number,
    numbers_of,
    sort_of,
    texts_of,
)
from fedveil.errors import FieldError, nearest

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Rows:
    """Rows of a table (its training or test part).

    Attributes
    ----------
    file : str
        Name of the file.
    frame : DataFrame
        Values of the rows.
    style : Style
        How numbers are written in texts.
    index : tuple of str
        Columns in which pandas numbered the rows; they are inputs only if they are named as inputs.
    lines : bool
        Whether row i (from 1) is in line i + 1 of the file.
    """

    file: str
    frame: "pandas.DataFrame"
    style: Style = PLAIN
    index: tuple[str, ...] = ()
    lines: bool = False

    def where(self, column: str, row: int) -> str:
        """Return the name of a value's place in refusals."""
        line = f" (line {row + 2})" if self.lines else ""
        return f"{self.file}, row {row + 1}{line}, column {column}"

    def require(self, field: str, column: str) -> None:
        """Refuse a column that does not exist."""
        if column not in self.frame.columns:
            raise FieldError(
                field, column, f"is no column of {self.file}; {nearest(column, self.frame.columns)}"
            )

    def refuse(
        self,
        column: str,
        bad: Any,
        shown: Callable[[int], Any],
        accepted: str,
    ) -> None:
        """Refuse a column if `bad` [N] is true for any row; the text names the first such row and its value."""
        for row in np.flatnonzero(bad)[:1].tolist():
            raise FieldError(self.where(column, row), shown(row), accepted)

    def shown(self, column: str, row: int) -> str | None:
        """Return a value as it is shown in refusals; None for a missing one."""
        value = self.frame[column].iloc[row]
        if isinstance(value, Real) and value == value:
            return str(value)
        return value if isinstance(value, str) and value.strip() else None

    def present(
        self,
        column: str,
        missing: NDArray[np.bool_] | None = None,
    ) -> "pandas.Series[Any]":
        """Return the values of a column; refuse a missing value."""
        values = self.frame[column]
        if missing is None:
            missing = missing_of(values)
        gaps = int(missing.sum())
        count = f" ({gaps} rows in all)" if gaps > 1 else ""
        accepted = (
            f"must not be empty{count}: fill it in, remove the row, or of an input set data.missing"
        )
        self.refuse(column, missing, partial(self.shown, column), accepted)
        return values

    def sites(self, column: str) -> NDArray[np.str_]:
        """Return the name of each row's site (client) [N]; refuse a missing one."""
        values = self.frame[column]
        missing = missing_of(values, vague=True)
        accepted = (
            "must name a site: it decides which client holds the row. Fill it in or remove the row"
        )
        self.refuse(column, missing, partial(self.shown, column), accepted)
        names: NDArray[np.str_] = values.astype(str).to_numpy(dtype=np.str_)
        return names

    def numbers(self, column: str, gap: Gap | None = None) -> NDArray[np.float64]:
        """Return the numbers of a column [N]; a missing value becomes NaN if `gap` replaces it, else it is refused."""
        values = self.frame[column]
        sort = sort_of(values)
        if sort in ("times", "other"):
            held = (
                "times: store them as numbers, such as years"
                if sort == "times"
                else "lists, bytes or other objects"
            )
            accepted = f"must hold numbers, and holds {held}"
            raise FieldError(f"{self.file}:{column}", str(values.dtype), accepted)
        missing = missing_of(values, vague=True, marks=gap.marks if gap else ())
        if gap is None:
            self.present(column, missing)
        numbers = np.where(missing, np.nan, numbers_of(values, self.style))
        unfit = ~missing & ~(np.abs(numbers) <= np.finfo(np.float32).max)
        accepted = "must be a finite number; texts are declared as a list of all of them, e.g. sex = ['f', 'm']"
        for row in np.flatnonzero(unfit)[:1].tolist():
            text = str(values.iloc[row])
            raise FieldError(
                self.where(column, row), text, nearly_number(text, self.style) or accepted
            )
        return numbers

    def bounded(
        self,
        column: str,
        low: float,
        high: float,
        outside: str,
        gap: Gap | None = None,
    ) -> NDArray[np.float64]:
        """Return the numbers of a column [N]; numbers outside [low, high] are refused or clipped."""
        values = self.numbers(column, gap)
        if outside == "clip":
            return np.clip(values, low, high)
        accepted = (
            f"is outside the declared [{low:g}, {high:g}]: widen it, or set data.outside = 'clip'"
        )
        self.refuse(column, (values < low) | (values > high), values.item, accepted)
        return values

    def codes(
        self,
        column: str,
        accepted: Sequence[str],
        gap: Gap | None = None,
    ) -> NDArray[np.int64]:
        """Return the index of each text among the accepted ones [N]; -1 for a missing value if `gap` replaces it."""
        values = self.frame[column]
        texts = texts_of(values)
        places = {text: i for i, text in enumerate(accepted)}
        marks = gap.marks if gap else ()
        codes = np.array(texts.map(places).fillna(-1), dtype=np.int64)
        codes[values.isna().to_numpy(dtype=bool) | marked(values, marks)] = -1
        missing = (codes < 0) & missing_of(values, marks=marks)
        if gap is None:
            self.present(column, missing)
        unknown = (codes < 0) & ~missing
        for row in np.flatnonzero(unknown)[:1].tolist():
            text = texts.iloc[row]
            raise FieldError(self.where(column, row), text, nearest(str(text), accepted))
        return codes
