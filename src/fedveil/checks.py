"""Checks of values by their field's type, so that each condition is written once.

They are used for configurations, and for parameters of methods, rules, behaviours and training. They apply equally to
values from a file, from Flower, from FLARE and from Python.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import Parameter, signature
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fedveil.errors import (
    FieldError,
    kind_of,
    nearest,
    require_choice,
    require_count,
    require_hypotheses,
    require_non_negative,
    require_number,
    require_positive,
    require_rounds,
    require_workers,
)
from fedveil.ranges import require_within
from fedveil.units import accepted_units, unit_meant

F = TypeVar("F", bound=Callable[..., Any])
Require = Callable[[str, Any], object]
FieldRule = tuple[
    str, tuple[type, ...], Require
]  # a field's name, types that always pass, the check of all others


@dataclass(frozen=True)
class Check:
    """Check attached to an ``Annotated`` type: `require` takes a field's name and value, and refuses invalid values."""

    require: Require


def require_share(field: str, value: Any) -> float:
    """Return a number as a float; it must be above 0 and at most 1."""
    return require_number(field, value, lambda v: 0 < v <= 1, "must be above 0 and at most 1")


def require_unit_interval(field: str, value: Any) -> float:
    """Return a number as a float; it must be from 0 to 1."""
    return require_number(field, value, lambda v: 0 <= v <= 1, "must be in [0, 1]")


def require_fraction(field: str, value: Any) -> float:
    """Return a number as a float; it must be at least 0 and below 1."""
    return require_number(field, value, lambda v: 0 <= v < 1, "must be at least 0 and below 1")


def require_finite(field: str, value: Any) -> float:
    """Return a number as a float; it must be finite."""
    return require_number(field, value, math.isfinite, "must be a finite number")


def require_names(field: str, values: Any, known: Iterable[str] | None = None) -> None:
    """Refuse anything but a list of names (of `known` names, if these are given)."""
    named = isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)
    if not named:
        raise FieldError(field, values, 'must be a list of names, such as ["local"]')
    if known is None:
        return
    for value in values:
        require_choice(field, value, known)


def require_text(field: str, value: Any) -> None:
    """Refuse anything but a text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise FieldError(field, value, "must be a text in quotes")


def require_unit(field: str, value: Any, units: Iterable[str]) -> str:
    """Return the unit of privacy for an everyday word: "person" for "patient", "client" for "hospital".

    Raises
    ------
    FieldError
        For a word without a known meaning among `units`.
    """
    known = list(units)
    if value in known:
        return str(value)
    meant = unit_meant(value)
    if meant not in known:
        raise FieldError(field, value, f"must be one of: {accepted_units(known)}")
    return meant


def require_whole(field: str, value: Any, least: int = 1) -> int:
    """Return a number that must be of type int and at least `least`; 3.0 is refused."""
    if type(value) is not int:
        raise FieldError(field, value, "must be a whole number")
    return require_count(field, value, least=least)


Whole = Annotated[int, Check(require_whole)]
Names = Annotated[Sequence[str], Check(require_names)]
Text = Annotated[str, Check(require_text)]
Positive = Annotated[float, Check(require_positive)]
NonNegative = Annotated[float, Check(require_non_negative)]
UnitInterval = Annotated[float, Check(require_unit_interval)]
Blank = Annotated[float, Check(require_finite)]
Share = Annotated[float, Check(require_share)]
Fraction = Annotated[float, Check(require_fraction)]
Count = Annotated[int, Check(require_count)]
Natural = Annotated[int, Check(partial(require_count, least=0))]
Rounds = Annotated[int, Check(require_rounds)]
Hypotheses = Annotated[int, Check(require_hypotheses)]
Workers = Annotated[int, Check(require_workers)]

# Kinds with limits of their own: `fedveil.ranges`
Clip = Annotated[float, Check(partial(require_within, "clip"))]
Radius = Annotated[float, Check(partial(require_within, "radius"))]
NoiseLevel = Annotated[float, Check(partial(require_within, "noise multiplier"))]
EventNoise = Annotated[float, Check(partial(require_within, "noise of an event"))]
EventShift = Annotated[float, Check(partial(require_within, "shift of an event"))]
NumberNoise = Annotated[float, Check(partial(require_within, "noise of one number"))]
Rate = Annotated[float, Check(partial(require_within, "rate"))]
Epsilon = Annotated[float, Check(partial(require_within, "epsilon"))]
Delta = Annotated[float, Check(partial(require_within, "delta"))]
Mu = Annotated[float, Check(partial(require_within, "mu"))]
Slope = Annotated[float, Check(partial(require_within, "mu per distance"))]
Limit = Annotated[float, Check(partial(require_within, "limit"))]
SumRate = Annotated[float, Check(partial(require_within, "learning rate of a sum"))]
PlannedUnits = Annotated[float, Check(partial(require_within, "planned units"))]
MetricRange = Annotated[float, Check(partial(require_within, "range of a metric"))]
Steps = Annotated[int, Check(partial(require_within, "steps"))]
SilosOfPerson = Annotated[int, Check(partial(require_within, "silos of a person"))]
RecordsOfPerson = Annotated[int, Check(partial(require_within, "records of a person"))]


class Parameters:
    """Base class of parameter dataclasses: it refuses misspelt names, and values that do not fit their field's type."""

    section: ClassVar[str] = ""  # errors name it before the field

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """Check the names of the arguments, and the number of those without a name."""
        refuse_unknown(cls.__init__, named, cls.section)
        if given:
            refuse_unnamed(cls.__name__, cls.__init__, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the values. A subclass with further checks calls this first."""
        kind: Any = type(self)
        check_values(self, _of_dataclass(kind), self.section)


def suggesting(function: F) -> F:
    """Decorator of a method: wrong, missing and unnamed keyword arguments, and values of a wrong type, are refused."""
    owner = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        refuse_unknown(function, named)
        refuse_unnamed(owner, function, arguments[1:])
        _refuse_absent(owner, function, named)
        rules = [rule for rule in _of_function(function) if rule[0] in named]
        check_values(SimpleNamespace(**named), rules)
        return function(*arguments, **named)

    return call  # type: ignore[return-value]


def _refuse_absent(owner: str, function: Callable[..., Any], named: Mapping[str, Any]) -> None:
    """Refuse a call without a required keyword argument."""
    for name, parameter in (_names(function) or {}).items():
        needed = parameter.kind is Parameter.KEYWORD_ONLY and parameter.default is Parameter.empty
        if needed and name not in named:
            raise FieldError(name, None, f"it is needed: {owner}({name}=..., ...)")


def refuse_unknown(
    function: Callable[..., Any], named: Mapping[str, Any], section: str = ""
) -> None:
    """Refuse unknown keyword arguments of a function; the error names the nearest known one."""
    known = _names(function) if named else None
    if known is None or named.keys() <= known.keys():
        return
    name = next(name for name in named if name not in known)
    others = [other for other in known if other != "self"]
    kind = kind_of(named[name]) or "None"  # it was given, and is not missing
    raise FieldError(within(section, name), kind, f"is no argument; {nearest(name, others)}")


def refuse_unnamed(owner: str, function: Callable[..., Any], given: Sequence[Any]) -> None:
    """Refuse positional arguments that a method does not take."""
    known = _names(function)
    if known is None:
        return
    kinds = [parameter.kind for parameter in known.values()]
    if Parameter.VAR_POSITIONAL in kinds:
        return
    places = len(kinds) - kinds.count(Parameter.KEYWORD_ONLY) - 1  # self has one, too
    if len(given) > places:
        first = given[places]
        kind = first if isinstance(first, type) else type(first)
        named = ", ".join(f"{name}=..." for name in known if name != "self")
        accepted = (
            f"has no place without a name: write {owner}({named}), as many of these as you need"
        )
        raise FieldError(owner, kind.__name__, accepted)


def within(section: str, name: str) -> str:
    """Return a field's name for errors, with its section: ``section.name``."""
    return f"{section}.{name}" if section else name


@cache
def _names(function: Callable[..., Any]) -> dict[str, Parameter] | None:
    """Return the parameters of a function by name; None if it accepts any keyword."""
    known = dict(signature(function).parameters)
    kinds = {parameter.kind for parameter in known.values()}
    return None if Parameter.VAR_KEYWORD in kinds else known


def check_values(owner: object, rules: Iterable[FieldRule], section: str = "") -> None:
    """Check an object's fields by their rules; an error names the field with its section."""
    for name, others, require in rules:
        value = getattr(owner, name)
        if not isinstance(value, others):
            require(within(section, name), value)


def rules_of(hints: Iterable[tuple[str, Any]]) -> list[FieldRule]:
    """Derive the rules of fields from their types: a `Check` in ``Annotated``, a ``Literal``, a bool, `Parameters`.

    In a union such as ``Positive | None``, values of the other members are accepted.
    """
    rules: list[FieldRule] = []
    for name, hint in hints:
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        others = tuple(member for member in members if isinstance(member, type))
        for member in members:
            rules += [(name, others, require) for require in _required_by(member)]
        only_types = len(others) == len(members)
        if only_types and (others[0] is bool or issubclass(others[0], Parameters)):
            rules.append((name, others, partial(_of_kind, others)))
    return rules


def _required_by(member: Any) -> list[Require]:
    """Return the checks for one member of a union type."""
    if get_origin(member) is Literal:
        return [partial(require_choice, choices=get_args(member))]
    marks = getattr(member, "__metadata__", ())
    return [mark.require for mark in marks if isinstance(mark, Check)]


def _of_kind(kinds: tuple[type, ...], name: str, value: Any) -> None:
    if bool in kinds:
        raise FieldError(name, value, "must be true or false")
    calls = [f"{kind.__name__}(...)" for kind in kinds if kind is not type(None)]
    raise FieldError(name, value, f"must be {' or '.join(calls)} (in TOML, a table)")


@cache
def _of_dataclass(owner: type[Any]) -> list[FieldRule]:
    return rules_of(get_type_hints(owner, include_extras=True).items())


@cache
def _of_function(function: Callable[..., Any]) -> list[FieldRule]:
    return rules_of(get_type_hints(function, include_extras=True).items())
