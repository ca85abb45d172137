"""`fedveil verify`: the game on every method's path as a command."""

import json
from dataclasses import replace
from functools import partial

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil_studies import own_methods
from fedveil_studies.own_methods import cases, game, noise
from fedveil_studies.own_methods.noise import methods


@pytest.mark.slow
def test_every_claim_is_played_and_a_beaten_one_ends_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(
        own_methods, "guarantees_game", partial(game.guarantees_game, dimensions=(1,))
    )
    monkeypatch.setattr(own_methods, "noise_game", partial(game.noise_game, dimensions=(1,)))
    monkeypatch.setattr(noise, "PARTIES", 4)
    result = CliRunner().invoke(app, ["verify", "--runs", "20", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "game.json").read_text())
    assert [verdict["setting"] for verdict in record["verdicts"]] == [
        case.name for case in cases(1)
    ]
    assert {verdict["details"].get("broken") for verdict in record["verdicts"]} == {0.0, None}
    assert (record["runs"], record["provenance"]["seeds"]) == (20, [1])
    told = json.loads((tmp_path / "noise.json").read_text())["verdicts"]
    assert [verdict["setting"] for verdict in told] == [one.name for one in methods(1)]
    assert not any(verdict["details"]["broken"] for verdict in told)
    monkeypatch.setattr(game, "held", lambda case, result: False)
    beaten = CliRunner().invoke(app, ["verify", "--runs", "8", "--out", str(tmp_path / "beaten")])
    assert beaten.exit_code == 1
    assert "claims are beaten" in beaten.stderr


@pytest.mark.few(0)
def test_a_claim_that_is_too_small_is_beaten():
    fedavg = next(case for case in cases(1) if case.name == "global DP, FedAvg")
    for claimed, runs, broken in ((fedavg.claimed_mu, 800, 0.0), (0.2, 800, 1.0), (None, 8, None)):
        [found] = game.duel_verdicts(replace(fedavg, claimed_mu=claimed), 1, runs)
        assert found.details.get("broken") == broken
    printed = next(case for case in cases(1) if case.name == "metric privacy, as printed")
    assert "broken" not in game.duel_verdicts(printed, 1, 8)[0].details  # nothing is claimed
