"""Load a configuration from a file or a preset, with single keys set on the command line."""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from fedveil.errors import FedVeilError, FieldError, damaged, nearest
from fedveil.files import CONFIG, remedy
from fedveil.reading import toml_of
from fedveil.registry import entry_points
from fedveil_lab.config.places import with_places

# tables that rooms above this one add: the module that is imported for one, and its class of configurations
KINDS = {"world": ("fedveil_lab.games.world", "AuditedConfig")}

if TYPE_CHECKING:  # a mistyped path is refused before PyTorch is there
    from fedveil_lab.config.experiment import Config


def presets() -> dict[str, str]:
    """List the packaged presets: name and the first sentence of their comment."""
    found = {
        name: _first_sentence(file.read_text(encoding="utf-8"))
        for name, file in _packaged().items()
    }
    return dict(sorted(found.items()))


def _first_sentence(text: str) -> str:
    """Return the first sentence of the comment that a text begins with."""
    words = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# "))
    return re.split(r"(?<=\.) ", " ".join(words))[0]


def _packaged() -> dict[str, Traversable]:
    """Find the files of presets: FedVeil's own, and those of packages with an entry point for presets."""
    packages = [one.value for one in entry_points(group="fedveil.presets")]
    found: dict[str, Traversable] = {}
    for package in (*packages, "fedveil_lab.config"):
        for file in (resources.files(package) / "presets").iterdir():
            if file.name.endswith(".toml"):
                found[file.name.removesuffix(".toml")] = file
    return found


def load(where: str | Path, assignments: Sequence[str] = (), **overrides: Any) -> "Config":
    """Load and check the configuration of an experiment.

    Parameters
    ----------
    where : str or Path
        A TOML file, a run folder, or the name of a preset.
    assignments : sequence of str
        Keys to set, as ``"a.b=value"``, before anything is checked. The value is written as in TOML, or as bare text.
    **overrides
        Top-level keys; None keeps the file's value.

    Raises
    ------
    ConfigError, FieldError
        If the configuration is wrong; the message has one line per problem.
    """
    text, origin = text_of(where)
    if (Path(where) / CONFIG).is_file():
        folder = Path(where)
    else:
        folder = None
    try:
        values = toml_of(text)
        if folder is not None:
            parse(values)
    except (tomllib.TOMLDecodeError, FedVeilError) as error:
        if folder is None:
            raise FieldError("CONFIG", origin, f"is not valid TOML: {error}") from error
        raise damaged("CONFIG", origin, error, remedy(folder)) from error
    before = _method(values)
    assigned = {assignment.partition("=")[0].strip() for assignment in assignments}
    for assignment in assignments:
        assign(values, assignment)
    if before not in (None, method := _method(values)):
        _switch(values, str(method), assigned)
    if (
        folder is not None and "privacy.sum" in assigned
    ):  # a run's file has the numbers of its own sum
        from fedveil.methods import fitting

        values["privacy"] = fitting(values["privacy"])
    if Path(origin).is_file():
        values = with_places(values, Path(origin).parent)
    given = {key: value for key, value in overrides.items() if value is not None}
    return parse({**values, **given})


def _method(values: Mapping[str, Any]) -> Any:
    """Return the method that the file names; None if it names none."""
    table = values.get("privacy")
    if isinstance(table, Mapping):
        return table.get("method")
    return None


def _switch(values: dict[str, Any], method: str, assigned: Collection[str]) -> None:
    """Remove what does not fit a method that was set in place of the file's: comparison, keys and rule.

    Keys that were assigned stay, so an unfitting one is refused.
    """
    from fedveil.methods import METHODS, parameters

    if method not in METHODS:
        return
    kept = {"method", "budget", *parameters(method)}
    values["privacy"] = {
        key: value
        for key, value in values["privacy"].items()
        if key in kept or _is_assigned(f"privacy.{key}", assigned)
    }
    if "aggregator" not in kept and not _is_assigned("aggregator", assigned):
        values.pop("aggregator", None)
    if not _is_assigned("compare", assigned):
        values.pop("compare", None)


def _is_assigned(key: str, assigned: Collection[str]) -> bool:
    return any(one.startswith(key) for one in assigned)


def parse(values: Mapping[str, Any]) -> "Config":
    """Make a checked configuration from plain values.

    Raises
    ------
    ConfigError
        If values are wrong; the message has one line per problem.
    """
    from pydantic import ValidationError

    from fedveil_lab.config.keys import with_place
    from fedveil_lab.config.tables import ConfigError, problems_of
    from fedveil_lab.config.variants import check_settings

    def known(section: str) -> Sequence[str]:
        return _known(kind_of(values), section)

    try:
        config = kind_of(values).model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError([with_place(one) for one in problems_of(error, known=known)]) from error
    try:
        check_settings(config)
    except FieldError as error:
        raise ConfigError([error]) from error
    return config


def kind_of(values: Mapping[str, Any]) -> "type[Config]":
    """Choose the class of a configuration: `Config`, or the class of a package that owns one of its tables."""
    from fedveil_lab.config.experiment import Config

    for table, (module, name) in KINDS.items():
        if values.get(table) is not None:
            kind: type[Config] = getattr(import_module(module), name)
            return kind
    return Config


def assign(values: dict[str, Any], assignment: str) -> None:
    """Set one key in place, e.g. ``"local.epochs=2"`` or ``"compare.settings.1.clip=3"``."""
    path, equals, text = assignment.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts):
        raise FieldError("--set", assignment, "must look like key=value, e.g. local.epochs=2")
    table: Any = values
    for i, part in enumerate(parts):
        key: Any = part
        if isinstance(table, list):
            if not part.isdigit() or int(part) >= len(table):
                accepted = f"{'.'.join(parts[:i])} is a list with entries 0 to {len(table) - 1}"
                raise FieldError("--set", assignment, accepted)
            key = int(part)
        elif not isinstance(table, dict):
            raise FieldError("--set", assignment, f"{'.'.join(parts[:i])} is a value, not a table")
        if i == len(parts) - 1:
            table[key] = _value(text.strip())
        elif isinstance(table, list):
            table = table[key]
        else:
            table = table.setdefault(key, {})


def _value(text: str) -> Any:
    try:
        return toml_of(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # .5 and 1. are no TOML, and no text either
    except ValueError:
        return text


def text_of(where: str | Path) -> tuple[str, str]:
    """Read the text of a file, a run folder or a preset, and return it with a name for messages."""
    path = Path(where)
    if path.is_dir() and (path / CONFIG).is_file():
        path = path / CONFIG
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise FieldError("CONFIG", str(where), f"cannot be read: {error}") from error
    known = _packaged()
    if str(where) in known:
        return known[str(where)].read_text(encoding="utf-8"), f"preset {where}"
    accepted = f"is neither a file nor a run folder nor a preset; {nearest(str(where), known)}"
    raise FieldError("CONFIG", str(where), accepted)


def _known(kind: "type[Config]", section: str) -> Sequence[str]:
    """Names of the keys of a section, for a hint."""
    model: Any = kind
    if section:
        parts = section.split(".")
    else:
        parts = []
    for part in parts:
        field = model.model_fields.get(part.split("[")[0])
        annotation = getattr(field, "annotation", None)
        tables = [
            one for one in (annotation, *get_args(annotation)) if hasattr(one, "model_fields")
        ]
        if not tables:
            return ()
        model = tables[0]
    return [name for name in model.model_fields if name != "options"]
