"""Options beside an experiment's file are taken or refused, and `run` says what a budget cannot hold."""

import json

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil_lab.config import load
from fedveil_lab.runs.runner import Silent, run


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_delta_that_is_asked_for_is_that_of_the_promise_and_of_what_is_ranked():
    usual, asked = (
        call("--json", "advise", "digits-record", "--epsilon", "4", *more)
        for more in ((), ("--delta", "1e-7"))
    )
    assert (usual.exit_code, asked.exit_code) == (0, 0)
    promised = [json.loads(one.stdout.splitlines()[0])["guarantee"] for one in (usual, asked)]
    assert promised[1] != promised[0]
    assert "1e-07" in json.dumps(promised[1])
    ranked = [json.loads(one.stdout.splitlines()[1]) for one in (usual, asked)]
    assert ranked[0] != ranked[1]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("clients", 3),
        ("rounds", 9),
        ("unit", "client"),
        ("trust", "local"),
        ("relation", "replace-one"),
        ("records-per-person", 2),
        ("clip", 1.0),
        ("sigma", 2.0),
        ("sensitivity", 2.0),
    ],
)
def test_what_the_file_says_is_refused_beside_it(option, value):
    refused = call("advise", "digits-record", f"--{option}", value)
    assert refused.exit_code == 2
    assert f"--{option}" in refused.stderr


class Told(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.mark.parametrize(
    ("budget", "rounds", "said"),
    [
        (["privacy.budget.participations=1"], 4, True),
        (["privacy.budget.participations=4"], 4, False),
        (["privacy.budget.epsilon=.5"], 8, True),
        ([], 2, False),
    ],
)
def test_a_budget_that_holds_few_of_the_rounds_is_said_before_the_first(budget, rounds, said):
    told = Told()
    config = load("digits-record", [f"rounds={rounds}", "model.name=logistic", *budget])
    run(config, progress=told)
    lines = [line for line in told.lines if f"of the {rounds} rounds" in line]
    assert bool(lines) == said
