"""Every study that there is: entry points ``fedveil.studies`` of installed packages, and what a process registers."""

from fedveil.errors import FieldError
from fedveil.registry import Registry
from fedveil_studies.frame.checking import check_study
from fedveil_studies.frame.study import Study

ENTRY_POINTS = "fedveil.studies"
STUDIES: Registry[Study] = Registry("STUDY", {}, group=ENTRY_POINTS)
"""Studies by name."""


def register(study: Study) -> Study:
    """Make a study known to the command line of this process."""
    return STUDIES.register(study.name)(check_study(study))


def names() -> list[str]:
    """Every study that there is."""
    return sorted(STUDIES)


def find(name: str) -> Study:
    """A study by name.

    Raises
    ------
    FieldError
        Naming those that exist.
    """
    found = STUDIES.choose(name)
    if not isinstance(found, Study):
        raise FieldError("STUDY", name, f"its entry point must name a Study, not a {type(found).__name__}")
    return check_study(found)
