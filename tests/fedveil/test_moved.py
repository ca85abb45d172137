"""Old names of modules lead to where they lie now, with a warning; without the laboratory they say what to install."""

import importlib
import pickle
import subprocess
import sys
import warnings

import pytest

from fedveil.moved import present_name
from fedveil_lab.runs import Summary

OLD = {
    "fedveil.config.first": "read_columns",
    "fedveil.report.table": "Table",
    "fedveil.report.statement.books": "read_books",
    "fedveil.report.statement.check": "check",
    "fedveil.runs.disk": "LedgerFiles",
    "fedveil.runs.deployed": "ServerFolder",
    "fedveil.runs.rows": "parse_row",
    "fedveil.runs.provenance": "commit",
    "fedveil.config.folders": "CONFIG",
    "fedveil.engines.files": "LockedFile",
    "fedveil.attacks.membership": "MEMBERSHIPS",
    "fedveil.games.game": "play",
    "fedveil.own": "compare",
    "fedveil.cli.running": "run",
}


def forget(monkeypatch, name):
    """A module that nobody has imported by its old name yet."""
    for part in [part for part in sys.modules if part == name or part.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, part)


def room_of(name):
    """The room that an old name lies in, where that moved too."""
    room = ".".join(name.split(".")[:2])
    return name if present_name(room) is None else room


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_is_the_same_module_and_warns_once_where_it_is_imported(name, monkeypatch):
    forget(monkeypatch, room_of(name))
    with pytest.warns(DeprecationWarning, match="now") as said:
        old = importlib.import_module(name)
    [told] = [str(one.message) for one in said]
    moved = (name, present_name(name)), (room_of(name), present_name(room_of(name)))
    assert any(f"{before} is {now}" in told for before, now in moved)
    new = importlib.import_module(present_name(name))
    assert old is new or hasattr(new, OLD[name])
    assert getattr(old, OLD[name]) is getattr(new, OLD[name])
    assert new.__spec__.name == new.__name__ == present_name(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.import_module(name)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "line",
    [
        "from fedveil.config.first import read_columns",
        "from fedveil.report import table",
        "from fedveil.runs import deployed, disk",
        "import fedveil.runs.disk",
    ],
)
def test_one_warning_names_the_line_that_imports(line, tmp_path):
    (tmp_path / "mine.py").write_text(f"\n\n{line}\n")
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "mine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "mine.py:3: DeprecationWarning" in done.stderr
    assert done.stderr.count("DeprecationWarning") == 1


def test_what_was_pickled_under_an_old_name_is_read():
    old = pickle.dumps(Summary, protocol=0).replace(b"fedveil_lab", b"fedveil")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert pickle.loads(old) is Summary


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fedveil.nothing")
    with pytest.raises(ModuleNotFoundError), pytest.warns(DeprecationWarning, match="nothing"):
        importlib.import_module("fedveil.config.nothing")
