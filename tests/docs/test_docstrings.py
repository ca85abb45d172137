"""The reference page has every public name; examples in docstrings run on what the page lays out before them."""

import ast
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


@pytest.mark.parametrize("name", ["flower", "nvflare"])
def test_the_reference_has_what_an_app_and_a_job_import(name):
    module = ast.parse((Path(fv.__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    offered = {
        alias.name
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    made = (node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    offered |= {node.name for node in made if not node.name.startswith("_")}
    shown = set(re.findall(rf"^::: fedveil\.{name}\.(\w+)$", PAGE, re.MULTILINE))
    said = set(re.findall(r"`(\w+)`", PAGE))
    assert len(offered) > 10
    assert shown <= offered
    assert offered <= shown | said
