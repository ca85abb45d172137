"""The metric privacy paper's own statistics as a game: its runs, its shadow data, and what cannot be computed."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.config import load
from fedveil_lab.games import play
from fedveil_lab.games.roles import World
from fedveil_lab.runs.prepare import prepare
from fedveil_studies.metric_privacy import game
from fedveil_studies.metric_privacy.game import (
    PrintedGame,
    PrintedLoss,
    cells_of,
    cells_without_target,
)
from fedveil_studies.metric_privacy.printed import MULTI_ROUND, SINGLE_SHOT

SMALL = ["rounds=2", "local.epochs=1"]
BOTH = {(name, setting) for name in (SINGLE_SHOT, MULTI_ROUND) for setting in ("vanilla", "global")}


@pytest.fixture
def config():
    return load("digits-cia", SMALL)


def test_the_papers_shadow_is_its_own_whatever_is_asked(config):
    clean, public = (
        cells_of(SINGLE_SHOT, "x", config, World.of(3, shadow=s)) for s in ("clean", "public")
    )
    assert [cell.key for cell in clean] == [cell.key for cell in public]


def test_with_both_worlds_alike_the_statistic_is_of_two_runs_without_the_target(config):
    cells = cells_of(MULTI_ROUND, "x", config, World.of(3, stand_in="itself"))
    assert [cell.config.world.inside for cell in cells] == [False, False]
    assert cells[0].config.seed != cells[1].config.seed
    assert [c.key for c in cells] == [c.key for c in cells_without_target(config, World.of(3), 2)]


def test_runs_without_the_target_differ_in_all_but_their_deal(config):
    first, second = (prepare(cell.config) for cell in cells_without_target(config, World.of(3), 2))
    assert torch.equal(first.holders.shadow.x, second.holders.shadow.x)
    assert all(
        torch.equal(a.x, b.x)
        for a, b in zip(first.holders.clients, second.holders.clients, strict=True)
    )
    assert not torch.equal(first.starts, second.starts)
    assert len(first.holders.clients) == 2


@pytest.mark.slow
def test_both_are_played_once_and_stand_in_the_page(tmp_path, monkeypatch):
    asked = ["audit", "digits-cia", "--game", "as-printed", "--out", str(tmp_path / "a")]
    asked += [part for change in SMALL for part in ("--set", change)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    values = json.loads((tmp_path / "a" / "audit.json").read_text())
    found = {(r["attack"], r["setting"]): r for r in values["results"]}
    assert {*found} == BOTH
    assert found[MULTI_ROUND, "vanilla"]["runs"] == [20, 20]
    shot = found[SINGLE_SHOT, "global"]
    losses = shot["details"]
    assert shot["point"] == pytest.approx(
        100 * (1 - losses["aggregated loss"] / losses["shadow loss"])
    )
    assert MULTI_ROUND in (tmp_path / "a" / "audit.md").read_text()
    monkeypatch.setattr(
        "fedveil_lab.grid.store.run_together", lambda *_: pytest.fail("is played again")
    )
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert json.loads((tmp_path / "a" / "audit.json").read_text())["results"] == values["results"]


def test_a_setting_of_matched_sigma_takes_that_of_the_audits_rehearsals(config):
    built = PrintedGame(config, compare=True, attacks=(SINGLE_SHOT,), replicates=30)
    [cell] = built.runs[SINGLE_SHOT, "global (equal sigma)"]
    assert [one.key for one in cell.sources] == [
        one.key for one in built.rehearsed("metric privacy", built.of_case)
    ]
    assert len(cell.sources) == 15


def test_what_it_cannot_play_is_refused():
    held = load("digits-cia", ["data.holdout=0.0"])
    with pytest.raises(FieldError, match="holdout"):
        PrintedGame(held, attacks=(SINGLE_SHOT,))
    assert PrintedGame(held).chosen == (MULTI_ROUND,)
    with pytest.raises(FieldError, match="paper-single-shot"):
        PrintedGame(held, attacks=("paper-single-shoot",))
    with pytest.raises(FieldError, match="--shadow"):
        PrintedGame(held, shadow="noisy")


def test_a_statistic_that_cannot_be_computed_is_refused_and_says_why(config, tmp_path, monkeypatch):
    schedule = game._scheduled

    def diverging(config, rounds, epochs, world):
        found = schedule(config, rounds, epochs, world)
        return (
            found
            if rounds == 1
            else found.model_copy(update={"local": replace(found.local, lr=1e39)})
        )

    monkeypatch.setattr(PrintedLoss, "__call__", lambda self, seen: {"shadow_loss": float("nan")})
    monkeypatch.setattr(game, "_scheduled", diverging)
    for _ in range(2):  # the second time from the folder
        found = play(PrintedGame(config), tmp_path / "a")
        reasons = {(one.attack, one.setting): one.reason for one in found.refused}
        assert {*reasons} == BOTH
        assert "nan" in reasons[SINGLE_SHOT, "global"]
        assert "no usable reply" in reasons[MULTI_ROUND, "vanilla"]
        assert not found.verdicts
