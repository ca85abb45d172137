"""No command writes over what another one left, or the same one for another question."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil_lab.attacks import Verdict
from fedveil_studies.own_methods.game import PartyGame

pytestmark = pytest.mark.usefixtures("undrawn")
TINY = """
name = "tiny"
rounds = 1
[data]
name = "breast-cancer"
clients = 3
[model]
name = "logistic"
[privacy]
method = "global"
noise_multiplier = 1.0
"""
MEMBERS = ("--game", "membership", "--attack", "loss", "--replicates", "1")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    return tmp_path


def call(*arguments):
    found = CliRunner().invoke(app, [*map(str, arguments)])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def files(folder):
    return {
        path: path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize(
    "other",
    [
        ("--set", "privacy.clip=2.0"),
        ("--set", "rounds=2"),
        ("--seed", 1),
        ("--game", "participation", "--attack", "loss", "--replicates", "6"),
    ],
)
def test_another_audit_takes_another_folder(other, here):
    assert call("audit", "tiny.toml", *MEMBERS, "--out", "o").exit_code == 0
    before = files("o")
    asked = other if other[0] == "--game" else (*MEMBERS, *other)
    refused = call("audit", "tiny.toml", *asked, "--out", "o")
    assert refused.exit_code == 2
    assert "--out" in refused.stderr
    assert files("o") == before
    assert call("audit", "tiny.toml", *MEMBERS, "--out", "o").exit_code == 0


def test_a_target_is_another_question_and_more_attacks_are_not(here, monkeypatch):
    monkeypatch.setattr("fedveil_lab.games.participation.REHEARSALS", 4)
    asked = ("audit", "tiny.toml", "--attack", "loss", "--replicates", "6", "--out", "o")
    assert call(*asked).exit_code == 0
    assert call(*asked, "--target", "1").exit_code == 2
    assert call(*asked, "--attack", "calibrated-loss").exit_code == 0


def test_without_a_name_another_audit_gets_a_folder_of_its_own(here):
    assert call("audit", "tiny.toml", *MEMBERS).exit_code == 0
    before = files("runs/tiny-audit")
    assert call("audit", "tiny.toml", *MEMBERS, "--seed", "3").exit_code == 0
    assert files("runs/tiny-audit") == before
    assert Path("runs/tiny-audit-2/audit.json").is_file()


def test_verify_replaces_no_figures_of_another_question(here, monkeypatch):
    details = {"dimension": 1, "epsilon at delta 0": 0.0, "ceiling": 1.0, "broken": 0.0}
    about = {
        "attack": "a",
        "setting": "m",
        "figure": "mu",
        "n": 8,
        "replication": "one",
        "notes": ["mu = 1"],
    }
    verdict = Verdict.of(0.5, details=details, **about)
    room = "fedveil_studies.own_methods"
    monkeypatch.setattr(f"{room}.noise_game", lambda: PartyGame("noise", [], {}))
    monkeypatch.setattr(
        f"{room}.guarantees_game",
        lambda runs: PartyGame("game", [lambda: [verdict]], {"runs": runs}),
    )
    assert call("verify", "--runs", "8", "--out", "v").exit_code == 0
    before = files("v")
    assert call("verify", "--runs", "9", "--out", "v").exit_code == 2
    assert call("verify", "--runs", "8", "--out", ".").exit_code == 2  # beside somebody's TOML
    assert files("v") == before
    assert call("verify", "--runs", "8").exit_code == call("verify", "--runs", "9").exit_code == 0
    assert {json.loads(path.read_text())["runs"] for path in Path("runs").glob("*/game.json")} == {
        8,
        9,
    }


def test_reports_and_pictures_go_beside_nobodys_files(here):
    assert call("run", "tiny.toml", "--out", "one").exit_code == 0
    assert call("run", "tiny.toml", "--seed", "1", "--out", "two").exit_code == 0
    assert call("report", "one", "--out", "page").exit_code == 0
    assert call("report", "one", "--out", "page").exit_code == 0
    before = files(".")
    assert call("report", "two", "--out", "page").exit_code == 2
    assert call("report", "two", "--out", "one").exit_code == 2
    assert call("data", "show", "tiny.toml", "--out", "one").exit_code == 2
    assert call("verify", "--out", "one").exit_code == 2
    assert call("init", "tiny.toml", "--data", "digits").exit_code == 2
    assert files(".") == before


def test_a_study_replaces_no_tables_of_another(here):
    from fedveil.errors import FieldError
    from fedveil_studies.frame.files import refuse_another

    table = Path("quick/table-1.json")
    table.parent.mkdir()
    table.write_text(json.dumps({"study": "one"}))
    refuse_another(Path(), "one")
    with pytest.raises(FieldError, match="one"):
        refuse_another(Path(), "two")
