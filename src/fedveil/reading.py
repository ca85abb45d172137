"""Parsing of TOML and JSON from other parties, with a limit on nesting so that parsers cannot exhaust the stack."""

import json
import re
import tomllib
from typing import Any, TypeVar

T = TypeVar("T")

DEEPEST = 64  # tables and lists within each other

# dotted keys: TOML's parser takes time and memory quadratic in their length
_DOTTED = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]+[ \t]*\.[ \t]*){{{DEEPEST}}}""")


def toml_of(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises
    ------
    tomllib.TOMLDecodeError
        If the text is no TOML, or nested deeper than `DEEPEST` levels.
    """
    try:
        if _DOTTED.search(text):
            raise RecursionError
        return _shallow(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        if "\\" not in text:
            raise
        hint = "between double quotes a backslash begins an escape: in a path write / or 'single quotes'"
        raise tomllib.TOMLDecodeError(f"{error}; {hint}") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise tomllib.TOMLDecodeError(str(error)) from error
    except RecursionError:
        raise tomllib.TOMLDecodeError(f"nested deeper than {DEEPEST} levels") from None


def json_of(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises
    ------
    ValueError
        If the text is no JSON, or nested deeper than `DEEPEST` levels.
    """
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None


def _shallow(value: T) -> T:
    """Return a value, after refusing one nested deeper than `DEEPEST` levels."""
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        deeper = False
        for one in level:
            if isinstance(one, dict | list):
                deeper = True
                below += one.values() if isinstance(one, dict) else one
        if not deeper:
            return value
        level = below
    raise RecursionError
