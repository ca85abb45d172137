"""Classification of a table's values as number, text, time or missing; for `fedveil init` and the loaders."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import category, digit, normalize

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import FieldError, require_choice
from fedveil.registry import optional

if TYPE_CHECKING:
    import pandas

Sort = Literal["numbers", "texts", "times", "mixed", "other", "empty"]

# What pandas.read_csv reads as NaN, and signs that stand for a gap. A text that somebody declared is no gap.
MISSING = frozenset(
    """#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null
    |NaT||?|??|-|--|---|.|..|...|–|—|#NULL!|#N/V|#DIV/0!|#VALUE!|#REF!""".replace(
        "\n    ", ""
    ).split("|")
)
# words, in any case, that stand for a gap among numbers and ids, but may be a category among texts
_WORDS = "none|unknown|missing|na|n.a.|n.a|nan|null|nil|nat|unk|undefined|not available|not known|unbekannt|k.a."
VAGUE = frozenset(_WORDS.split("|"))
SPACES = " \u00a0\u2009\u202f"
QUOTES = "\"'"
_JOINTS = re.compile(
    r"(?<=\w)(?:[-_.\u2010-\u2015]+(?=\w)|\.(?= |$)| - )"
)  # as in Ward-1, ward_1, St. Mary
THOUSANDS = ("", ",", ".", "'", " ")
_GROUPS = {"": "", ",": ",", ".": r"\.", "'": "['\u2019]", " ": f"[{SPACES}]"}
_DATES = re.compile(
    r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?"
    r"|\d{1,2}[. -]+[A-Za-z]{3,9}\.?[ -]+\d{2,4}([ T].*)?|[A-Za-z]{3,9}\.? \d{1,2},? \d{4}|P\d+[YMDT]\w*"
    r"|-?\d+ days?\b.*"
)
_PLAIN = r"[+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?"
_CURRENCY = "$\u20ac\u00a3\u00a5\u20b9"
_COIN = rf"(?:[{_CURRENCY}]|CHF|EUR|USD|GBP|Fr\.|Rs\.?)"
# texts that a reader takes for numbers, with the reason why a program should not guess
_NEARLY = {
    "has a currency sign": rf"-?\s*{_COIN}\s*{_PLAIN}|{_PLAIN}\s*{_COIN}",
    "has a percent sign": rf"{_PLAIN}\s*[%\u2030]",
    "is negative by parentheses or a sign behind it": rf"\(\s*{_COIN}?\s*{_PLAIN}\s*[%{_CURRENCY}]?\s*\)|[\d.,]*\d-",
    "is a hexadecimal number": r"[+-]?0[xX][0-9a-fA-F]+",
    "is infinite": r"[+-]?(?:inf|infinity|∞)",
    "is below or above a limit": rf"(?:<|>|<=|>=|≤|≥|~|≈|ca\.?)\s*{_PLAIN}",
    "has a power that no reader knows": rf"{_PLAIN}\s*(?:[x×*]\s*10\s*\^?\s*[-+]?\d+|[dD][-+]?\d+)",
    "has an underscore": r"[+-]?\d+(?:_\d+)+",
    "has a fraction": r"[+-]?\d*\s*[¼½¾⅓⅔]|\d+\s*/\s*\d+",
    "is in quotes": rf"(?:\"\s*{_PLAIN}\s*\"|'\s*{_PLAIN}\s*'?)",
    "is a formula": r"=.+",
    "has a unit": rf"{_PLAIN}(?:\s*[a-zµμ°Ω][A-Za-zµμ°Ω]{{0,5}}|\s+[A-Z][a-z]?)(?:/[A-Za-zµ0-9]{{1,6}})?",
}
LOOSE = (
    "is below or above a limit",
    "has a unit",
    "has a fraction",
)  # harmless if all values are such categories


@dataclass(frozen=True)
class Style:
    """How numbers are written in the texts of a file.

    Parameters
    ----------
    decimal : {".", ","}
        Decimal sign.
    thousands : {"", ",", ".", "'", " "}
        Sign between groups of digits; by default there is none. Narrow and unbreakable spaces count as spaces. Groups
        have three digits, or two before the last three (12,34,567).
    """

    decimal: str = "."
    thousands: str = ""

    def __post_init__(self) -> None:
        """Refuse unknown signs, and one sign in both roles."""
        require_choice("data.decimal", self.decimal, (".", ","))
        if self.thousands not in THOUSANDS:
            raise FieldError(
                "data.thousands", self.thousands, "must be ',', '.', \"'\", a space, or left out"
            )
        if self.thousands == self.decimal:
            raise FieldError(
                "data.thousands", self.thousands, "is the decimal sign as well: set data.decimal"
            )

    @cached_property
    def _number(self) -> re.Pattern[str]:
        group = _GROUPS[self.thousands]
        point = re.escape(self.decimal)
        whole = r"\d+"
        if group:
            threes = rf"[1-9]\d{{0,2}}(?:{group}\d{{3}})+"
            twos = rf"[1-9]\d?(?:{group}\d{{2}})*{group}\d{{3}}"
            whole = rf"{threes}|{twos}|\d+"
        digits = rf"(?:{whole})(?:{point}\d*)?|{point}\d+"
        return re.compile(rf"[+-]?(?:{digits})(?:[eE][+-]?\d+)?", re.ASCII)

    def reads(self, text: str) -> bool:
        """Whether a text is a number in this form."""
        return self._number.fullmatch(text.strip()) is not None

    def number(self, text: str) -> float:
        """Convert a text to a number; NaN if it is none in this form."""
        stripped = text.strip()
        if not self._number.fullmatch(stripped):
            return float("nan")
        if self.thousands:
            stripped = re.sub(_GROUPS[self.thousands], "", stripped)
        return float(stripped.replace(self.decimal, "."))


PLAIN = Style()
STYLES = tuple(Style(decimal, sign) for sign in THOUSANDS for decimal in ".," if sign != decimal)


def is_number(text: str) -> bool:
    """Whether a text is a number in any known form."""
    return any(style.reads(text) for style in STYLES)


def pandas_module() -> Any:
    """Import pandas.

    Raises
    ------
    FedVeilError
        If it is not installed.
    """
    return optional("pandas", "reading tables needs pandas", '"fedveil[data]"')


def sort_of(values: "pandas.Series[Any]") -> Sort:
    """Return the kind of values in a column by their type; texts may still be numbers (see `numbers_of`)."""
    pd = pandas_module()
    types = pd.api.types
    if not values.notna().any():
        return "empty"
    dtype = values.dtype
    if isinstance(dtype, pd.StringDtype):
        return "texts"
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = values.cat.categories.dtype
    if types.is_bool_dtype(dtype) or (
        types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype)
    ):
        return "numbers"
    if (
        types.is_datetime64_any_dtype(dtype)
        or types.is_timedelta64_dtype(dtype)
        or str(dtype).startswith("period")
    ):
        return "times"
    kinds = set(map(type, values[values.notna()]))
    held: set[Sort] = set(map(_sort_of_type, kinds))
    if held == {"numbers", "texts"}:
        return "mixed"
    return held.pop() if len(held) == 1 else "other"


def _sort_of_type(kind: type) -> Sort:
    if issubclass(kind, str):
        return "texts"
    if issubclass(kind, Real | Decimal | np.bool_):
        return "numbers"
    if issubclass(kind, date | time | timedelta | np.datetime64 | np.timedelta64):
        return "times"
    return "other"


def texts_of(values: "pandas.Series[Any]") -> "pandas.Series[Any]":
    """Return the values as texts without spaces around them."""
    return values.astype(str).str.strip()


def numbers_of(values: "pandas.Series[Any]", style: Style) -> NDArray[np.float64]:
    """Return the numbers of a column [N]; NaN for values that are no numbers."""
    pd = pandas_module()
    if pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_bool_dtype(values.dtype):
        numbers: NDArray[np.float64] = values.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    codes, kinds = pd.factorize(values.astype(object))
    numbers_of_kinds = [_number_of(kind, style) for kind in kinds]
    read = np.array([*numbers_of_kinds, np.nan], dtype=np.float64)  # the last one for code -1
    return np.asarray(read[codes])


def _number_of(value: Any, style: Style) -> float:
    if isinstance(value, str):
        return style.number(value)
    if isinstance(value, Real | Decimal | np.bool_):
        return float(value)
    return float("nan")


def missing_of(
    values: "pandas.Series[Any]",
    *,
    vague: bool = False,
    marks: Sequence[Any] = (),
) -> NDArray[np.bool_]:
    """Return a mask [N] of a column's missing values.

    Parameters
    ----------
    values : Series
        Values of the column.
    vague : bool
        Whether words like "unknown" count as missing, as they do among numbers.
    marks : sequence
        Numbers and texts declared to mean missing in this column.
    """
    absent: NDArray[np.bool_] = values.isna().to_numpy(dtype=bool) | marked(values, marks)
    if sort_of(values) in ("texts", "mixed"):
        codes, kinds = pandas_module().factorize(values.astype(object))
        are_gaps = [isinstance(kind, str) and is_gap(kind, vague=vague) for kind in kinds]
        gaps = np.array([*are_gaps, True], dtype=bool)  # the last one for code -1
        absent |= gaps[codes]
    return absent


def marked(values: "pandas.Series[Any]", marks: Sequence[Any]) -> NDArray[np.bool_]:
    """Return a mask [N] of the values that equal one of the marks, as text or as number."""
    found = np.zeros(len(values), dtype=bool)
    if not len(marks) or sort_of(values) not in ("numbers", "texts", "mixed"):
        return found
    texts = texts_of(values)
    numbers = numbers_of(values, PLAIN)
    for mark in marks:
        is_text = (texts == str(mark).strip()).to_numpy(dtype=bool)
        found |= is_text | (numbers == _number_of(mark, PLAIN))
    return found


def bare(text: str) -> str:
    """Return a text without surrounding spaces and invisible characters, such as zero-width spaces."""
    if text.isascii():
        return text.strip()
    seen = [sign for sign in text if category(sign) != "Cf"]
    return "".join(seen).strip()


def is_gap(text: str, *, vague: bool = False) -> bool:
    """Whether a text means a missing value; with `vague` also words like "unknown"."""
    stripped = bare(text)
    return stripped in MISSING or (vague and stripped.casefold() in VAGUE)


def is_time(text: str) -> bool:
    """Whether a text is a date, a time of day, or a duration."""
    return _DATES.fullmatch(text.strip()) is not None


def nearly_number(text: str, style: Style) -> str:
    """Return the reason why a text that looks like a number is not read as one; "" if it does not look like one."""
    stripped = bare(text)
    if is_time(stripped):
        return ""
    if stripped != text.strip() and style.reads(stripped):
        return "has a character that nobody sees: write the number alone"
    keys: dict[str, str] = {}  # by number, the keys under which it would be read
    for other in reversed(STYLES):
        if other.reads(stripped):
            keys[f"{other.number(stripped):.15g}"] = _keys_of(other)
    if keys:
        read = ", or ".join(f"{number} with {key}" for number, key in keys.items())
        return f"is no number where {_keys_of(style)}; it is {read}"
    plain = _of_a_keyboard(stripped)
    if plain != stripped and is_number(plain):
        return "has a minus sign or digits that are not those of a keyboard: write -0123456789"
    for problem, pattern in _NEARLY.items():
        flags = re.IGNORECASE if problem == "is infinite" else 0
        if re.fullmatch(pattern, stripped, flags):
            return f"{problem}: write the number alone"
    return ""


def _of_a_keyboard(text: str) -> str:
    """Replace unusual digits and minus signs of a text by those of a keyboard."""
    signs: list[str] = []
    for sign in normalize("NFKC", text):
        signs.append(str(digit(sign)) if sign.isdigit() else sign)
    return "".join(signs).replace("\u2212", "-").replace("\u2013", "-")


def _keys_of(style: Style) -> str:
    """Return the configuration keys with which numbers of this form are read."""
    thousands = f", data.thousands = {style.thousands!r}" if style.thousands else ""
    return f"data.decimal = {style.decimal!r}{thousands}"


def plain_form(value: Any) -> Any:
    """Return a value without accidental differences: case, spaces, signs between words, forms of accents and numbers."""
    if not isinstance(value, str):
        return value
    text = " ".join(normalize("NFKC", bare(value)).casefold().split())
    if len(text) > 2 and text[0] == text[-1] and text[0] in QUOTES:
        text = text[1:-1].strip()
    with suppress(InvalidOperation):
        number = Decimal(text)
        return number if number.is_finite() else text
    without_apostrophes = text.replace("\u2019", "'").replace("'", "")
    return " ".join(_JOINTS.sub(" ", without_apostrophes).split())


def spelt_twice(
    values: Iterable[Any], form: Callable[[Any], Any] = plain_form
) -> tuple[Any, Any] | None:
    """Return the first two different values that have the same form; None if there are none."""
    seen: dict[Any, Any] = {}
    for value in values:
        first = seen.setdefault(form(value), value)
        if first != value:
            return first, value
    return None
