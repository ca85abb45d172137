"""Modules that have moved: their old names still lead to them in this version, with a warning.

What experiments is a package of its own, `fedveil_lab`; files, tables and ledgers on disk have rooms of their own.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from warnings import warn

LAB = "fedveil_lab"
ROOMS = ("attacks", "config", "games", "grid", "own", "report", "runs")
# old name -> new name, of what did not move as a whole room
MODULES = {
    "fedveil.config.folders": "fedveil.files",
    "fedveil.engines.files": "fedveil.files.locked",
    "fedveil.report.statement.books": "fedveil.evidence.books",
    "fedveil.report.table": "fedveil.tables",
    "fedveil.runs.deployed": "fedveil.evidence.server_folder",
    "fedveil.runs.disk": "fedveil.files",
    "fedveil.runs.rows": "fedveil.evidence.rows",
    **{f"fedveil.cli.{name}": f"{LAB}.cli.{name}" for name in ("audit", "data", "home", "report", "running")},
}


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
        sys.modules[module.__name__] = import_module(self._present)


class Moved(MetaPathFinder):
    """Finds modules by their old names."""

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
        require_lab(fullname, present)
        text = f"{fullname} is {present} now; the old name goes with the next version"
        # of the frames above, `warn` passes over those of the import system
        warn(text, DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(present), is_package=hasattr(import_module(present), "__path__"))


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
