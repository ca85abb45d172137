"""Whether a site's own module is installed, found without running a line of it."""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec

from fedveil.errors import FieldError
from fedveil.registry import placed


def require_present(field: str, name: str) -> None:
    """Refuse the name of a function whose module is nowhere, before the site is admitted to a task.

    The module itself may read data, and so may the packages around it. They are imported after admission alone: whether
    a site declines never follows from its data.

    Parameters
    ----------
    field : str
        Key of the configuration that has the name.
    name : str
        ``"package.module:function"``, or ``"folder/package.module:function"``.

    Raises
    ------
    FieldError
        If no file or built-in module has the name.
    """
    folder, module, _ = placed(name)
    if not _is_there(folder, module):
        raise FieldError(field, name, f"there is no module {module} here: install it at this site")


def _is_there(folder: str, module: str) -> bool:
    """Whether a module can be found: from the folder, the working directory, or the Python path."""
    whole = ""
    places: list[str] | None = None  # folders of the package around it; None outside of packages
    for name in module.split("."):
        whole = f"{whole}.{name}" if whole else name
        loaded = sys.modules.get(whole)
        if loaded is not None:
            places = list(getattr(loaded, "__path__", ()))
            continue
        found = _outside(folder, name) if places is None else PathFinder.find_spec(name, places)
        if found is None:
            return False
        places = list(found.submodule_search_locations or ())
    return True


def _outside(folder: str, name: str) -> ModuleSpec | None:
    """Find a module or package that lies in no package; no code of it runs."""
    return PathFinder.find_spec(name, [folder]) or find_spec(name)
