"""Write TOML (the standard library only reads it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from fedveil.errors import FieldError


def dumps(table: Mapping[str, Any]) -> str:
    """Write a table as TOML; None is left out, as TOML has no such value.

    Raises
    ------
    FieldError
        For a value that TOML does not know.
    """
    try:
        return tomli_w.dumps(_written(table))
    except TypeError as error:
        raise FieldError("TOML", type(table).__name__, f"cannot be written: {error}") from error


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _written(one) for key, one in value.items() if one is not None}
    return [_written(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
