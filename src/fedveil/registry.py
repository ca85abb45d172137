"""Registries of things with names for configurations and command lines, and imports on first use."""

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
Lazy = tuple[
    Callable[[str], Any], Callable[[], list[str]], list[str]
]  # __getattr__, __dir__ and __all__


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, from installed packages."""
    return tuple(_installed(tuple(sys.path)).select(group=group))


@cache
def _installed(path: tuple[str, ...]) -> Any:
    return metadata.entry_points()  # slow: it looks through all packages on the path


def placed(name: str) -> tuple[str, str, str]:
    """Split ``"folder/package.module:name"`` into folder, module and attribute; a plain name has no attribute."""
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return "", name, ""
    folder, _, module = place.replace("\\", "/").rpartition("/")
    folder = "" if folder == "." else folder.removesuffix("/.")
    return folder, module.removesuffix(".py"), attribute


def _require_from(field: str, name: str, module: ModuleType, folder: Path) -> None:
    """Refuse a module that was loaded before from another folder under the same name."""
    files = [module.__file__] if module.__file__ else list(module.__path__)
    wanted = folder.resolve()
    if not any(Path(file).resolve().is_relative_to(wanted) for file in files):
        other = f"another module of that name is loaded, {files[0]}: rename the one in {folder}"
        raise FieldError(field, name, other)


class Registry(UserDict[str, T]):
    """Registry of classes or functions of one kind, by name.

    Register your own class or function with its decorator, before the configuration that names it is read::

        @fv.aggregation.AGGREGATORS.register("mine")
        @dataclass(frozen=True)
        class Mine(Aggregator): ...

    Parameters
    ----------
    field : str
        Key or option whose value is such a name, for refusals.
    known : mapping of str
        FedVeil's own entries.
    group : str
        Group of entry points. Entries of installed packages are added under their own names, and imported on first use.
        An entry point with one of FedVeil's own names is ignored.
    """

    def __init__(self, field: str, known: Mapping[str, T], group: str = "") -> None:
        self.field, self._group, self._own = field, group, known

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds a class or function under a name.

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
        """Return the entry with this name.

        Raises
        ------
        FieldError
            If there is none; the text has the nearest known names.
        """
        return self[require_choice(self.field, name, self)]

    def find(self, name: str) -> Any:
        """Return the entry with this name, or import ``"package.module:name"``.

        Modules are searched on the Python path and in the working directory. ``"folder/package.module:name"`` is a
        module of that folder.

        Raises
        ------
        FieldError
            If there is no such entry or attribute, or it cannot be called.
        """
        folder, module, attribute = placed(name)
        if not attribute:
            return self.choose(name)
        before = list(sys.path)
        sys.path.insert(0, folder)
        try:
            thing = self._imported(name, folder, module, attribute)
        except FieldError:
            raise
        except Exception as error:  # the module is the user's
            raise FieldError(
                self.field,
                name,
                _not_imported(
                    name,
                    folder,
                    module,
                    attribute,
                    error,
                ),
            ) from error
        finally:
            sys.path[:] = before
        if folder and folder not in sys.path:  # for later imports of the module
            sys.path.append(folder)
        if not callable(thing):
            raise FieldError(self.field, name, "must be a class or a function")
        return thing

    def _imported(self, name: str, folder: str, module: str, attribute: str) -> Any:
        """Import an attribute of a module; refuse a module that comes from another folder."""
        found = import_module(module)
        if folder:
            _require_from(self.field, name, found, Path(folder))
        if not hasattr(found, attribute):
            raise FieldError(
                self.field,
                name,
                f"names nothing in {module}; {nearest(attribute, _public_names(found))}",
            )
        return getattr(found, attribute)

    def package(self, name: str) -> str:
        """Return the name of the installed package behind an entry point; "" for other entries."""
        entry = self._entries.get(name)
        return entry.dist.name if entry is not None and entry.dist is not None else ""

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        if not self._group:
            return {}
        entries = sorted(entry_points(group=self._group))
        return {entry.name: entry for entry in entries if entry.name not in self._own}

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        """All entries by name; entry points are imported on first use."""
        return {**self._own, **self._entries}

    def __getitem__(self, name: str) -> T:
        thing = self.data[name]
        if not isinstance(thing, EntryPoint):
            return cast(T, thing)
        try:
            loaded: T = thing.load()
        except (ImportError, AttributeError) as error:
            raise FieldError(
                self.field, name, f"of {self.package(name)} cannot be imported: {error}"
            ) from error
        self.data[name] = loaded
        return loaded


def _public_names(module: ModuleType) -> list[str]:
    """List the functions and classes of a module."""
    names = []
    for name, value in vars(module).items():
        if callable(value) and not name.startswith("_"):
            names.append(name)
    return names


def _not_imported(
    name: str,
    folder: str,
    module: str,
    attribute: str,
    error: Exception,
) -> str:
    """Explain why a module was not imported, and how to write its name."""
    said = f"cannot be imported ({error})"
    if folder:
        return said
    plain = f"{module}:{attribute}"
    written = "package.module:name" if plain == name else plain
    return f'{said}; write "{written}"'


def optional(module: str, need: str, install: str) -> Any:
    """Import an optional module; the error says how to get it.

    Parameters
    ----------
    module : str
        Full name of the module.
    need : str
        Purpose of the module, for the error: ``"decoding images needs Pillow"``.
    install : str
        Argument for ``pip install``.

    Raises
    ------
    FedVeilError
        If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise FedVeilError(f"{need}: pip install {install}") from error


def lazy(package: str, offered: Mapping[str, str]) -> Lazy:
    """Make ``__getattr__, __dir__, __all__`` of a package whose names are imported on first use.

    Type checkers read the same names as imports of the package's ``if TYPE_CHECKING`` block; a test compares the two. A
    name of a package that is not installed is not listed; using it raises an error with the command that installs it.

    Parameters
    ----------
    package : str
        ``__name__`` of the package, which is being imported.
    offered : mapping of str to str
        Names, separated by spaces, by the module that defines them. A whole module is listed under its package.
    """
    module = sys.modules[package]
    owners: dict[str, str] = {}
    absent: set[str] = set()
    for owner, of_owner in offered.items():
        owners |= dict.fromkeys(of_owner.split(), owner)
        other = _top(owner)
        if other != _top(package) and not find_spec(other):
            absent.add(other)

    def load(name: str) -> Any:
        if name not in owners:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=module
            )
        owner = owners[name]
        other = _top(owner)
        if other in absent:
            distribution = other.replace("_", "-")
            folder = distribution.removeprefix("fedveil-")
            needed = f"pip install {distribution} (in a checkout: pip install ./{folder})"
            raise ImportError(
                f"{package}.{name} is of the package {distribution}: {needed}", name=other
            )
        is_module = owner in (package, other)
        value = (
            import_module(f"{owner}.{name}") if is_module else getattr(import_module(owner), name)
        )
        setattr(module, name, value)
        return value

    present = sorted(name for name, owner in owners.items() if _top(owner) not in absent)

    def names() -> list[str]:
        return sorted({*vars(module), *present})

    return load, names, present


def _top(module: str) -> str:
    return module.partition(".")[0]
