"""Plant one bug at a time in copies of the packages: the ordinary tests must turn red, and stay green without a bug.

Runs under ``-m slow`` (``make mutation``); a bug whose place is no longer found exactly once fails at once, so that the
table follows the code.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from functools import partial

import pytest
from planted_bugs import BUGS
from planting import PACKAGES, ROOT, Bug, Sources, file_of_test

SOURCES = Sources(PACKAGES)
GREEN, RED, ELSEWHERE = (
    0,
    1,
    77,
)  # pytest's exit status for passed and failed tests; ours for another library

# Given to pytest as a plugin: it makes sure that the copy is what is tested, notes which of the asked-for tests have
# failed, and leaves out the rest of those that have.
PLUGIN = f"""
import importlib, json, os, pytest

COPY = os.environ["FEDVEIL_COPY"]
ASKED = json.loads(os.environ["FEDVEIL_ASKED"])
caught = set()

def owners(nodeid):
    return {{a for a in ASKED if nodeid == a or nodeid.startswith((a + "::", a + "["))}}

def pytest_configure(config):
    for package in map(importlib.import_module, {[package.name for package in PACKAGES]}):
        if not os.path.realpath(package.__file__).startswith(COPY + os.sep):
            pytest.exit("another package than the copy was imported", returncode={ELSEWHERE})

def pytest_runtest_protocol(item, nextitem):
    return True if owners(item.nodeid) <= caught else None

def pytest_runtest_logreport(report):
    if report.failed:
        caught.update(owners(report.nodeid))

def pytest_sessionfinish(session):
    with open(os.path.join(COPY, "caught.json"), "w") as file:
        json.dump(sorted(caught), file)
"""


def planted(folder, bug=None):
    """Copy the packages into a folder, and plant a bug in the copy."""
    copy = folder / "copy"
    for package in PACKAGES:
        shutil.copytree(package, copy / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "mutation_plugin.py").write_text(PLUGIN)
    if bug is not None:
        file = SOURCES.file_of(bug)
        [package] = [package for package in PACKAGES if file.is_relative_to(package)]
        (copy / file.relative_to(package.parent)).write_text(bug.planted(file.read_text()))
    return copy


def run(copy, tests):
    """Run ordinary tests against a copy of the library."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FEDVEIL_COPY": os.path.realpath(copy),
        "FEDVEIL_ASKED": json.dumps(list(tests)),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
        "OMP_NUM_THREADS": "1",
    }
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "mutation_plugin",
        "--tb=line",
        "-m",
        "not slow",
        "--every-case",
    ]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


def tail(result):
    return result.stdout[-3000:] + result.stderr[-1000:]


@pytest.mark.slow
def test_without_a_bug_the_tests_are_green(tmp_path):
    result = run(
        planted(tmp_path),
        sorted({file_of_test(test.partition("::")[0]) for bug in BUGS for test in bug.tests}),
    )
    assert result.returncode == GREEN, tail(result)


@pytest.mark.slow
@pytest.mark.parametrize("package", [package.name for package in PACKAGES])
def test_another_package_than_the_copy_is_noticed(package, tmp_path):
    copy = planted(tmp_path)
    shutil.rmtree(copy / package)  # so that the installed one is found, or none
    result = run(copy, [file_of_test("test_gdp")])
    assert result.returncode not in (GREEN, RED), tail(result)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_turns_each_of_its_tests_red(bug, tmp_path):
    tests = [file_of_test(test) for test in bug.tests]
    if any("flower" in test for test in tests):
        pytest.importorskip("flwr")
    copy = planted(tmp_path, bug)
    result = run(copy, tests)
    assert result.returncode == RED, f"{bug.name!r}: status {result.returncode}\n{tail(result)}"
    blind = set(tests) - set(json.loads((copy / "caught.json").read_text()))
    assert not blind, f"{bug.name!r} got past {sorted(blind)}\n{tail(result)}"


def test_every_planted_bug_is_still_an_edit():
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names)
    for bug in BUGS:
        text = SOURCES.part_for(bug)
        tree, done = bug.edited(text)
        assert done == 1, f"{bug.where} holds the place of {bug.name!r} {done} times"
        compile(tree, bug.name, "exec")  # a bug, and no syntax error
        assert ast.unparse(tree) != text, bug.name
        for test in bug.tests:
            file, _, inner = file_of_test(test).partition("::")
            if inner:
                function = inner.rpartition("::")[2].partition("[")[0]
                assert f"def {function}(" in (ROOT / file).read_text(), test


class Reworded(ast.NodeTransformer):
    """Every text of several words says something else: docstrings, refusals, notes."""

    def visit_Constant(self, node):
        worded = isinstance(node.value, str) and " " in node.value.strip()
        return ast.Constant("in other words") if worded else node


@pytest.mark.few(0)
def test_no_planted_bug_hangs_on_layout_or_wording():
    for bug in BUGS:  # without comments, with other lines, brackets and quotes, and in other words
        text = ast.unparse(Reworded().visit(ast.parse(SOURCES.part_for(bug))))
        assert bug.planted(text) != text, bug.name


def test_what_judges_has_planted_bugs_too():
    files = [SOURCES.file_of(bug) for bug in BUGS]
    for room, least in (("attacks", 10), ("games", 6), ("grid", 5), ("fedveil_studies", 6)):
        assert sum(room in file.parts for file in files) >= least, room


SMALL = """
def first(sigma, n):
    noise = draw(sigma, n)
    if noise is None:
        raise ValueError("some words")
    return noise

def second(sigma, n):
    return draw(sigma, n)
"""


def planted_in(where, old, new, text=SMALL):
    return Bug("", where, old, new, ()).planted(text)


def test_a_bug_is_found_by_its_definition_and_its_tree():
    halved = planted_in("first", "draw(sigma, n)", "draw(sigma / 2, n)")
    assert halved == ast.unparse(
        ast.parse(SMALL.replace("draw(sigma, n)", "draw(sigma / 2, n)", 1))
    )
    layout = SMALL.replace(
        "draw(sigma, n)", "draw(  # of the noise\n        sigma,\n        n,\n    )"
    )
    assert planted_in("first", "draw(sigma, n)", "draw(sigma / 2, n)", layout) == halved
    anything = planted_in("first", "if noise is None:\n    ...", "if False:\n    ...")
    assert anything == ast.unparse(ast.parse(SMALL.replace("noise is None", "False")))
    assert "ValueError" in planted_in(
        "first", "raise ValueError(...)\n", "raise ValueError(...)\npass"
    )
    for where, old in (("first", "draw(sigma)"), ("third", "draw(sigma, n)")):
        with pytest.raises(AssertionError):
            planted_in(where, old, "None")


def test_a_bug_is_found_wherever_its_definition_was_moved(tmp_path):
    bug, doubled = (
        Bug("a", "first", "draw(sigma, n)", "0", ()),
        Bug("b", "LIMIT", "1 << 7", "1 << 8", ()),
    )
    here, there = tmp_path / "one" / "noise.py", tmp_path / "two" / "inner" / "other.py"
    for file in (here, there):
        file.parent.mkdir(parents=True)
        file.write_text(
            "def first():\n    return 'another one'\n\ndef third():\n    return draw(sigma, n), 1 << 7\n"
        )
    for moved in (here, there):
        before = moved.read_text()
        moved.write_text(SMALL + "\nLIMIT = 1 << 7\n")
        sources = Sources([tmp_path / "one", tmp_path / "two"])
        assert sources.file_of(bug) == sources.file_of(doubled) == moved
        moved.write_text(before)
    here.write_text(SMALL)
    there.write_text(SMALL)
    for lost in (bug, doubled):  # in two modules, and in none
        with pytest.raises(AssertionError, match=lost.where):
            Sources([tmp_path / "one", tmp_path / "two"]).file_of(lost)


def test_a_test_is_found_by_its_modules_name(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / "test_same.py").touch()
    (tmp_path / "tests" / "two" / "test_other.py").touch()
    found = partial(file_of_test, root=tmp_path)
    assert found("test_other::test_it[1]") == "tests/two/test_other.py::test_it[1]"
    assert found("two/test_same") == "tests/two/test_same.py"
    for lost in ("test_same", "test_third"):
        with pytest.raises(AssertionError, match=lost):
            found(lost)
