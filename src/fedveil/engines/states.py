"""Conversion of states (dataclasses) to flat dictionaries, for checkpoints and message records."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from fedveil.errors import FieldError, kind_of

PlainValue = int | float | str | bool


def pack(state: Any, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, PlainValue]]:
    """Split a state dataclass into tensors and plain values by dotted path; None values are left out.

    Raises
    ------
    FieldError
        If a field holds any other value.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, PlainValue] = {}
    for f in fields(state):
        key, value = f"{prefix}{f.name}", getattr(state, f.name)
        if is_dataclass(value):
            inner_tensors, inner_values = pack(value, f"{key}.")
            tensors |= inner_tensors
            values |= inner_values
        elif isinstance(value, Tensor):
            tensors[key] = value
        elif isinstance(value, PlainValue):
            values[key] = value
        elif value is not None:
            raise FieldError(
                key, kind_of(value), "a state holds tensors, plain values, None or states"
            )
    return tensors, values


def unpack(
    template: Any, tensors: dict[str, Tensor], values: dict[str, PlainValue], prefix: str = ""
) -> Any:
    """Rebuild a state from the result of `pack`; `template` is a fresh state of the same class."""
    changes: dict[str, Any] = {}
    for f in fields(template):
        key, fresh = f"{prefix}{f.name}", getattr(template, f.name)
        if is_dataclass(fresh):
            changes[f.name] = unpack(fresh, tensors, values, f"{key}.")
        elif key in tensors:
            changes[f.name] = tensors[key]
        else:
            changes[f.name] = values.get(key)
    return replace(template, **changes)
