"""Errors and basic checks. Every refusal names the field, the value, and what is accepted."""

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from fedveil.units import WORDS, unit_meant

MOST_WORKERS, MOST_ROUNDS, MOST_HYPOTHESES = 1024, 1_000_000, 10_000
_LARGEST = 2**63 - 1  # largest integer that other libraries take
_NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
)  # of PyTorch's allocators


class FedVeilError(Exception):
    """Base class of all errors that FedVeil raises on purpose.

    Examples
    --------
    >>> try:
    ...     fv.Federation(model=model, clients=[])
    ... except fv.FedVeilError as error:
    ...     print(type(error).__name__)
    FieldError
    """


def lacks_memory(error: BaseException) -> bool:
    """Whether an error of Python or PyTorch says that memory is not enough."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY)


class FieldError(FedVeilError, ValueError):
    """Error for a value that cannot be used; it names the field, the value, and what is accepted.

    Parameters
    ----------
    field : str
        Name of the field, as the user wrote it.
    value : object
        Value that was given; None if it is missing.
    accepted : str
        Accepted values, and the fix if there is one.

    Examples
    --------
    >>> try:
    ...     fv.GlobalDP(noise_multiplier=1.0, clip=-1.0)
    ... except fv.FieldError as error:
    ...     print(error.field, error.value)
    clip -1.0
    """

    def __init__(self, field: str, value: Any, accepted: str) -> None:
        said = "is missing" if value is None else f"= {cleaned(repr(value), 500)}"
        super().__init__(f"{cleaned(field)} {said}: {accepted}")
        self.field = field
        self.value = value
        self.accepted = accepted


class HeuristicError(FedVeilError, ValueError):
    """Error: an epsilon was requested of a release that satisfies no definition of privacy."""


class ReplyError(FedVeilError, ValueError):
    """Error: the server cannot use a client's reply (wrong shape, NaN, missing model)."""


class BudgetError(FedVeilError):
    """Error: a release would exceed a privacy budget. The run stops with the last released model."""


class NoReplyError(FedVeilError):
    """Error: a round has too few usable replies."""


class LedgerError(FedVeilError, ValueError):
    """Error: a ledger was edited, shortened, or belongs to another run."""


def cleaned(text: object, most: int = 200, keep: str = "") -> str:
    """Make another party's text safe for a log, a terminal or a ledger: one line, escaped and cut.

    Line breaks, control characters, invisible characters and changes of the writing direction are escaped.

    Parameters
    ----------
    text : object
        Text of the other party.
    most : int
        Largest number of characters.
    keep : str
        Characters that are not escaped.
    """
    short = str(text)[: most + 1]
    shown = "".join(_escaped(sign, keep) for sign in short[:most])
    return shown + ("..." if len(short) > most else "")


def _escaped(sign: str, keep: str) -> str:
    if sign.isprintable() or sign in keep:
        return sign
    return sign.encode("unicode_escape").decode("ascii")


def damaged(field: str, file: object, error: Exception, fix: str) -> FieldError:
    """Make the error for a file that cannot be read.

    Parameters
    ----------
    field : str
        Kind of the file, or the option that named it.
    file : path or str
        Path of the file, with the line if it is known.
    error : Exception
        Reason; a `KeyError` names a missing entry.
    fix : str
        Advice on what to do.
    """
    why = f"{error} is missing" if isinstance(error, KeyError) else error
    return FieldError(field, str(file), f"cannot be read ({why}); {fix}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Make a phrase for errors with the accepted names, and the one that was probably meant.

    Parameters
    ----------
    word : str
        Name that the user wrote.
    known : iterable of str
        Accepted names.

    Returns
    -------
    str
        Phrase for an error message.
    """
    names = sorted(known, key=_numbers_first)
    meant = unit_meant(word)
    if meant and not set(names).isdisjoint(
        WORDS
    ):  # letters alone would name another unit, perhaps a weaker one
        close = [meant] if meant in names else []
    else:
        close = [name for name in names if len(word) > 2 and name.startswith(word)]
        close = close or get_close_matches(word, names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}accepted: {', '.join(names)}"


def _numbers_first(name: str) -> tuple[bool, int, str]:
    """Return a sorting key: numbers by value, then other names."""
    if name.isdigit():
        return False, int(name), name
    return True, 0, name


def require_positive(field: str, value: Any) -> float:
    """Return a number as a float; it must be finite and above 0."""
    return require_number(field, value, lambda v: v > 0, "must be a finite number above 0")


def require_non_negative(field: str, value: Any) -> float:
    """Return a number as a float; it must be finite and at least 0."""
    return require_number(field, value, lambda v: v >= 0, "must be a finite number of at least 0")


def require_count(field: str, value: Any, least: int = 1, most: int = _LARGEST) -> int:
    """Return a number as an int; it must be a whole number from `least` to `most`."""
    if isinstance(value, bool) or not _is_real(value) or value != int(value) or value < least:
        raise FieldError(field, value, f"must be a whole number of at least {least}")
    if value > most:
        raise FieldError(field, value, f"must be at most {most:,}")
    return int(value)


def require_rounds(field: str, value: Any) -> int:
    """Return a number of rounds; it must be given, at least 1 and at most `MOST_ROUNDS`."""
    if value is None:
        raise FieldError(field, None, "say how many there are to be, as in run(rounds=20)")
    return require_count(field, value, most=MOST_ROUNDS)


def require_hypotheses(field: str, value: Any) -> int:
    """Return a number of hypotheses, from 1 to `MOST_HYPOTHESES`."""
    return require_count(field, value, most=MOST_HYPOTHESES)


def require_workers(field: str, value: Any) -> int:
    """Return a number of threads or processes, from 1 to `MOST_WORKERS`."""
    return require_count(field, value, most=MOST_WORKERS)


def require_choice(field: str, value: str, choices: Iterable[str]) -> str:
    """Return a name, after checking that it is one of `choices`."""
    names = list(choices)
    if value not in names:
        raise FieldError(field, value, nearest(str(value), filter(None, names)))
    return value


def require_a(
    field: str,
    value: Any,
    kind: type | tuple[type, ...],
    accepted: str,
) -> None:
    """Refuse a value of another type; the refusal names its type."""
    if isinstance(value, kind):
        return
    raise FieldError(field, kind_of(value), accepted)


def kind_of(value: Any) -> str | None:
    """Return the name of a value's type (or of the value, if it is a class) for refusals; None for an absent value."""
    if value is None:
        return None
    kind: type = value if isinstance(value, type) else type(value)
    return kind.__name__


def _is_real(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def require_number(
    field: str,
    value: Any,
    ok: Callable[[float], bool],
    accepted: str,
) -> float:
    """Return a number as a float; it must be finite, and `ok` must accept it."""
    if isinstance(value, bool) or not _is_real(value) or not ok(float(value)):
        raise FieldError(field, value, accepted)
    return float(value)
