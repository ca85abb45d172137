"""Write TOML: the small part of it that a configuration needs (the standard library only reads it)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.errors import FieldError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """Write a table as TOML.

    Parameters
    ----------
    table : mapping
        Of strings, numbers, booleans, lists, tables, and lists of tables. None is left out: TOML has no such value.

    Returns
    -------
    str
        Text that ``tomllib.loads`` reads back to the same values.

    Raises
    ------
    FieldError
        For a value of another kind.
    """
    return "\n".join(_table(table, ())).strip() + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    later: list[str] = []
    for key, value in table.items():
        if value is None:
            continue
        where = (*path, key)
        header = ".".join(_key(part) for part in where)
        if isinstance(value, Mapping):
            later += ["", f"[{header}]", *_table(value, where)]
        elif _is_list(value) and value and all(isinstance(v, Mapping) for v in value):
            for item in value:
                later += ["", f"[[{header}]]", *_table(item, where)]
        else:
            lines.append(f"{_key(key)} = {_value(value, '.'.join(where))}")
    return lines + later


def _value(value: Any, field: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if _is_list(value):
        return "[" + ", ".join(_value(v, field) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v, field)}" for k, v in value.items()) + "}"
    raise FieldError(field, type(value).__name__, "cannot be written: use a string, number, boolean, list or table")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key, key)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
