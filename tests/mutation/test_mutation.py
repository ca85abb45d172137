"""Plant one bug at a time in copies of both packages: the ordinary tests must turn red, and stay green without a bug.

Runs under ``-m slow`` (``make mutation``); a bug whose place is no longer found exactly once fails at once, so that the
table follows the code.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from planted_bugs import BUGS
from planting import Bug

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "src" / "fedveil", ROOT / "studies" / "src" / "fedveil_studies")
GREEN, RED, ELSEWHERE = 0, 1, 77  # pytest's exit status for passed and failed tests; ours for another library

# Given to pytest as a plugin: it makes sure that the copy is what is tested, notes which of the asked-for tests have
# failed, and leaves out the rest of those that have.
PLUGIN = f"""
import json, os, pytest

COPY = os.environ["FEDVEIL_COPY"]
ASKED = json.loads(os.environ["FEDVEIL_ASKED"])
caught = set()

def owners(nodeid):
    return {{a for a in ASKED if nodeid == a or nodeid.startswith((a + "::", a + "["))}}

def pytest_configure(config):
    import fedveil, fedveil_studies
    for package in (fedveil, fedveil_studies):
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
    """Copy the library and the studies into a folder, and plant a bug in the copy."""
    copy = folder / "copy"
    for package in PACKAGES:
        shutil.copytree(package, copy / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "mutation_plugin.py").write_text(PLUGIN)
    if bug is not None:
        path = copy / bug.file
        path.write_text(bug.planted(path.read_text()))
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
    options = ["-q", "-p", "no:cacheprovider", "-p", "mutation_plugin", "--tb=line", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900)


def tail(result):
    return result.stdout[-3000:] + result.stderr[-1000:]


@pytest.mark.slow
def test_without_a_bug_the_tests_are_green(tmp_path):
    result = run(planted(tmp_path), sorted({test.partition("::")[0] for bug in BUGS for test in bug.tests}))
    assert result.returncode == GREEN, tail(result)


@pytest.mark.slow
@pytest.mark.parametrize("package", [package.name for package in PACKAGES])
def test_another_package_than_the_copy_is_noticed(package, tmp_path):
    copy = planted(tmp_path)
    shutil.rmtree(copy / package)  # so that the installed one is found, or none
    result = run(copy, ["tests/core/test_gdp.py"])
    assert result.returncode not in (GREEN, RED), tail(result)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_turns_each_of_its_tests_red(bug, tmp_path):
    if any(test.startswith("tests/flower") for test in bug.tests):
        pytest.importorskip("flwr")
    copy = planted(tmp_path, bug)
    result = run(copy, bug.tests)
    assert result.returncode == RED, f"{bug.name!r}: status {result.returncode}\n{tail(result)}"
    blind = set(bug.tests) - set(json.loads((copy / "caught.json").read_text()))
    assert not blind, f"{bug.name!r} got past {sorted(blind)}\n{tail(result)}"


@cache
def part_of(file, where):
    """A module as it stands, but for the definitions beside the outermost one that a bug is planted in."""
    [package] = [one for one in PACKAGES if one.name == file.partition("/")[0]]
    tree, outermost = ast.parse((package.parent / file).read_text()), where.partition(".")[0]
    tree.body = [s for s in tree.body if not outermost or getattr(s, "name", outermost) == outermost]
    return ast.unparse(tree)


def test_every_planted_bug_is_still_an_edit():
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names)
    for bug in BUGS:
        text = part_of(bug.file, bug.where)
        found = bug.planted(text)
        assert ast.parse(found)  # a bug, and no syntax error
        assert found != text
        for test in bug.tests:
            assert (ROOT / test.partition("::")[0]).exists(), test


class Reworded(ast.NodeTransformer):
    """Every text of several words says something else: docstrings, refusals, notes."""

    def visit_Constant(self, node):
        worded = isinstance(node.value, str) and " " in node.value.strip()
        return ast.Constant("in other words") if worded else node


def test_no_planted_bug_hangs_on_layout_or_wording():
    for bug in BUGS:  # without comments, with other lines, brackets and quotes, and in other words
        text = ast.unparse(Reworded().visit(ast.parse(part_of(bug.file, bug.where))))
        assert bug.planted(text) != text, bug.name


def test_what_judges_has_planted_bugs_too():
    for room, least in (("attacks", 10), ("games", 6), ("grid", 5)):
        assert sum(bug.file.startswith(f"fedveil/{room}/") for bug in BUGS) >= least, room
    assert sum(bug.file.startswith("fedveil_studies/") for bug in BUGS) >= 5


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
    return Bug("", "a.py", where, old, new, ()).planted(text)


def test_a_bug_is_found_by_its_definition_and_its_tree():
    halved = planted_in("first", "draw(sigma, n)", "draw(sigma / 2, n)")
    assert halved == ast.unparse(ast.parse(SMALL.replace("draw(sigma, n)", "draw(sigma / 2, n)", 1)))
    layout = SMALL.replace("draw(sigma, n)", "draw(  # of the noise\n        sigma,\n        n,\n    )")
    assert planted_in("first", "draw(sigma, n)", "draw(sigma / 2, n)", layout) == halved
    anything = planted_in("first", "if noise is None:\n    ...", "if False:\n    ...")
    assert anything == ast.unparse(ast.parse(SMALL.replace("noise is None", "False")))
    assert "ValueError" in planted_in("first", "raise ValueError(...)\n", "raise ValueError(...)\npass")
    for where, old in (("", "draw(sigma, n)"), ("first", "draw(sigma)"), ("third", "draw(sigma, n)")):
        with pytest.raises(AssertionError):
            planted_in(where, old, "None")
