"""Tables of a configuration: their keys, the checks of values, and writing them as TOML."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedveil.checks import FieldRule, check_values, rules_of
from fedveil.errors import FedVeilError, FieldError, kind_of, nearest

_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)

# What pydantic's kinds of error mean to the person who wrote the file.
_ACCEPTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a text in quotes",
    "missing": "it is needed",
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


class UnknownKeyError(FieldError):
    """A table holds a key that it does not know."""


class ConfigError(FedVeilError, ValueError):
    """The configuration cannot be used.

    Parameters
    ----------
    problems : sequence of FieldError
        All problems; the message has one line for each.
    """

    def __init__(self, problems: Sequence[FieldError]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Option:
    """One key of a table: its type and its default (None: required, or without a value)."""

    hint: Any
    default: Any = None

    @property
    def is_tuple(self) -> bool:
        """Whether the library expects a tuple; TOML has lists only."""
        return get_origin(self.hint) is tuple

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Pydantic checker of this type; it is cached, as making one takes far longer than a check."""
        return TypeAdapter(self.hint, config=_STRICT)

    @property
    def table(self) -> type[Any] | None:
        """Dataclass that the key may hold as a nested table, or None."""
        for hint in (self.hint, *get_args(self.hint)):
            if isinstance(hint, type) and is_dataclass(hint):
                return hint
        return None


def options_of(owner: Callable[..., Any], without: Sequence[str] = ()) -> dict[str, Option]:
    """Return the keyword parameters of a function or dataclass as options of a table.

    Parameters
    ----------
    owner : callable
        Function or dataclass with type annotations.
    without : sequence of str
        Parameters that are not options of the configuration.
    """
    return {name: option for name, option in _options(owner).items() if name not in without}


@cache
def _options(owner: Callable[..., Any]) -> Mapping[str, Option]:
    owner = inspect.unwrap(owner)
    hints = get_type_hints(owner)
    options = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            if parameter.default is parameter.empty:
                default = None
            else:
                default = parameter.default
            options[name] = Option(hints.get(name, Any), plain(default))
    return options


def check_options(
    section: str,
    owner: str,
    given: Mapping[str, Any],
    accepted: Mapping[str, Option],
    beside: Sequence[str] = (),
) -> dict[str, Any]:
    """Check keys and types and fill in defaults; `beside` lists other keys of the section, for hints.

    Raises
    ------
    ConfigError
        If keys are unknown or values have a wrong type; the message names each.
    """
    problems: list[FieldError] = []
    values = {
        name: option.default for name, option in accepted.items() if option.default is not None
    }
    for key, value in given.items():
        if key not in accepted:
            hint = "it has no options"
            if accepted or beside:
                hint = nearest(key, [*accepted, *beside])
            problems.append(
                UnknownKeyError(f"{section}.{key}", value, f"is no key of {owner}; {hint}")
            )
            continue
        try:
            values[key] = _checked(f"{section}.{key}", accepted[key], value)
        except ValidationError as error:
            problems += problems_of(error, f"{section}.{key}")
    if problems:
        raise ConfigError(problems)
    return values


def _checked(field: str, option: Option, value: Any) -> Any:
    """Check one value; a nested table is checked key by key."""
    if option.table is not None and isinstance(value, Mapping):
        return check_options(field, option.table.__name__, value, options_of(option.table))
    if option.is_tuple and isinstance(value, list):
        value = tuple(value)
    return plain(option.adapter.validate_python(value))


def with_tables(owner: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn nested tables into objects, and lists into tuples if the owner expects tuples."""
    made = {}
    for key, value in values.items():
        table = owner[key].table
        if owner[key].is_tuple:
            made[key] = tuple(value)
        elif table is not None and isinstance(value, Mapping):
            made[key] = table(**value)
        else:
            made[key] = value
    return made


def plain(value: Any) -> Any:
    """Turn tuples into lists, as TOML would."""
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value


def problems_of(
    error: ValidationError, prefix: str = "", known: Callable[[str], Sequence[str]] | None = None
) -> list[FieldError]:
    """Translate each of pydantic's errors to a FieldError with key, value and accepted values.

    Parameters
    ----------
    error : ValidationError
        Pydantic's error.
    prefix : str
        Place of the value in the file.
    known : callable, optional
        Function from a section to the names of its keys.
    """
    problems: list[FieldError] = []
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        field, value = _dotted(prefix, item["loc"]), item["input"]
        if isinstance(cause, ConfigError):
            problems += cause.problems
        elif isinstance(cause, FieldError):
            problems.append(cause)
        elif item["type"] == "extra_forbidden":
            problems.append(_unknown_key(field, value, known))
        elif item["type"] == "literal_error":
            choices = re.findall(r"'([^']*)'", item["ctx"]["expected"])
            problems.append(FieldError(field, value, nearest(str(value), choices)))
        elif item["type"] == "missing":
            problems.append(FieldError(field, None, _ACCEPTED["missing"]))
        else:
            problems.append(FieldError(field, value, _ACCEPTED.get(item["type"], item["msg"])))
    if prefix:  # a union reports once for each of its members
        return problems[:1]
    return problems


def _unknown_key(
    field: str, value: Any, known: Callable[[str], Sequence[str]] | None
) -> UnknownKeyError:
    """Refuse an unknown key; the message names the table that has it, or the nearest key."""
    section, _, key = field.rpartition(".")
    names: Sequence[str] = ()
    if known:
        names = known(section)
    if not names:
        return UnknownKeyError(field, value, "is no key here")
    hint = nearest(key, names)
    if field in _MEANT:
        hint = f"write [{_MEANT[field]}]"
    return UnknownKeyError(field, value, f"is no key here; {hint}")


@contextmanager
def fields_of(section: str, **renamed: str) -> Iterator[None]:
    """Translate the field of a FieldError from the library to the configuration's key.

    Parameters
    ----------
    section : str
        Section of the file that holds the fields.
    **renamed
        Fields at other places, each with its full key.
    """
    try:
        yield
    except FieldError as error:
        name = error.field.split("[")[0]
        if name == "model.name" and ":" in str(
            error.value
        ):  # written as module = "package.module:Net"
            raise FieldError("model.module", error.value, error.accepted) from error
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


class Section(BaseModel):
    """Base class of the file's tables: immutable, and unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True
    )

    section: ClassVar[str] = ""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        check_values(self, _of_section(type(self)), self.section)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain values as in a file; None and empty values are left out."""
        values: dict[str, Any] = {}
        for name, value in self.model_dump(exclude_none=True).items():
            inner = getattr(self, name)
            if value not in ((), {}):
                values[name] = inner.to_dict() if isinstance(inner, Section) else value
        return values

    def differing(self) -> dict[str, Any]:
        """Return plain values of the keys that differ from their defaults."""
        own, differing = self.model_dump(), {}
        for name, info in type(self).model_fields.items():
            value, default = getattr(self, name), info.get_default(call_default_factory=True)
            if value is None or value == default:
                continue
            differing[name] = value.differing() if isinstance(value, Section) else own[name]
        return differing


class OpenSection(Section):
    """Table that names an entry (such as a model) and holds its options; they are checked and kept in `options`."""

    options: dict[str, Any] = Field(default_factory=dict)

    chooser: ClassVar[str] = "name"

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        """Return the keys that the named entry accepts."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _fold(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given, own = dict(values.get("options", {})), dict[str, Any]()
        for key, value in values.items():
            if key not in cls.model_fields:
                given[key] = value
            elif key != "options":
                own[key] = value
        name = own.get(cls.chooser, cls.model_fields[cls.chooser].default)
        if not isinstance(name, str):
            return own
        beside = [field for field in cls.model_fields if field != "options"]
        return {
            **own,
            "options": check_options(cls.section, repr(name), given, cls.accepted(name), beside),
        }

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        options = values.pop("options", {})
        return {**values, **options}

    def differing(self) -> dict[str, Any]:
        name = str(getattr(self, self.chooser))
        defaults = {key: option.default for key, option in self.accepted(name).items()}
        options = {key: value for key, value in self.options.items() if value != defaults[key]}
        return {**super().differing(), self.chooser: name, "options": options}


@cache
def _of_section(owner: type[Section]) -> list[FieldRule]:
    annotations: list[tuple[str, Any]] = []
    for name, info in owner.model_fields.items():
        annotation: Any = info.annotation
        if info.metadata:
            annotation = Annotated[annotation, *info.metadata]
        annotations.append((name, annotation))
    return rules_of(annotations)


def dumps(table: Mapping[str, Any]) -> str:
    """Write a table as TOML; None is left out, since TOML cannot write it.

    Raises
    ------
    FieldError
        For a value that TOML cannot write.
    """
    try:
        return tomli_w.dumps(_written(table))
    except TypeError as error:
        raise FieldError("TOML", kind_of(table), f"cannot be written: {error}") from error


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _written(one) for key, one in value.items() if one is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_written(one) for one in value]
    return value
