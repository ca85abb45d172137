"""Whether a module is installed is seen without running a line of it, or of the packages around it."""

import sys

import pytest

from fedveil.engines.nvflare.presence import require_present
from fedveil.errors import FieldError

pytestmark = pytest.mark.nvflare
RAISES = "raise RuntimeError('age 47, diagnosis C50')"
THERE = [
    "lone:data",
    "whole:data",
    "whole.cohort:data",
    "whole.inner.cohort:data",
    "spread.inner.cohort:data",  # packages without __init__.py
    "sys:exit",
    "xml.etree.ElementTree:parse",
]
ABSENT = ["nowhere:data", "whole.nowhere:data", "lone.below:data", "spread.nowhere.cohort:data"]


@pytest.fixture
def packages(tmp_path, monkeypatch):
    for path in ("whole/inner", "spread/inner"):
        (tmp_path / path).mkdir(parents=True)
    for path in (
        "lone.py",
        "whole/__init__.py",
        "whole/cohort.py",
        "whole/inner/__init__.py",
        "whole/inner/cohort.py",
        "spread/inner/cohort.py",
    ):
        (tmp_path / path).write_text(RAISES)
    return tmp_path


@pytest.mark.parametrize("name", THERE)
def test_a_module_on_the_path_is_found(name, packages, monkeypatch):
    monkeypatch.syspath_prepend(packages)
    require_present("training.data", name)
    assert not {"lone", "whole", "spread"} & set(sys.modules)


@pytest.mark.parametrize("name", ABSENT)
def test_a_module_that_is_nowhere_is_refused(name, packages, monkeypatch):
    monkeypatch.syspath_prepend(packages)
    with pytest.raises(FieldError) as refused:
        require_present("training.data", name)
    assert (refused.value.field, refused.value.value) == ("training.data", name)
    assert not {"lone", "whole", "spread"} & set(sys.modules)


def test_a_module_of_a_named_folder_and_of_the_working_directory_is_found(packages, monkeypatch):
    require_present("training.data", f"{packages}/whole.cohort:data")
    with pytest.raises(FieldError):
        require_present("training.data", f"{packages}/nowhere:data")
    with pytest.raises(FieldError):
        require_present("training.data", "lone:data")
    monkeypatch.chdir(packages)
    require_present("training.data", "lone:data")


def test_a_loaded_package_is_asked_where_its_modules_lie(packages, monkeypatch):
    """Such a package may have changed its folders when it was imported, as one of several distributions does."""
    loaded = type(sys)("joined")
    loaded.__path__ = [str(packages / "whole")]
    monkeypatch.setitem(sys.modules, "joined", loaded)
    require_present("training.data", "joined.cohort:data")
    with pytest.raises(FieldError):
        require_present("training.data", "joined.nowhere:data")
