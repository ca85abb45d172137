"""Compare and audit a federation of one's own, by a function that makes it."""

import inspect

import pytest
import torch
from sklearn.datasets import load_digits

import fedveil as fv
from fedveil.errors import FieldError
from fedveil_lab.own import Compared

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")
CLIENTS = [(X[i:120:4], Y[i:120:4], X[1700 + i :: 4], Y[1700 + i :: 4]) for i in range(4)]
SETTINGS = {"no privacy": None, "global DP": fv.GlobalDP(epsilon=8, delta=1e-5, rounds=2, clip=1.0)}


def make(clients, method, seed):
    local = fv.LocalTraining(lr=0.5, epochs=2)
    return fv.Federation(
        model=lambda: torch.nn.Linear(64, 10),
        clients=clients,
        method=method,
        seed=seed,
        local=local,
    )


def test_settings_are_compared_under_the_same_seeds():
    found = fv.compare(make, CLIENTS, SETTINGS, rounds=2, seeds=2)
    assert [(s.setting, s.values["seed"]) for s in found] == [
        (k, n) for k in SETTINGS for n in range(2)
    ]
    by_hand = make(CLIENTS, None, 1).run(2)
    assert found[1].values["metrics"] == by_hand.metrics
    assert found[2].values["guarantees"]["server"]["epsilon"] == pytest.approx(8, abs=1e-6)
    assert found[2].values["guarantees"]["server"]["epsilon"] <= 8
    table = str(found)
    assert all(label in table for label in SETTINGS)
    assert "formal eps=" in table


def test_a_configuration_is_compared_as_on_the_command_line():
    config = fv.config.load(
        "digits-record", ["rounds=1", "compare.settings=[{label='none', method='vanilla'}]"]
    )
    found = fv.compare(config)
    assert isinstance(found, Compared)
    assert [s.setting for s in found] == ["none"]


def test_an_audit_sees_the_client_without_the_method_and_compares_promise_and_measurement():
    found = fv.audit(make, CLIENTS, SETTINGS["global DP"], rounds=2, replicates=4, target=1)
    loss = {v.setting: v for v in found.verdicts if v.attack == "loss"}
    assert loss["no defence"].point > 0.9  # its thirty images are a quarter of all
    assert loss["no defence"].point >= loss["with the method"].point
    assert (found.target, found.relation) == (1, "zero-out")
    assert "formal eps=8" in found.promised
    assert 0 <= found.measured.lower <= found.measured.ceiling
    assert {v.attack for v in found.verdicts} == {"loss", "calibrated-loss", "likelihood-ratio"}


@pytest.mark.few(1)
@pytest.mark.parametrize("relation", ["zero-out", "add/remove", "replace-one"])
def test_the_world_without_the_client_is_that_of_the_promise(relation):
    seen = []

    def counted(clients, method, seed):
        seen.append([len(c.x) for c in clients])
        return make(clients, method, seed)

    found = fv.audit(
        counted,
        CLIENTS,
        fv.GlobalDP(noise_multiplier=1.0, relation=relation),
        rounds=1,
        replicates=4,
    )
    without = {"zero-out": [30, 30, 30, 0], "add/remove": [30] * 3, "replace-one": [30] * 4}[
        relation
    ]
    assert found.relation == relation
    assert without in seen


def test_without_held_out_examples_there_is_no_calibrated_attack():
    bare = [c[:2] for c in CLIENTS]
    found = fv.audit(make, bare, rounds=1, replicates=4, instead=CLIENTS[0][:2])
    assert [(v.attack, v.setting) for v in found.verdicts] == [("loss", "no defence")]
    assert found.relation == "replace-one"


def test_the_front_door_s_audit_is_a_function_whatever_was_imported_before():
    import fedveil_lab.games.participation

    assert inspect.isfunction(fv.audit)
    assert inspect.isfunction(fv.compare)
    assert fedveil_lab.games.ParticipationGame is fedveil_lab.games.participation.ParticipationGame


def test_mistakes_are_named():
    with pytest.raises(FieldError, match="settings"):
        fv.compare(make, CLIENTS, rounds=2)
    with pytest.raises(FieldError, match="must return a Federation"):
        fv.compare(lambda clients, method, seed: None, CLIENTS, SETTINGS, rounds=2)
    with pytest.raises(FieldError, match="rounds"):
        fv.audit(make, CLIENTS)


def test_a_budget_calibrates_global_dp_and_contradictions_are_refused():
    method = fv.GlobalDP(epsilon=8, delta=1e-5, rounds=20)
    assert (
        method.noise_multiplier
        == fv.accounting.plan(epsilon=8, delta=1e-5, rounds=20).noise_multiplier
    )
    double = fv.GlobalDP(epsilon=8, rounds=20, relation="replace-one")
    assert double.noise_multiplier == pytest.approx(2 * method.noise_multiplier)
    for wrong, field in (
        ({"epsilon": 8}, "rounds"),
        ({"epsilon": 8, "rounds": 20, "noise_multiplier": 1.0}, "noise_multiplier"),
        ({"epsilon": 8, "rounds": 20, "order": "printed"}, "epsilon"),
        ({}, "epsilon=8"),
    ):
        with pytest.raises(FieldError, match=field):
            fv.GlobalDP(**wrong)


def test_a_setting_may_have_its_own_training_and_all_are_checked_before_the_first_runs():
    def with_local(clients, method, seed, local=None):
        made.append(local)
        return fv.Federation(
            model=lambda: torch.nn.Linear(64, 10), clients=clients, method=method, local=local
        )

    made: list = []
    slow = fv.LocalTraining(lr=1e-9)
    still, moved = fv.compare(with_local, CLIENTS, {"still": (None, slow), "moved": None}, rounds=1)
    assert made == [slow, None, slow, None]
    assert still.values["metrics"]["loss"] > moved.values["metrics"]["loss"]
    made.clear()
    misfit = fv.RecordDP(noise_multiplier=2.0, examples=1000, rate=0.5)  # silos of 30
    with pytest.raises(FieldError, match=r"^settings\['second'\]: examples of silo 0"):
        fv.compare(with_local, CLIENTS, {"first": None, "second": misfit}, rounds=1)
    assert len(made) == 2  # each was made once, and none of them runs
