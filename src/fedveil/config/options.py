"""Keys whose owner is named in the same section: a data source's options, a rule's fields, a method's parameters."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedveil.errors import FedVeilError, FieldError, nearest

_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)

# What pydantic's kinds of error mean to the person who wrote the file.
_ACCEPTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a text in quotes",
    "missing": "is needed",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "is_instance_of": "must be a list",
    "model_type": "must be a table with keys of its own",
    "dataclass_exact_type": "must be a table with keys of its own",
    "dict_type": "must be a table with keys of its own",
    "too_short": "has too few entries",
    "too_long": "has too many entries",
}


# Tables as others call them.
_MEANT = dict.fromkeys(("training", "train", "trainer", "optimizer", "client"), "local") | {
    **dict.fromkeys(("dp", "differential_privacy", "noise"), "privacy"),
    **dict.fromkeys(("dataset", "partition", "clients"), "data"),
    **dict.fromkeys(("server", "strategy", "aggregation"), "aggregator"),
    "network": "model",
}


class ConfigError(FedVeilError, ValueError):
    """A configuration that cannot be used.

    Parameters
    ----------
    problems : sequence of FieldError
        Every one that was found; the message has one line for each.
    """

    def __init__(self, problems: Sequence[FieldError]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Option:
    """One key that an owner accepts: its type and its default (None: it has to be given, or means nothing)."""

    hint: Any
    default: Any = None

    @property
    def is_tuple(self) -> bool:
        """Whether the core wants a tuple where TOML only has lists."""
        return get_origin(self.hint) is tuple

    @property
    def table(self) -> type[Any] | None:
        """The dataclass that the key may hold as a table of its own."""
        return next((h for h in (self.hint, *get_args(self.hint)) if isinstance(h, type) and is_dataclass(h)), None)


def options_of(owner: Callable[..., Any], without: Sequence[str] = ()) -> dict[str, Option]:
    """The keyword parameters of a function or a dataclass.

    Parameters
    ----------
    owner : callable
        Annotated.
    without : sequence of str
        Names that are not for the configuration.
    """
    return {name: option for name, option in _options(owner).items() if name not in without}


@cache
def _options(owner: Callable[..., Any]) -> Mapping[str, Option]:
    owner = inspect.unwrap(owner)
    hints = get_type_hints(owner)
    options = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            default = None if parameter.default is parameter.empty else parameter.default
            options[name] = Option(hints.get(name, Any), plain(default))
    return options


def check_options(
    section: str, owner: str, given: Mapping[str, Any], accepted: Mapping[str, Option], beside: Sequence[str] = ()
) -> dict[str, Any]:
    """Check keys and types and fill in defaults; `beside` are other keys of the section, for the hint.

    Raises
    ------
    ConfigError
        Naming every key that the owner does not have, and every value of a wrong type.
    """
    problems: list[FieldError] = []
    values = {name: option.default for name, option in accepted.items() if option.default is not None}
    for key, value in given.items():
        if key not in accepted:
            hint = nearest(key, [*accepted, *beside]) if accepted or beside else "it has no options"
            problems.append(FieldError(f"{section}.{key}", value, f"is no key of {owner}; {hint}"))
            continue
        table = accepted[key].table
        if table is not None and isinstance(value, Mapping):
            values[key] = check_options(f"{section}.{key}", table.__name__, value, options_of(table))
            continue
        try:
            adapter = TypeAdapter(accepted[key].hint, config=_STRICT)
            as_written = accepted[key].is_tuple and isinstance(value, list)
            values[key] = plain(adapter.validate_python(tuple(value) if as_written else value))
        except ValidationError as error:
            problems += problems_of(error, f"{section}.{key}")
    if problems:
        raise ConfigError(problems)
    return values


def with_tables(owner: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Checked values with tables turned into what they stand for, and lists into tuples where those are meant."""
    made = {}
    for key, value in values.items():
        table = owner[key].table
        made[key] = table(**value) if table is not None and isinstance(value, Mapping) else value
        if owner[key].is_tuple:
            made[key] = tuple(value)
    return made


def plain(value: Any) -> Any:
    """Tuples as lists: what a value is after a round trip through TOML."""
    return [plain(v) for v in value] if isinstance(value, tuple | list) else value


def problems_of(
    error: ValidationError, prefix: str = "", known: Callable[[str], Sequence[str]] | None = None
) -> list[FieldError]:
    """Translate pydantic's errors: one FieldError each, naming key, value and what is accepted.

    Parameters
    ----------
    error : ValidationError
        What pydantic found.
    prefix : str
        Where the value stands.
    known : callable, optional
        ``section -> names`` of the keys that exist there.
    """
    problems: list[FieldError] = []
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            problems += cause.problems
            continue
        if isinstance(cause, FieldError):
            problems.append(cause)
            continue
        field = _dotted(prefix, item["loc"])
        kind, value = item["type"], item["input"]
        if kind == "extra_forbidden":
            names = known(field.rpartition(".")[0]) if known else ()
            meant = _MEANT.get(field)
            hint = f"write [{meant}]" if meant else nearest(field.rpartition(".")[2], names)
            accepted = f"is no key here; {hint}" if names else "is no key here"
        elif kind == "literal_error":
            choices = re.findall(r"'([^']*)'", item["ctx"]["expected"])
            accepted = nearest(str(value), choices)
        else:
            accepted = _ACCEPTED.get(kind, item["msg"])
        problems.append(FieldError(field, "missing" if kind == "missing" else value, accepted))
    return problems[:1] if prefix else problems  # a union reports once for each of its members


@contextmanager
def fields_of(section: str, **renamed: str) -> Iterator[None]:
    """Name the configuration's key in a refusal of the core.

    Parameters
    ----------
    section : str
        Where the core's fields stand in the file.
    **renamed
        Fields that stand elsewhere, with their whole path.
    """
    try:
        yield
    except FieldError as error:
        name = error.field.split("[")[0]
        if not name.isidentifier():  # a whole path already, or a place in somebody's file
            raise
        field = renamed.get(name, f"{section}.{error.field}")
        raise FieldError(field, error.value, error.accepted) from error


def _dotted(prefix: str, parts: Sequence[int | str]) -> str:
    text = prefix
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not prefix:  # below a prefix, a name is only pydantic's word for the member of a union
            text += f".{part}" if text else part
    return text
