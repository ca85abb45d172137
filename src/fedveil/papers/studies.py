"""Every study that there is: folders of `fedveil.papers`, entry points, and what a process registers."""

from __future__ import annotations

from importlib import import_module, resources
from importlib.metadata import entry_points
from typing import Any

from fedveil.errors import FieldError, require_choice
from fedveil.papers.checking import check_study
from fedveil.papers.study import Study
from fedveil.registry import Registry

ENTRY_POINTS = "fedveil.studies"
STUDIES: Registry[Study] = Registry("STUDY", {})
"""Studies that are neither a folder of `fedveil.papers` nor an entry point ``fedveil.studies``."""


def register(study: Study) -> Study:
    """Make a study known to the command line of this process."""
    return STUDIES.register(study.name)(check_study(study))


def names() -> list[str]:
    """Every study that there is."""
    folders = (f.name for f in resources.files("fedveil.papers").iterdir() if (f / "study.toml").is_file())
    found = {name.replace("_", "-") for name in folders} | {one.name for one in entry_points(group=ENTRY_POINTS)}
    return sorted(found | set(STUDIES))


def find(name: str) -> Study:
    """A study by name.

    Raises
    ------
    FieldError
        Naming those that exist.
    """
    require_choice("STUDY", name, names())
    if name in STUDIES:
        return STUDIES[name]
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return _checked(name, entry.load())
    return _checked(name, import_module(f"fedveil.papers.{name.replace('-', '_')}").study)


def _checked(name: str, found: Any) -> Study:
    if not isinstance(found, Study):
        raise FieldError("STUDY", name, f"its module must hold a Study in `study`, not a {type(found).__name__}")
    return check_study(found)
