"""Bad input on the command line: one clear line that names the key, exit code 2, and nothing released."""

import json

import pytest
from click.testing import CliRunner

from fedveil.cli import app

SPEC = """
name = "tiny"
rounds = 2
[data]
name = "breast-cancer"
clients = 4
[model]
name = "logistic"
[privacy]
method = "global"
clip = 1.0
"""
NUMBERS = ("0", "-1", "nan", "inf", "-inf", "true", '"x"')


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(SPEC)
    return tmp_path


def call(*arguments, sets=()):
    return CliRunner().invoke(app, [*arguments, *(part for s in sets for part in ("--set", s))])


def run(*sets, out="r"):
    needs = not any(
        "sga-ldp" in text or "noise_multiplier" in text for text in sets
    )  # global DP asks for its noise
    return call(
        "run", "tiny.toml", "--out", out, sets=(*sets, *["privacy.noise_multiplier=0.01"] * needs)
    )


def assert_refused(result, field):
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith((f"fedveil: {field} = ", f"fedveil: {field} is missing")), (
        result.stderr
    )
    assert "Traceback" not in result.output


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize(
    "key", ["noise_multiplier", "clip", "budget.epsilon", "budget.delta", "budget.participations"]
)
def test_numbers_that_are_none(here, key, value):
    assert_refused(run(f"privacy.{key}={value}"), f"privacy.{key}")
    assert not (here / "r").exists()


@pytest.mark.parametrize(
    ("sets", "field"),
    [
        (["privacy.budget.delta=1"], "privacy.budget.delta"),
        (["clients_per_round=5"], "clients_per_round"),
        (["clients_per_round=0"], "clients_per_round"),
        (["clients_per_round=2", "privacy.relation=add/remove"], "relation"),
        (["privacy.relation=neighbours"], "privacy.relation"),
        (["aggregator.weighting=examples"], "aggregator.max_examples"),
        (["aggregator.weighting=examples", "aggregator.max_examples=0"], "aggregator.max_examples"),
        (["aggregator.weighting=size"], "aggregator.weighting"),
        (["privacy.method=metric", "privacy.budget.epsilon=8.0"], "privacy.budget.epsilon"),
        (["privacy.method=sga-ldp", "privacy.budget.epsilon=8.0"], "privacy.budget.epsilon"),
        (
            ["privacy.order=printed", "aggregator.name=fedadam", "privacy.budget.epsilon=8.0"],
            "privacy.budget.epsilon",
        ),
        (
            ["privacy.order=printed", "privacy.relation=add/remove", "privacy.budget.epsilon=8"],
            "privacy.budget.epsilon",
        ),
        (["privacy.method=sga-ldp", "aggregator.weighting=examples"], "aggregator.weighting"),
        (["rounds=0"], "rounds"),
        (["rounds=-3"], "rounds"),
    ],
)
def test_settings_that_cannot_hold(here, sets, field):
    assert_refused(run(*sets), field)
    assert not (here / "r").exists()


def test_a_budget_below_one_round_releases_nothing(here):
    result = run("privacy.budget.epsilon=1e-9")
    assert result.exit_code == 3
    assert "round 1: the server's budget is used up" in result.stderr
    summary = json.loads((here / "r" / "summary.json").read_text())
    assert (summary["rounds"], summary["guarantee"]) == (0, "none")
    opening = (here / "r" / "ledger" / "server.jsonl").read_text().splitlines()
    assert len(opening) == 1  # the line that binds the run's parties: no release


def test_a_delta_that_gives_a_client_away_is_warned_about(here):
    many = "data.clients=20"
    assert "one of the 20 clients whole" in run("privacy.budget.delta=0.1", many).output
    assert "1/n" not in run("privacy.budget.delta=0.04", many, out="s").output


def test_a_delta_at_which_no_noise_has_a_small_epsilon_is_refused(here):
    assert_refused(run("privacy.budget.delta=0.5"), "privacy.budget.delta")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("option", ["epsilon", "delta", "clip"])
def test_plans_of_numbers_that_are_none(option, value):
    options = {"epsilon": "1", "delta": "1e-5", "rounds": "3", option: value}
    result = call(
        "plan", *(part for name, given in options.items() for part in (f"--{name}", given))
    )
    assert_refused(result, option)
    assert result.stdout == ""


@pytest.mark.parametrize("noise", ["1e-320", "1e-200", "1e300"])
def test_plans_at_the_edge_of_floats_end_in_words(noise):
    for rest in (["--rounds", "3"], ["--epsilon", "3"]):
        result = call("plan", "--delta", "1e-5", "--noise-multiplier", noise, *rest)
        assert result.exit_code in (0, 2), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
