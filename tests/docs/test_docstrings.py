"""Every public name has an example in its docstring, which runs, on what the reference page lays out before it."""

import doctest
import inspect
import re
from pathlib import Path

import pytest

import fedveil as fv

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
NAMES = [name for name in fv.__all__ if not inspect.ismodule(getattr(fv, name))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def laid_out():
    values = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], values)
    return values


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_its_example_runs(name, laid_out):
    text = inspect.getdoc(getattr(fv, name))
    example = doctest.DocTestParser().get_doctest(text, dict(laid_out), name, None, None)
    assert example.examples, "an Examples section with a line that runs"
    told = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=told.append)
    assert not told, "".join(told)


def test_the_reference_has_each_name_once():
    assert sorted(re.findall(r"^::: fedveil\.(\w+)$", PAGE, re.MULTILINE)) == sorted(NAMES)
