"""Find the sections that have a key of a given name, to tell a user who wrote it elsewhere."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from fedveil.errors import FedVeilError, FieldError
from fedveil_lab.config.tables import OpenSection, Section, UnknownKeyError


def places_of(key: str) -> list[str]:
    """List the full names of keys that end with `key`: "epsilon" gives ``privacy.epsilon`` and ``privacy.budget.epsilon``."""
    return sorted(_places().get(key, ()))


def with_place(problem: FieldError) -> FieldError:
    """Add to a refusal of an unknown key the full names of keys with the same last part, if there are any."""
    if not isinstance(problem, UnknownKeyError) or isinstance(problem.value, Mapping):
        return problem
    places = [
        place for place in places_of(problem.field.rpartition(".")[2]) if place != problem.field
    ]
    if not places:
        return problem
    what = problem.accepted.partition(";")[0]
    return UnknownKeyError(problem.field, problem.value, f"{what}; write {' or '.join(places)}")


@cache
def _places() -> Mapping[str, set[str]]:
    from fedveil_lab.config.experiment import Config

    places: dict[str, set[str]] = {}
    for name in _names(Config, ""):
        places.setdefault(name.rpartition(".")[2], set()).add(name)
    return places


def _names(section: type[Any], prefix: str) -> Iterator[str]:
    """Yield the keys of a section and of its subsections, including the options of everything that can be named there."""
    if issubclass(section, OpenSection):
        yield from (f"{prefix}{option}" for option in _options(section))
    named = (
        section.model_fields
        if issubclass(section, Section)
        else {f.name: f for f in fields(section)}
    )
    for name, field in named.items():
        if name == "options":
            continue
        yield f"{prefix}{name}"
        inner = getattr(field, "annotation", None)
        for table in _tables(inner):
            yield from _names(table, f"{prefix}{name}.")


def _tables(annotation: Any) -> Iterator[type[Any]]:
    """Yield the sections and dataclasses in a field's type."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and (issubclass(one, Section) or is_dataclass(one)):
            yield one


def _options(section: type[OpenSection]) -> set[str]:
    """Return the options of everything that a section may name; entries that cannot be loaded here are skipped."""
    from fedveil.aggregation import AGGREGATORS
    from fedveil.data import SOURCES
    from fedveil.learning import MODELS
    from fedveil.methods import METHODS
    from fedveil_lab.config.sections import Data, Model, Privacy, Rule

    known: dict[type[OpenSection], Any] = {
        Data: SOURCES,
        Model: MODELS,
        Rule: AGGREGATORS,
        Privacy: METHODS,
    }
    found: set[str] = set()
    for name in known.get(section, ()):
        found |= _accepted(section.accepted, name)
    return found


def _accepted(accepted: Callable[[str], Mapping[str, Any]], name: str) -> set[str]:
    try:
        return {*accepted(name)}
    except FedVeilError:  # of a package that is not installed here
        return set()
