"""Plant one bug at a time in a copy of the library: the ordinary tests must turn red, and stay green without a bug.

Runs under ``-m slow``; a bug whose text is no longer found exactly once fails, so that the table follows the code.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted_bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "fedveil"
RED, ELSEWHERE = 1, 77  # pytest's exit status for failed tests; ours for a library that is not the copy

GUARD = (
    """
import os, pytest

def pytest_configure(config):
    import fedveil
    if not os.path.realpath(fedveil.__file__).startswith(os.environ["FEDVEIL_COPY"] + os.sep):
        pytest.exit(f"tested {fedveil.__file__}, not the copy", returncode=%d)
"""
    % ELSEWHERE
)


def planted(folder, bug=None):
    """Copy the library into a folder, and plant a bug in the copy."""
    copy = folder / "copy"
    shutil.copytree(PACKAGE, copy / "fedveil", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "copy_guard.py").write_text(GUARD)
    if bug is not None:
        path = copy / "fedveil" / bug.file
        text = path.read_text()
        assert text.count(bug.old) == 1, f"{bug.file} holds the text of {bug.name!r} {text.count(bug.old)} times"
        path.write_text(text.replace(bug.old, bug.new))
    return copy


def run(copy, tests):
    """Run ordinary tests against a copy of the library."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FEDVEIL_COPY": os.path.realpath(copy),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
        "OMP_NUM_THREADS": "1",
    }
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "copy_guard", "--tb=line", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def pytest_generate_tests(metafunc):
    if "bug" in metafunc.fixturenames:
        cases = [(bug, test) for bug in BUGS for test in bug.tests]
        ids = [f"{bug.name}: {test.rpartition('/')[2]}" for bug, test in cases]
        metafunc.parametrize(("bug", "test"), cases, ids=ids)


@pytest.mark.slow
def test_without_a_bug_the_tests_are_green(tmp_path):
    result = run(planted(tmp_path), sorted({test.partition("::")[0] for bug in BUGS for test in bug.tests}))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]


@pytest.mark.slow
def test_the_guard_notices_another_library(tmp_path):
    copy = planted(tmp_path)
    shutil.rmtree(copy / "fedveil")  # so that the installed library, or none, is found
    result = run(copy, ["tests/core/test_gdp.py"])
    assert result.returncode not in (0, RED)


@pytest.mark.slow
def test_a_planted_bug_turns_the_tests_red(bug, test, tmp_path):
    if test.startswith("tests/flower"):
        pytest.importorskip("flwr")
    result = run(planted(tmp_path, bug), [test])
    assert result.returncode == RED, f"{bug.name!r} got past {test}:\n" + result.stdout[-3000:] + result.stderr[-1000:]


def test_every_planted_bug_is_still_an_edit():
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names)
    for bug in BUGS:
        text = (PACKAGE / bug.file).read_text()
        assert text.count(bug.old) == 1, f"{bug.file} holds the text of {bug.name!r} {text.count(bug.old)} times"
        assert bug.new != bug.old
        compile(text.replace(bug.old, bug.new), bug.file, "exec")  # a bug, not a syntax error
        for test in bug.tests:
            assert (ROOT / test.partition("::")[0]).exists(), test
