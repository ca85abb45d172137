"""Audits that are asked again in one folder, and how little an interruption loses."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import fedveil as fv
from fedveil.accounting import Release
from fedveil.cli import app
from fedveil.errors import FedVeilError, FieldError
from fedveil.methods import build
from fedveil_lab import games, grid
from fedveil_lab.attacks import ATTACKS, Attack, Verdict
from fedveil_lab.config import load
from fedveil_lab.config.course import Comparison
from fedveil_lab.games import GAMES, Judgement, ParticipationGame, game_of, participation, play
from fedveil_lab.games.roles import AuditedConfig, World
from fedveil_lab.games.view import ParticipationView
from fedveil_lab.grid import Cell
from fedveil_lab.grid.jobs import block_size, run_together
from fedveil_lab.runs.prepare import prepare

pytestmark = pytest.mark.usefixtures("undrawn")
SMALL = ("rounds=1", f"data.counts={[[10] * 10, [10] * 10, [0] * 5 + [20] * 5]}")


def audit(config, out=None, progress=None, **options):
    return play(ParticipationGame(config, **options), out, progress)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(participation, "REHEARSALS", 4)


def setup_of(*changes):
    config = load("digits-cia", [SMALL[1], *changes])
    return prepare(AuditedConfig.of(config, World.of(3)))


def rows(found):
    return {(r["attack"], r["setting"]): r for r in found["results"]}


@pytest.mark.slow
def test_more_attacks_and_more_replicates_find_the_runs_of_the_folder(tmp_path, monkeypatch, few):
    config, folder = load("digits-cia", SMALL), tmp_path / "a"
    audit(config, folder, attacks=("side-channel",), replicates=5)
    first = json.loads((folder / "audit.json").read_text())
    with monkeypatch.context() as patch:
        patch.setattr(
            "fedveil_lab.grid.store.run_together", lambda *_: pytest.fail("is played again")
        )
        audit(config, folder, attacks=("loss", "side-channel"), replicates=5)
        second = json.loads((folder / "audit.json").read_text())
        assert audit(config, folder, attacks=("loss",), replicates=4).values["replicates"] == 4
    assert rows(first).items() <= rows(second).items()
    before = len(list((folder / "cells").iterdir()))
    audit(config, folder, attacks=("loss",), replicates=6)
    assert (
        len(list((folder / "cells").iterdir())) == before + 2 * 2
    )  # one more in each world of each setting


def test_blocks_are_as_small_as_replicates_are_slow():
    one, two = setup_of(), setup_of("workers=2")
    probes = [ParticipationView()]
    assert [block_size(one, probes, seconds) for seconds in (0.01, 5.0, 30.0, math.inf)] == [
        20,
        4,
        1,
        1,
    ]
    assert block_size(two, probes, 30.0) == 2  # or one of them would be idle
    assert block_size(setup_of("rounds=40000"), probes, 0.01) == 3  # of memory


def test_blocks_grow_when_it_is_known_how_long_a_run_takes(monkeypatch, few):
    sizes, played = [], run_together

    def counted(configs, *rest):
        sizes.append(len(configs))
        return played(configs, *rest)

    monkeypatch.setattr("fedveil_lab.grid.store.run_together", counted)
    monkeypatch.setattr("fedveil_lab.grid.jobs.SECONDS", 1e6)  # however busy this machine is
    audit(load("digits-cia", SMALL), attacks=("loss",), replicates=4)
    assert sizes == [1, 15, 16]  # of each setting 2 worlds with 4 rehearsals and 4 runs


def test_a_reply_that_the_server_drops_counts_as_nothing_sent():
    view = ParticipationView()
    setup = setup_of("clients_per_round=2")
    view.begin(
        replace(setup, method=build("vanilla"), holders=replace(setup.holders, adversaries=(0, 1)))
    )
    sent = {0: torch.tensor([1.0, 2.0, 3.0]), 1: torch.tensor([1.0, float("nan"), 0.0])}
    start, record = (
        SimpleNamespace(models=torch.zeros(1, 3)),
        SimpleNamespace(client_metrics=(), published={}),
    )
    received = {p: (Release("model", v),) for p, v in sent.items()}
    view(
        SimpleNamespace(broadcast=start, received=received, models=torch.zeros(1, 3), record=record)
    )
    assert view.observation().sent[:, 0].tolist() == [[1, 2, 3], [0, 0, 0]]


def test_any_game_is_played_by_its_name(tmp_path):
    asked = ["audit", "digits-cia", "--set", "rounds=1", "--out", str(tmp_path / "a")]
    result = CliRunner().invoke(
        app, [*asked, "--game", "membership", "--attack", "loss", "--replicates", "1"]
    )
    assert result.exit_code == 0, result.output
    assert "AUC, over one run" in result.output
    assert json.loads((tmp_path / "a" / "audit.json").read_text())["game"] == "membership"
    unknown = CliRunner().invoke(app, [*asked, "--game", "memberhip"])
    assert (unknown.exit_code, "did you mean 'membership'" in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("attacks", "options", "game"),
    [
        ([], {}, "participation"),
        (["loss"], {}, "participation"),
        (["loss", "fedmia"], {}, "membership"),
        (["inversion"], {"images": 2}, "inversion"),
        (["inversion", "dlg"], {}, "inversion"),
        (["membership"], {}, "membership"),
        (["paper-single-shot", "paper-multi-round"], {}, "as-printed"),
    ],
)
def test_attacks_tell_which_game_is_played(attacks, options, game):
    found = game_of(load("digits-cia", SMALL), attacks=attacks, **options)
    assert (found.name, list(found.attacks)) == (game, [a for a in attacks if a != game])


@pytest.mark.parametrize(
    ("attacks", "options", "words"),
    [
        (["loss", "dlg"], {}, "loss (participation), dlg (inversion)'"),
        (["dlgg"], {}, "did you mean 'dlg'"),
        (
            [],
            {"images": 3},
            "--images = 3: is no option of the game participation, but of inversion",
        ),
        (
            ["fedmia"],
            {"world": "empty"},
            "--out-world = 'empty': is no option of the game membership",
        ),
        (["loss"], {"imagse": 3}, "imagse"),
    ],
)
def test_what_no_game_plays_is_refused(attacks, options, words):
    with pytest.raises(FieldError, match=re.escape(words)):
        game_of(load("digits-cia", SMALL), attacks=attacks, **options)


class Step(Attack):
    """How far the loss on the shadow data falls in a round."""

    name, summary, needs = (
        "my-step",
        "fall of the target's loss in a round",
        frozenset({"models", "shadow"}),
    )

    def run(self, observation):
        losses = self.knowledge.loss_of(observation.models[:, :1], self.knowledge.shadow)
        return losses[:-1] - losses[1:]


@pytest.mark.slow
def test_an_attack_of_ones_own_is_played_also_in_a_folder_that_was_there(
    tmp_path, monkeypatch, few
):
    asked = ["audit", "digits-cia", "--replicates", "4", "--out", str(tmp_path / "a")]
    asked += [part for change in SMALL for part in ("--set", change)]
    assert CliRunner().invoke(app, [*asked, "--attack", "loss"]).exit_code == 0
    monkeypatch.setitem(ATTACKS, "my-step", Step)
    result = CliRunner().invoke(app, [*asked, "--attack", "my-step"])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert [(r["attack"], r["setting"]) for r in found["results"]] == [
        ("my-step", "vanilla"),
        ("my-step", "global"),
    ]
    assert not found["refused"]


class Guess:
    """Guesses."""

    name, together, known = "guess", False, ("coin",)

    def __init__(self, config, compare=False, attacks=(), heads=1):
        self.config, self.attacks, self.heads = config, attacks, heads

    def question(self):
        return {}

    def check(self):
        return []

    def cells(self):
        return [Cell("run", self.config)]

    def judge(self, finished):
        [outcome] = finished.outcomes.values()
        point = outcome.summary.values["metrics"]["accuracy"]
        where = {"attack": "coin", "setting": "run", "figure": "accuracy", "replication": "one run"}
        return Judgement([Verdict(**where, point=point, low=point, high=point, n=1)])


def test_a_game_of_ones_own_is_played_and_leaves_its_verdicts(tmp_path, monkeypatch):
    monkeypatch.setitem(GAMES, "guess", Guess)
    asked = ["audit", "digits-cia", "--set", "rounds=1", "--out", str(tmp_path / "a"), "--attack"]
    result = CliRunner().invoke(app, [*asked, "coin"])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert (found["game"], found["results"][0]["attack"]) == ("guess", "coin")
    assert "coin" in (tmp_path / "a" / "audit.md").read_text()
    assert "accepted" in CliRunner().invoke(app, [*asked, "coni"]).stderr
    assert fv.audit(load("digits-cia", ["rounds=1"]), attacks=["coin"]).verdicts[0].attack == "coin"


def test_seed_and_device_are_those_of_the_other_commands(tmp_path, monkeypatch):
    asked = []

    def stop(game, *arguments, executor):
        asked.append(game.config)
        raise FedVeilError("asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(games, "play", stop)
    for options in ([], ["--seed", "7", "--device", "auto"]):
        assert (
            CliRunner().invoke(app, ["audit", "digits-cia", *options]).stderr == "fedveil: asked\n"
        )
    assert [(c.seed, c.device) for c in asked] == [(0, "cpu"), (7, "auto")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["audit", "digits-cia", "--device", "cuda"])
    assert result.exit_code == 2
    assert "device = 'cuda': there is no GPU" in result.stderr


def test_its_help_names_every_attack():
    shown = set(CliRunner().invoke(app, ["audit", "--help"]).stdout.split())
    names = {attack.removeprefix("person-") for game in GAMES.values() for attack in game.known}
    assert {name for name in names if not name.endswith(("-update", "-trajectory"))} | {
        "own-update"
    } <= shown
    assert {"person-loss", "person-NAME"} <= {word.rstrip(",") for word in shown}


def test_an_attack_that_only_some_defences_exclude_is_played_against_the_others(few):
    local = {"label": "local", "method": "sga-ldp"}
    config = load("digits-cia", SMALL)
    compared = config.model_copy(
        update={
            "compare": Comparison.model_validate(
                {"settings": [{"method": "global", "noise_multiplier": 0.01}, local]}
            )
        }
    )
    found = audit(compared, attacks=("side-channel",), replicates=4, compare=True)
    assert {r.setting for r in found.refused} == {"local"}
    assert {v.setting for v in found.verdicts} >= {"global"}


def test_finished_runs_of_a_comparison_are_read(tmp_path, monkeypatch):
    config = load("digits-cia", SMALL)
    first = grid.compare(config, tmp_path / "a")
    monkeypatch.setattr("fedveil_lab.grid.store.run", lambda *_, **__: pytest.fail("run again"))
    again = grid.compare(config, tmp_path / "a", resume=True)
    assert [s.values for s in again] == [s.values for s in first]
