"""`make rotate`: another slice of the long checks with each commit, red where one of its steps is."""

import importlib.util
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

TESTS = Path(__file__).resolve().parent


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"{name}_alone", TESTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rotate(tmp_path, monkeypatch):
    """The script, in a repository of its own with a target that passes and one that does not."""
    module = loaded("rotate")
    (tmp_path / "Makefile").write_text("good:\n\t@echo $(PYTEST_ARGS) > said\nbad:\n\t@false\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def commit(folder, times):
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for number in range(times):
        subprocess.run(
            ["git", *author, "commit", "-q", "--allow-empty", "-m", str(number)],
            cwd=folder,
            check=True,
        )


def test_every_slice_has_its_turn(rotate, tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    names = []
    for _ in rotate.TURNS:
        commit(tmp_path, 1)
        names.append(rotate.chosen("")[0])
    assert sorted(names) == sorted(rotate.TURNS)
    assert {*names} <= {*rotate.SLICES}


def test_a_shallow_clone_goes_by_the_commits_name(rotate, tmp_path, monkeypatch):
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=origin, check=True)
    turns = set()
    for number in range(3):
        commit(origin, 1)
        there = clone / str(number)
        subprocess.run(
            ["git", "clone", "-q", "--depth", "1", origin.as_uri(), str(there)], check=True
        )
        monkeypatch.setattr(rotate, "ROOT", there)
        turn, said = rotate.turn()
        assert "shallow" in said
        turns.add(turn)
    assert len(turns) == 3


def test_without_a_repository_and_as_asked(rotate):
    assert rotate.chosen("")[0] in rotate.TURNS
    assert rotate.chosen("crash-2")[0] == "crash-2"
    with pytest.raises(SystemExit, match="crash-9"):
        rotate.chosen("crash-9")


def test_a_step_that_fails_is_red_and_what_is_missing_is_left_out(
    rotate, tmp_path, monkeypatch, capfd
):
    good, bad, without = (
        rotate.Step("good", "--part 1/2"),
        rotate.Step("bad"),
        rotate.Step("bad", lacks=lambda: "a key"),
    )
    for steps, status in (((good,), 0), ((good, without), 0), ((bad, good), 1)):
        monkeypatch.setattr(rotate, "SLICES", {"one": steps})
        monkeypatch.setattr("sys.argv", ["rotate", "one"])
        assert rotate.main() == status
        assert "slice one" in capfd.readouterr().out
    assert "--part 1/2" in (tmp_path / "said").read_text()
    assert "a key" in rotate.run(without, 0)


def test_each_step_is_a_target_and_nothing_long_is_without_a_slice():
    module, makefile = loaded("rotate"), (TESTS.parent / "Makefile").read_text()
    targets = {step.target for steps in module.SLICES.values() for step in steps}
    names = {
        name
        for line in re.findall(r"^([a-z0-9. -]+):.*## ", makefile, re.MULTILINE)
        for name in line.split()
    }
    assert targets <= names
    assert targets >= {
        "mutation",
        "hostile",
        "crash",
        "slow",
        "fresh",
        "browser",
        "notebooks",
        "wheels",
        "deploy-test",
    }
    for folder in module.ELSEWHERE:  # which have targets of their own
        assert (TESTS / folder).is_dir()
        assert folder in targets


def test_the_parts_of_a_run_are_the_whole_and_none_is_in_two():
    chosen = []
    for part in ("1/3", "2/3", "3/3"):
        items, left_out = list(range(10)), []
        hook = SimpleNamespace(pytest_deselected=lambda items, to=left_out: to.extend(items))
        config = SimpleNamespace(option=SimpleNamespace(part=part), hook=hook)
        loaded("conftest").take_part(config, items)
        assert sorted(items + left_out) == list(range(10))
        assert 3 <= len(items) <= 4
        chosen += items
    assert sorted(chosen) == list(range(10))


class Case:
    """What the mark is read from, and what is marked."""

    def __init__(self, function, few):
        self.function, self.few, self.marked = function, few, []

    def get_closest_marker(self, name):
        return None if name != "few" or self.few is None else SimpleNamespace(args=(self.few,))

    def add_marker(self, mark):
        self.marked.append(mark.name)


def test_cases_beyond_the_first_few_are_slow():
    some, none, each = (
        [Case(name, few) for _ in range(3)]
        for name, few in (("some", 2), ("none", 0), ("each", None))
    )
    loaded("conftest").slow_beyond_a_few([*some, *none, *each])
    assert [case.marked for case in some] == [[], [], ["slow"]]
    assert [case.marked for case in none] == [["slow"]] * 3
    assert [case.marked for case in each] == [[]] * 3


@pytest.mark.parametrize(
    ("said", "line", "there"),
    [
        ("nvflare (2.9.0)\nAvailable versions: 2.9.0, 2.8.1, 2.7.2\n", "2.8.", True),
        ("nvflare (2.9.0)\nAvailable versions: 2.9.0, 2.7.2\n", "2.8.", False),
        ("nvflare (2.9.0)\nAvailable versions: 2.9.0\n", "", True),
        ("", "", False),
        (subprocess.TimeoutExpired("pip", 1), "", False),
    ],
)
def test_a_package_that_no_index_offers_leaves_its_step_out(rotate, monkeypatch, said, line, there):
    def answered(*arguments, **named):
        if isinstance(said, Exception):
            raise said
        return SimpleNamespace(returncode=0, stdout=said)

    monkeypatch.setattr(rotate.subprocess, "run", answered)
    assert (rotate.offered("nvflare", line)() == "") == there
