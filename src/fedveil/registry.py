"""Registries: what a configuration or a command line may name; and what is imported when it is first used."""

import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from importlib import import_module, metadata
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from fedveil.errors import FedVeilError, FieldError, nearest, require_choice

T = TypeVar("T")


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """What installed packages bring under a group."""
    return tuple(_installed(tuple(sys.path)).select(group=group))


@cache
def _installed(path: tuple[str, ...]) -> Any:
    return metadata.entry_points()  # looks through all packages there


def placed(name: str) -> tuple[str, str, str]:
    """Folder, module and attribute of ``"folder/package.module:name"``; the last is empty in a name of a registry."""
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return "", name, ""
    folder, _, module = place.replace("\\", "/").rpartition("/")
    return folder.removesuffix("/.") if folder != "." else "", module.removesuffix(".py"), attribute


def _require_from(field: str, name: str, module: ModuleType, folder: Path) -> None:
    """Refuse another module that bears the name and was there first."""
    files = [module.__file__] if module.__file__ else list(module.__path__)
    if not any(Path(file).resolve().is_relative_to(folder.resolve()) for file in files):
        other = f"another module of that name is loaded, {files[0]}: rename the one in {folder}"
        raise FieldError(field, name, other)


class Registry(UserDict[str, T]):
    """Named things of one kind.

    A class or function of yours joins by its decorator, before the configuration that names it is read::

        @fv.aggregation.AGGREGATORS.register("mine")
        @dataclass(frozen=True)
        class Mine(Aggregator): ...

    Parameters
    ----------
    field : str
        The key or option that names one, for refusals.
    known : mapping of str
        Those that FedVeil brings.
    group : str
        Of entry points. Every one of an installed package joins under its own name, and is imported when it is used;
        one that bears a name of FedVeil's is left out.
    """

    def __init__(self, field: str, known: Mapping[str, T], group: str = "") -> None:
        self.field, self._group, self._own = field, group, known

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that adds what it is put on.

        Raises
        ------
        FieldError
            If the name is taken.
        """

        def add(thing: T) -> T:
            if name in self:
                raise FieldError(self.field, name, "is taken by another; give it a name of its own")
            self[name] = thing
            return thing

        return add

    def choose(self, name: str) -> T:
        """What has this name.

        Raises
        ------
        FieldError
            With the nearest known names, if nothing has.
        """
        return self[require_choice(self.field, name, self)]

    def find(self, name: str) -> Any:
        """What has this name, or what ``"package.module:name"`` names, from the Python path or the working directory.

        ``"folder/package.module:name"`` names a module of that folder.

        Raises
        ------
        FieldError
            If there is no such thing, or it cannot be called.
        """
        folder, module, attribute = placed(name)
        if not attribute:
            return self.choose(name)
        before = list(sys.path)
        sys.path.insert(0, folder)
        try:
            found = import_module(module)
            if folder:
                _require_from(self.field, name, found, Path(folder))
            if not hasattr(found, attribute):
                there = [one for one, value in vars(found).items() if callable(value) and not one.startswith("_")]
                raise FieldError(self.field, name, f"names nothing in {module}; {nearest(attribute, there)}")
            thing = getattr(found, attribute)
        except FieldError:
            raise
        except Exception as error:  # the module is the user's
            plain = f"{module}:{attribute}"
            known = "" if folder else f'; write "{"package.module:name" if plain == name else plain}"'
            raise FieldError(self.field, name, f"cannot be imported ({error}){known}") from error
        finally:
            sys.path[:] = before
        if folder and folder not in sys.path:  # for what it imports later
            sys.path.append(folder)
        if not callable(thing):
            raise FieldError(self.field, name, "must be a class or a function")
        return thing

    def package(self, name: str) -> str:
        """The installed package whose entry point has this name; empty for one of FedVeil or of this process."""
        entry = self._entries.get(name)
        return entry.dist.name if entry is not None and entry.dist is not None else ""

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        entries = entry_points(group=self._group) if self._group else ()
        return {one.name: one for one in sorted(entries) if one.name not in self._own}

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        """What is known, entry points as they are until they are used."""
        return {**self._own, **self._entries}

    def __getitem__(self, name: str) -> T:
        thing = self.data[name]
        if not isinstance(thing, EntryPoint):
            return cast(T, thing)
        try:
            loaded: T = thing.load()
        except (ImportError, AttributeError) as error:
            raise FieldError(self.field, name, f"of {self.package(name)} cannot be imported: {error}") from error
        self.data[name] = loaded
        return loaded


def optional(module: str, need: str, install: str) -> Any:
    """A module, or an error that says how to get it.

    Parameters
    ----------
    module : str
        Its full name.
    need : str
        What needs it, for the error: ``"decoding images needs Pillow"``.
    install : str
        What pip is to install.

    Raises
    ------
    FedVeilError
        If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise FedVeilError(f"{need}: pip install {install}") from error


def lazy(package: str, offered: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__, __dir__, __all__`` of a package whose names wait for PyTorch, pydantic and pandas until used.

    Type checkers read the same names as imports of its ``if TYPE_CHECKING`` block; a test compares the two. A name of
    another package that is not installed says what to install, and is not listed.

    Parameters
    ----------
    package : str
        Its ``__name__``, while it is being imported.
    offered : mapping of str to str
        Names by the module that has them, with spaces between; a whole module stands under its package.
    """
    module = sys.modules[package]
    owners = {name: owner for owner, names in offered.items() for name in names.split()}
    top = package.partition(".")[0]
    others = {owner.partition(".")[0] for owner in offered} - {top}
    absent = {other for other in others if not find_spec(other)}

    def load(name: str) -> Any:
        if name not in owners:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        owner = owners[name]
        other = owner.partition(".")[0]
        if other in absent:
            distribution = other.replace("_", "-")
            folder = distribution.removeprefix("fedveil-")
            needed = f"pip install {distribution} (in a checkout: pip install ./{folder})"
            raise ImportError(f"{package}.{name} is of the package {distribution}: {needed}", name=other)
        value = import_module(f"{owner}.{name}") if owner in (package, other) else getattr(import_module(owner), name)
        setattr(module, name, value)
        return value

    present = sorted(name for name, owner in owners.items() if owner.partition(".")[0] not in absent)
    return load, lambda: sorted({*vars(module), *present}), present
