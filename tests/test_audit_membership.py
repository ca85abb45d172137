"""The game of membership, as the registry plays it."""

import json

import pytest
import torch

from fedveil.attacks.membership.registry import of_people
from fedveil.config import load
from fedveil.errors import FieldError
from fedveil.games import MembershipGame, game_of, play

TEXT = """
name = "small"
rounds = 4
[data]
name = "digits"
clients = 5
partition = "iid"
holdout = 0.4
[model]
name = "mlp"
[model.options]
hidden = [32]
[local]
epochs = 8
lr = 0.3
batch_size = 16
[privacy]
method = "sga-ldp"
epsilon_min = 5.0
epsilon_max = 5.0
similarity = "released"
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT.replace("[model.options]\n", ""))
    return load(str(path), [])


def game(config, **options):
    return game_of(config, "membership", **{"replicates": 3, **options})


def test_a_server_tells_members_without_a_defence_and_not_under_local_noise(config, tmp_path):
    found = play(game(config), tmp_path / "audit")
    verdicts = {(v.setting, v.attack): v for v in found.verdicts}
    assert {setting for setting, _ in verdicts} == {"vanilla", "sga-ldp"}
    plain, hidden = verdicts["vanilla", "fedmia-by-class"], verdicts["sga-ldp", "fedmia-by-class"]
    assert plain.low > 0.52
    assert plain.valid
    assert hidden.low <= 0.5 <= hidden.high
    assert hidden.without_defence == plain.point
    assert verdicts["vanilla", "source"].low > 0.05
    assert abs(verdicts["sga-ldp", "source"].point) < 0.1
    assert all(v.n == 3 and v.replication == "one run" for v in found.verdicts)
    kept = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert kept["game"] == "membership"
    assert len(kept["results"]) == len(found.verdicts)
    again = play(game(config, attacks=("fedmia",)), tmp_path / "audit")  # nothing is run twice
    assert {v.attack for v in again.verdicts} == {"fedmia"}
    assert again.verdicts[0].point == verdicts["vanilla", "fedmia"].point


def test_shadow_models_find_members_without_a_defence_and_fewer_under_local_noise(config, tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil.games.shadows.MODELS", 8)
    monkeypatch.setattr("fedveil.games.shadows.CLIENTS", 1)
    names = ("rmia-offline", "rmia-offline-update", "lira-online-trajectory", "calibrated-loss")
    found = play(game(config, attacks=names, replicates=1), tmp_path / "audit")
    verdicts = {(v.setting, v.attack): v for v in found.verdicts}
    assert len(verdicts) == 2 * len(names)
    plain, hidden = verdicts["vanilla", "rmia-offline"], verdicts["sga-ldp", "rmia-offline"]
    assert plain.point > 0.52
    assert hidden.point < plain.point
    assert hidden.without_defence == plain.point
    assert set(plain.details) == {"TPR at FPR 0.1"}  # 360 non-members: too few for a rate of .01
    assert any("0.01 needs 1000 non-members; there are 360" in note for note in plain.notes)
    false, true = found.roc["vanilla"]["rmia-offline"]
    assert false[0] == pytest.approx(10 / 360)
    assert true[-1] == 1.0


def test_what_noises_every_step_refuses_shadow_updates_by_name(config, tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil.games.shadows.MODELS", 4)
    keys = ("method='record'", "noise_multiplier=1.0", "examples=200", "clip=1.0")
    noised = load(str(tmp_path / "small.toml"), ["local.epochs=1", "rounds=1", *(f"privacy.{key}" for key in keys)])
    found = play(game(noised, attacks=("lira-offline-update", "lira-offline"), replicates=1), tmp_path / "audit")
    assert {(v.setting, v.attack) for v in found.verdicts} >= {("record", "lira-offline")}
    refused = {(r.setting, r.attack): r.reason for r in found.refused}
    assert "every step" in refused["record", "lira-offline-update"]


def test_what_cannot_be_asked_is_refused(config):
    with pytest.raises(FieldError, match="--attack"):
        game(config, attacks=("fedmai",))
    alone = config.model_copy(update={"data": config.data.model_copy(update={"holdout": 0.0})})
    with pytest.raises(FieldError, match="holdout"):
        play(game(alone))


ALONE = ["data.partition=quantity", "data.alpha=0.3", "data.clients=6", "data.min_size=1", "data.holdout=0.2"]


@pytest.fixture
def uneven(tmp_path):
    """Under seeds 1 and 2, though not under 0, a client trains on a single record."""
    path = tmp_path / "uneven.toml"
    path.write_text(TEXT.replace("[model.options]\n", ""))
    given = [*ALONE, "rounds=1", "local.epochs=1", "privacy.method=vanilla"]
    return load(str(path), given)


def test_a_client_of_one_record_is_refused_before_anything_is_played(uneven, tmp_path):
    with pytest.raises(FieldError, match=r"seed 1 .*clients \[1, 5\]") as refused:
        play(game(uneven, attacks=("loss", "fedmia")), tmp_path / "audit")
    assert refused.value.field == "data.partition"
    assert not (tmp_path / "audit").exists()
    by_default = game(uneven)
    assert not {"fedmia", "fedmia-by-class"} & {*by_default.chosen}
    assert any("seed 1" in line and "data.min_size" in line for line in by_default.check())


def test_a_client_of_one_record_takes_no_other_attack_with_it(uneven):
    found = play(game(uneven, attacks=("loss", "source")))
    assert {(v.attack, v.n) for v in found.verdicts} == {("loss", 3), ("source", 3)}


def test_runs_that_could_not_be_judged_are_said(uneven, monkeypatch):
    monkeypatch.setattr(MembershipGame, "small", "")
    found = {v.attack: v for v in play(game(uneven)).verdicts}
    assert (found["loss"].n, found["fedmia"].n) == (3, 1)
    assert any("2 of 3 runs" in note and "seed 1" in note for note in found["fedmia"].notes)
    assert not any("of 3 runs" in note for note in found["loss"].notes)


def test_a_person_is_told_by_the_mean_of_her_images(tmp_path):
    path = tmp_path / "small.toml"
    text = TEXT.replace("[model.options]\n", "").replace('name = "digits"', 'name = "digits"\nmade_up_people = 6')
    path.write_text(text[: text.index("[privacy]")])
    found = play(game(load(str(path), []), attacks=("loss", "person-loss")), tmp_path / "audit")
    verdicts = {v.attack: v for v in found.verdicts}
    assert verdicts["person-loss"].point > verdicts["loss"].point + 0.01


def test_whose_records_are_whose_has_to_be_known_for_persons(config, tmp_path):
    assert "person-loss" not in game(config).chosen
    found = play(game(config, attacks=("person-loss",), replicates=1), tmp_path / "audit")
    assert not found.verdicts
    assert all("person" in one.reason for one in found.refused)


def test_a_persons_score_is_the_mean_of_hers():
    scores, who = torch.tensor([1.0, 2.0, 6.0, 5.0]), torch.tensor([7, 3, 7, 9])
    assert of_people(scores, who).tolist() == [2.0, 3.5, 5.0]
