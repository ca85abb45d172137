"""A gate: declared before the first run, checked after the last, and no score offsets a failed promise."""

import json

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.config import load
from fedveil_lab.grid.gate import Gate

runner = CliRunner()
CONFIG = """
name = "g"
rounds = 2
[data]
name = "breast-cancer"
clients = 4
[model]
name = "logistic"
[compare]
settings = [
    {label = "none", method = "vanilla"},
    {label = "noise", method = "global", noise_multiplier = 3.0, clip = 1.0},
]
"""
GATE = """
setting = "{setting}"
[privacy]
unit = "{unit}"
epsilon = {epsilon}
delta = 1e-5
[measures]
auc = {auc}
"""


@pytest.fixture
def here(tmp_path, monkeypatch, undrawn):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(CONFIG)
    return tmp_path


def gate(folder, **changes):
    values = {"setting": "noise", "unit": "hospital", "epsilon": 8.0, "auc": 0.5, **changes}
    (folder / "gate.toml").write_text(GATE.format(**values))


def compare(*more):
    return runner.invoke(app, ["compare", "c.toml", "--gate", "gate.toml", "--out", "out", *more])


def test_a_promise_kept_and_a_score_reached_pass(here):
    gate(here)
    done = compare()
    assert done.exit_code == 0, done.output
    stored = json.loads((here / "out" / "gate.json").read_text())
    assert stored["result"]["passed"]
    assert stored["declared"]["seeds"] == 1
    assert stored["limits"]["privacy"]["unit"] == "client"


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"setting": "none", "auc": 0.0}, "privacy"),  # the best score there is
        ({"epsilon": 0.5, "auc": 0.0}, "privacy"),
        ({"unit": "patient", "auc": 0.0}, "privacy"),
        ({"auc": 1.0}, "measures"),
    ],
)
def test_what_fails_is_said_and_is_the_exit_code(here, changes, failing):
    gate(here, **changes)
    done = compare()
    assert done.exit_code == 6, done.output
    result = json.loads((here / "out" / "gate.json").read_text())["result"]
    assert not result["passed"]
    assert [part for part in ("privacy", "attack", "measures") if result[part]] == [failing]
    assert ("no score offsets" in done.output) == (failing == "privacy")


def test_nothing_is_asked_afterwards(here):
    gate(here)
    assert compare().exit_code == 0
    gate(here, auc=0.4)
    changed = compare("--resume")
    assert changed.exit_code == 2
    assert "gate" in changed.output
    without = runner.invoke(app, ["compare", "c.toml", "--out", "out", "--resume"])
    assert without.exit_code == 2
    gate(here)
    assert compare("--resume").exit_code == 0
    assert runner.invoke(app, ["compare", "c.toml", "--out", "bare"]).exit_code == 0
    late = runner.invoke(
        app, ["compare", "c.toml", "--out", "bare", "--resume", "--gate", "gate.toml"]
    )
    assert late.exit_code == 2
    assert not (here / "bare" / "gate.json").exists()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (GATE.format(setting="nose", unit="client", epsilon=1.0, auc=0.5), "setting"),
        (GATE.format(setting="noise", unit="household", epsilon=1.0, auc=0.5), "privacy.unit"),
        (GATE.format(setting="noise", unit="client", epsilon=0.0, auc=0.5), "privacy.epsilon"),
        (
            GATE.format(setting="noise", unit="client", epsilon=1.0, auc=0.5) + "f2 = 1\n",
            "measures.f2",
        ),
        (
            GATE.format(setting="noise", unit="client", epsilon=1.0, auc=0.5)
            + "[attack]\nauc = 0.6\n",
            "attack",
        ),
        ('setting = "noise"\n[privacy]\nunit = "client"\n', "measures"),
        ("not toml", "TOML"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_first_run(here, text, field):
    (here / "gate.toml").write_text(text)
    done = compare()
    assert done.exit_code == 2, done.output
    assert field in done.output
    assert not list((here / "out").glob("cells/*")) if (here / "out").exists() else True


def test_limits_are_of_the_file(here):
    gate(here, epsilon=4.0)
    read = Gate.read(here / "gate.toml", load("c.toml"))
    assert (read.setting, read.unit, read.epsilon, dict(read.measures)) == (
        "noise",
        "client",
        4.0,
        {"auc": 0.5},
    )
    with pytest.raises(FieldError, match="gate"):
        Gate.read(here / "none.toml", load("c.toml"))
