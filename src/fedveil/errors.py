"""Errors and basic checks: every refusal names the field, the value and what is accepted."""

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from fedveil.units import WORDS, unit_meant

MOST_WORKERS, MOST_ROUNDS, MOST_HYPOTHESES = 1024, 1_000_000, 10_000
_LARGEST = 2**63 - 1  # largest integer that other libraries take


class FedVeilError(Exception):
    """Base of every error that FedVeil raises on purpose.

    Examples
    --------
    >>> try:
    ...     fv.Federation(model=model, clients=[])
    ... except fv.FedVeilError as error:
    ...     print(type(error).__name__)
    FieldError
    """


class FieldError(FedVeilError, ValueError):
    """A value that cannot be used.

    Parameters
    ----------
    field : str
        Name of the field, as the user wrote it.
    value : object
        Value that was given; None if it is missing.
    accepted : str
        Values that are accepted, and the fix where there is one.

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
    """A request for the epsilon of a release that satisfies no definition of privacy."""


class ReplyError(FedVeilError, ValueError):
    """A client's reply that the server cannot use (wrong shape, NaN, missing model)."""


class BudgetError(FedVeilError):
    """A release beyond the server's own privacy budget: the run stops with the last released model."""


class NoReplyError(FedVeilError):
    """A round without a single valid reply."""


class LedgerError(FedVeilError, ValueError):
    """A ledger that was edited, shortened, or belongs to another run."""


def cleaned(text: object, most: int = 200, keep: str = "") -> str:
    """Make another party's words safe for a log, a terminal or a ledger: one line, escaped and cut.

    Line breaks, control characters and invisible characters are escaped, and so are those that turn the direction of
    a line.

    Parameters
    ----------
    text : object
        Words of the other party.
    most : int
        Characters that are kept.
    keep : str
        Characters that stay as they are.
    """
    short = str(text)[: most + 1]
    shown = "".join(_escaped(sign, keep) for sign in short[:most])
    return shown + ("..." if len(short) > most else "")


def _escaped(sign: str, keep: str) -> str:
    if sign.isprintable() or sign in keep:
        return sign
    return sign.encode("unicode_escape").decode("ascii")


def damaged(field: str, file: object, error: Exception, fix: str) -> FieldError:
    """Make the refusal of a file that cannot be read.

    Parameters
    ----------
    field : str
        What the file holds, or the option that named it.
    file : path or str
        The file, with its line where that is known.
    error : Exception
        The reason; a `KeyError` names what the file lacks.
    fix : str
        What to do.
    """
    why = f"{error} is missing" if isinstance(error, KeyError) else error
    return FieldError(field, str(file), f"cannot be read ({why}); {fix}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Say what the accepted names are, and which one was probably meant.

    Parameters
    ----------
    word : str
        What was written.
    known : iterable of str
        The names that exist.

    Returns
    -------
    str
        A phrase for an error message.
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
    """Return `value` as a float, refusing all but finite positive numbers."""
    return require_number(field, value, lambda v: v > 0, "must be a finite number above 0")


def require_non_negative(field: str, value: Any) -> float:
    """Return `value` as a float, refusing all but finite numbers of at least 0."""
    return require_number(field, value, lambda v: v >= 0, "must be a finite number of at least 0")


def require_count(field: str, value: Any, least: int = 1, most: int = _LARGEST) -> int:
    """Return `value` as an int, refusing all but whole numbers of at least `least` and at most `most`."""
    if isinstance(value, bool) or not _is_real(value) or value != int(value) or value < least:
        raise FieldError(field, value, f"must be a whole number of at least {least}")
    if value > most:
        raise FieldError(field, value, f"must be at most {most:,}")
    return int(value)


def require_rounds(field: str, value: Any) -> int:
    """Return a number of rounds, refusing an absent one and more than anybody trains."""
    if value is None:
        raise FieldError(field, None, "say how many there are to be, as in run(rounds=20)")
    return require_count(field, value, most=MOST_ROUNDS)


def require_hypotheses(field: str, value: Any) -> int:
    """Return a number of hypotheses, refusing more than anybody broadcasts."""
    return require_count(field, value, most=MOST_HYPOTHESES)


def require_workers(field: str, value: Any) -> int:
    """Return a number of threads or processes, refusing more than a machine runs."""
    return require_count(field, value, most=MOST_WORKERS)


def require_choice(field: str, value: str, choices: Iterable[str]) -> str:
    """Return `value`, refusing all but `choices`."""
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
    """Refuse a value of another type; the refusal names its type, or the class itself."""
    if isinstance(value, kind):
        return
    raise FieldError(field, kind_of(value), accepted)


def kind_of(value: Any) -> str | None:
    """Name the type of a value, or the class that was given, for a refusal; None stands for an absent value."""
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
    """Return `value` as a float, refusing all but finite numbers that are `ok`."""
    if isinstance(value, bool) or not _is_real(value) or not ok(float(value)):
        raise FieldError(field, value, accepted)
    return float(value)
