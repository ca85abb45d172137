"""Modules that have moved: their old names still lead to them in this version, with a warning.

What experiments is a package of its own, `fedveil_lab`; files, tables and ledgers on disk have rooms of their own.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from warnings import warn

LAB = "fedveil_lab"
_OF_IMPORTS = ("importlib", "_frozen_importlib")
ROOMS = ("attacks", "config", "games", "grid", "own", "report", "runs")
# old name -> new name, of what did not move as a whole room
MODULES = {
    "fedveil.config.folders": "fedveil.files",
    "fedveil.engines.admission": "fedveil.engines.client_checks",
    "fedveil.engines.files": "fedveil.files.locked",
    "fedveil.engines.heads": "fedveil.engines.ledger_head",
    "fedveil.engines.members": "fedveil.engines.parties",
    "fedveil.engines.node": "fedveil.engines.deployed",
    "fedveil.engines.sites": "fedveil.engines.site_keys",
    "fedveil.report.statement.books": "fedveil.evidence.books",
    "fedveil.report.table": "fedveil.tables",
    "fedveil.runs.deployed": "fedveil.evidence.server_folder",
    "fedveil.runs.disk": "fedveil.files",
    "fedveil.runs.rows": "fedveil.evidence.rows",
    "fedveil.runs.world": f"{LAB}.games.world",
    **{f"fedveil.cli.{name}": f"{LAB}.cli.{name}" for name in ("audit", "data", "home", "report", "running")},
}
# rooms of the laboratory of which some modules went to the library: without the laboratory these are found, too
PARTED = ("fedveil.config", "fedveil.report", "fedveil.report.statement", "fedveil.runs")


def present_name(old: str) -> str | None:
    """Where a module lies now, or None if its name is no old one."""
    if old in MODULES:
        return MODULES[old]
    top, _, rest = old.partition(".")
    return f"{LAB}.{rest}" if top == "fedveil" and rest.split(".")[0] in ROOMS else None


class _Alias(Loader):
    """Puts a module under its old name, too."""

    def __init__(self, present: str) -> None:
        self._present = present

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        present = import_module(self._present)
        _put_moved(module.__name__, present)
        sys.modules[module.__name__] = present


class _Room(Loader):
    """Stands for a room of the laboratory where that is not installed: some of its modules are the library's now."""

    def __init__(self, present: str) -> None:
        self._present = present

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def missing(name: str) -> Any:
            if name.startswith("__") or f"{module.__name__}.{name}" in PARTED:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            require_lab(f"{module.__name__}.{name}", self._present)

        vars(module)["__getattr__"] = missing
        _put_moved(module.__name__, module)


def _put_moved(room: str, module: ModuleType) -> None:
    """Let ``from room import name`` find what moved out of that room alone."""
    for old, new in MODULES.items():
        if room in PARTED and old.rpartition(".")[0] == room:
            setattr(module, old.rpartition(".")[2], import_module(new))


class Moved(MetaPathFinder):
    """Finds modules by their old names."""

    def __init__(self) -> None:
        self._told = (("", 0), "")  # where the last warning was given, and of which name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old name.

        Raises
        ------
        ModuleNotFoundError
            If it lies in a package that is not installed.
        """
        present = present_name(fullname) if fullname.startswith("fedveil.") else None
        if present is None:
            return None
        if fullname in PARTED and not find_spec(LAB):
            return ModuleSpec(fullname, _Room(present), is_package=True)
        require_lab(fullname, present)
        self._tell(fullname, present)
        return ModuleSpec(fullname, _Alias(present), is_package=hasattr(import_module(present), "__path__"))

    def _tell(self, fullname: str, present: str) -> None:
        """Warn, once for each import: the rooms that a module lies in are found in the same one, before it."""
        place = _importing()
        told, self._told = self._told, (place, fullname)
        if told[0] == place and fullname.startswith(f"{told[1]}."):
            return
        text = f"{fullname} is {present} now"
        elsewhere = [f"{old} is {new}" for old, new in MODULES.items() if old.startswith(f"{fullname}.")]
        text = "; ".join([text, *elsewhere, "the old names go with the next version"])
        # of the frames above, `warn` passes over those of the import system
        warn(text, DeprecationWarning, stacklevel=3)


def _importing() -> tuple[str, int]:
    """File and line of the import that is going on."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith((__name__, *_OF_IMPORTS)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def require_lab(name: str, present: str) -> None:
    """Refuse a name of the laboratory where that is not installed.

    Raises
    ------
    ModuleNotFoundError
        Saying what to install.
    """
    if not present.startswith(f"{LAB}."):
        return
    try:
        import_module(LAB)
    except ModuleNotFoundError as error:
        needed = "pip install fedveil-lab (in a checkout: pip install ./lab)"
        raise ModuleNotFoundError(f"{name} is of the package fedveil-lab: {needed}", name=LAB) from error


def find_moved() -> None:
    """Have old names found, before a search of the moved rooms' folders finds their files a second time."""
    if not any(isinstance(one, Moved) for one in sys.meta_path):
        sys.meta_path.insert(0, Moved())
