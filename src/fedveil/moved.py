"""Old names of modules that have moved: they still work in this version, with a warning.

Experiments are in a separate package, `fedveil_lab`; files, tables and ledgers on disk have subpackages of their own.
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
# old name -> new name of modules that did not move with their whole room
MODULES = {
    "fedveil.config.folders": "fedveil.files",
    "fedveil.engines.admission": "fedveil.engines.client_checks",
    "fedveil.engines.cohort": "fedveil.engines.embedded",
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
    **{
        f"fedveil.cli.{name}": f"{LAB}.cli.{name}"
        for name in ("audit", "data", "home", "report", "running")
    },
}
# rooms of the laboratory with modules that went to the library: these are found without the laboratory, too
PARTED = ("fedveil.config", "fedveil.report", "fedveil.report.statement", "fedveil.runs")


def present_name(old: str) -> str | None:
    """Return the present name of a module; None if it has not moved."""
    if old in MODULES:
        return MODULES[old]
    top, _, rest = old.partition(".")
    if top == "fedveil" and rest.split(".")[0] in ROOMS:
        return f"{LAB}.{rest}"
    return None


class _Alias(Loader):
    """Loader that makes a module available under its old name, too."""

    def __init__(self, present: str) -> None:
        self._present = present

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        present = import_module(self._present)
        _put_moved(module.__name__, present)
        sys.modules[module.__name__] = present


class _Room(Loader):
    """Loader of a placeholder for a subpackage of the laboratory that is not installed."""

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
    """Make ``from subpackage import name`` find modules that moved out of a subpackage one by one."""
    if room not in PARTED:
        return
    for old, new in MODULES.items():
        its_room, _, name = old.rpartition(".")
        absent = new.startswith(f"{LAB}.") and not find_spec(LAB)
        if its_room == room and not absent:
            setattr(module, name, import_module(new))


class Moved(MetaPathFinder):
    """Finder of modules by their old names."""

    def __init__(self) -> None:
        self._told = (("", 0), "")  # place and name of the last warning

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a spec for an old name; None for other names.

        Raises
        ------
        ModuleNotFoundError
            If the module lies in a package that is not installed.
        """
        present = present_name(fullname) if fullname.startswith("fedveil.") else None
        if present is None:
            return None
        if fullname in PARTED and not find_spec(LAB):
            return ModuleSpec(fullname, _Room(present), is_package=True)
        require_lab(fullname, present)
        self._tell(fullname, present)
        return ModuleSpec(
            fullname, _Alias(present), is_package=hasattr(import_module(present), "__path__")
        )

    def _tell(self, fullname: str, present: str) -> None:
        """Warn once for each import; one import may look up several names."""
        place = _importing()
        told, self._told = self._told, (place, fullname)
        if told[0] == place and fullname.startswith(f"{told[1]}."):
            return
        text = f"{fullname} is {present} now"
        elsewhere = [
            f"{old} is {new}" for old, new in MODULES.items() if old.startswith(f"{fullname}.")
        ]
        text = "; ".join([text, *elsewhere, "the old names go with the next version"])
        # `warn` does not count the frames of the import system
        warn(text, DeprecationWarning, stacklevel=3)


def _importing() -> tuple[str, int]:
    """Return file and line of the import statement that is being executed."""
    inner = (__name__, *_OF_IMPORTS)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(inner):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def require_lab(name: str, present: str) -> None:
    """Refuse a name of the laboratory if `fedveil-lab` is not installed.

    Raises
    ------
    ModuleNotFoundError
        If it is not installed; the text has the command that installs it.
    """
    if not present.startswith(f"{LAB}."):
        return
    try:
        import_module(LAB)
    except ModuleNotFoundError as error:
        needed = "pip install fedveil-lab (in a checkout: pip install ./lab)"
        raise ModuleNotFoundError(
            f"{name} is of the package fedveil-lab: {needed}", name=LAB
        ) from error


def find_moved() -> None:
    """Install the finder of old names before all other finders, which could import the same files twice."""
    if not any(isinstance(one, Moved) for one in sys.meta_path):
        sys.meta_path.insert(0, Moved())
