"""The game of membership, as the registry plays it."""

import json

import numpy as np
import pytest
import torch

from fedveil.engines import Federation
from fedveil.errors import FieldError
from fedveil_lab.attacks.membership.records import of_people
from fedveil_lab.attacks.membership.scores import PEOPLE
from fedveil_lab.config import load
from fedveil_lab.games import MembershipGame, game_of, play
from fedveil_lab.runs.deal import deal_out

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


@pytest.mark.slow
def test_shadow_models_find_members_without_a_defence_and_fewer_under_local_noise(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedveil_lab.games.shadows.MODELS", 8)
    monkeypatch.setattr("fedveil_lab.games.shadows.CLIENTS", 1)
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
    false, true = found.values["roc"]["vanilla"]["rmia-offline"]
    assert false[0] == pytest.approx(10 / 360)
    assert true[-1] == 1.0


def test_what_noises_every_step_refuses_shadow_updates_by_name(config, tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil_lab.games.shadows.MODELS", 4)
    keys = ("method='record'", "noise_multiplier=1.0", "examples=200", "clip=1.0")
    noised = load(
        str(tmp_path / "small.toml"),
        ["local.epochs=1", "rounds=1", *(f"privacy.{key}" for key in keys)],
    )
    found = play(
        game(noised, attacks=("lira-offline-update", "lira-offline"), replicates=1),
        tmp_path / "audit",
    )
    assert {(v.setting, v.attack) for v in found.verdicts} >= {("record", "lira-offline")}
    refused = {(r.setting, r.attack): r.reason for r in found.refused}
    assert "every step" in refused["record", "lira-offline-update"]


def test_what_cannot_be_asked_is_refused(config):
    with pytest.raises(FieldError, match="--attack"):
        game(config, attacks=("fedmai",))
    alone = config.model_copy(update={"data": config.data.model_copy(update={"holdout": 0.0})})
    with pytest.raises(FieldError, match="holdout"):
        play(game(alone))


ALONE = [
    "data.partition=quantity",
    "data.alpha=0.3",
    "data.clients=6",
    "data.min_size=1",
    "data.holdout=0.2",
]


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
    text = TEXT.replace("[model.options]\n", "").replace(
        'name = "digits"', 'name = "digits"\nmade_up_people = 6'
    )
    path.write_text(text[: text.index("[privacy]")])
    found = play(game(load(str(path), []), attacks=("loss", "person-loss")), tmp_path / "audit")
    verdicts = {v.attack: v for v in found.verdicts}
    assert verdicts["person-loss"].point > verdicts["loss"].point + 0.01


def test_whose_records_are_whose_has_to_be_known_for_persons(config, tmp_path):
    assert "person-loss" not in game(config).chosen
    config = load(str(tmp_path / "small.toml"), ["local.epochs=1", "rounds=1"])
    found = play(game(config, attacks=("person-loss",), replicates=1), tmp_path / "audit")
    assert not found.verdicts
    assert all("person" in one.reason for one in found.refused)


def test_a_persons_score_is_the_mean_of_hers():
    scores, who = torch.tensor([1.0, 2.0, 6.0, 5.0]), torch.tensor([7, 3, 7, 9])
    assert of_people(scores, who).tolist() == [2.0, 3.5, 5.0]


SHADOWS = (
    "person-lira-offline",
    "person-rmia-online",
    "person-rmia-offline",
    "person-calibrated-loss",
)


@pytest.fixture
def people(tmp_path):
    """Ten times as many numbers in an example as decide its class: whoever is trained on is remembered."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(120), 3)
    np.savez(
        tmp_path / "people.npz",
        x=rng.normal(size=(360, 60)),
        y=rng.integers(0, 2, 360),
        patient=who,
    )
    text = TEXT.replace(
        'name = "digits"', f'name = "npz"\npath = "{tmp_path / "people.npz"}"\nperson = "patient"'
    )
    text = text.replace(
        'name = "mlp"\n[model.options]\nhidden = [32]', 'name = "logistic"'
    ).replace("0.4", "0.5")
    path = tmp_path / "people.toml"
    path.write_text(text[: text.index("[privacy]")] + "[privacy]\n")
    noise = "{method='record', unit='person', people=10, records_per_person=3, clip=1.0, epsilon=%s, delta=1e-5}"

    def at(epsilon):
        changes = [
            "data.classes=2",
            "rounds=8",
            f"privacy={noise % epsilon}",
            "local.lr=2.0",
            "local.epochs=1",
        ]
        return load(str(path), [*changes, "data.clients=4", "local.batch_size=1000"])

    return at


@pytest.mark.slow
def test_shadow_models_find_persons_where_noise_is_vacuous_and_not_where_it_protects(
    people, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedveil_lab.games.shadows.MODELS", 8)
    found = {}
    for epsilon in (1e6, 0.5):
        played = play(
            game(people(epsilon), attacks=SHADOWS, replicates=1), tmp_path / f"audit-{epsilon:g}"
        )
        assert {v.attack for v in played.verdicts} == set(SHADOWS)
        found |= {(v.attack, v.setting, epsilon): v.point for v in played.verdicts}
    for attack in SHADOWS:
        assert found[attack, "record", 1e6] > 0.75, attack
        assert found[attack, "record", 0.5] < 0.65, attack


def test_a_shadow_federation_has_all_records_of_a_person_where_she_is_or_none(people, monkeypatch):
    monkeypatch.setattr("fedveil_lab.games.shadows.MODELS", 4)
    played, run = [], Federation.run

    def noted(federation, rounds=None, on_round=None):
        played.append([c.person for c in federation.clients])
        return run(federation, rounds, on_round)

    monkeypatch.setattr(Federation, "run", noted)
    config = people(1e6)
    play(game(config, attacks=("person-lira-offline",), replicates=1))
    home = {
        int(p): i
        for i, c in enumerate(deal_out(config.data, config.seed).clients)
        for p in (*c.person, *c.test_person)
    }
    noisy = played[-4:]
    times = torch.zeros(120, dtype=torch.int64)
    for clients in noisy:
        for i, person in enumerate(clients):
            counted = torch.unique(person, return_counts=True)
            assert (counted[1] == 3).all()
            assert all(home[int(p)] == i for p in counted[0])
            times[counted[0]] += 1
    assert set(times.tolist()) == {0, 2}  # half of those in question; others are RMIA's population
    assert int((times == 2).sum()) > 60


def test_a_persons_shadow_score_needs_to_know_whose_records_are_whose(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedveil_lab.games.shadows.MODELS", 4)
    assert not any(name.startswith(PEOPLE) for name in game(config).chosen)
    config = load(str(tmp_path / "small.toml"), ["local.epochs=1", "rounds=1"])
    found = play(game(config, attacks=("person-lira-online",), replicates=1), tmp_path / "audit")
    assert not found.verdicts
    assert all("whose" in one.reason for one in found.refused)
