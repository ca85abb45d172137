"""Mistakes of a first hour whose consequences take more than a line; the registry has the others."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import fedveil as fv

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 6)).astype("float32")
Y = np.arange(120) % 2
DEALT = [(X[i::3], Y[i::3]) for i in range(3)]


def test_lists_data_frames_and_empty_clients_are_fine():
    pandas = pytest.importorskip("pandas")
    clients = [(X.tolist(), Y.tolist()), (pandas.DataFrame(X), pandas.Series(Y)), (X[:0], Y[:0])]
    history = fv.Federation(model=nn.Linear(6, 2), clients=clients).run(rounds=1)
    assert not history.rounds[0].zeroed
    assert len(history.rounds[0].round.used) == 3


def test_trying_the_model_leaves_its_mode_and_the_random_state_as_they_were():
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    before = torch.random.get_rng_state()
    fv.Federation(model=model, clients=DEALT)
    assert model[1].training
    assert torch.equal(before, torch.random.get_rng_state())


def test_one_client_is_said():
    with pytest.warns(UserWarning, match="one client"):
        fv.Federation(model=nn.Linear(6, 2), clients=DEALT[:1])


def test_the_name_that_goes_on_as_was_written_is_suggested_first():
    assert "did you mean 'mnist-by-writer'" in str(
        fv.errors.nearest("mnist", ["bloodmnist", "mnist-by-writer"])
    )


TOML = """
name = "tiny"
rounds = 1
[data]
name = "digits"
clients = 2
[model]
module = "newcomer:Net"
hidden = 5
"""
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, outputs, hidden: int = 8):
        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, outputs))

def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))

def none():
    return 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "newcomer.py").write_text(NET)
    (tmp_path / "own.toml").write_text(TOML)
    yield tmp_path
    sys.modules.pop("newcomer", None)


def test_a_network_of_ones_own_runs_and_goes_on_from_its_folder(own):
    path = list(sys.path)
    first = fv.runs.run(fv.config.load("own.toml"), own / "run")
    assert first.values["dimension"] == 64 * 5 + 5 + 5 * 10 + 10
    assert fv.config.load(own / "run").model.options == {"hidden": 5}
    assert sys.path == path


@pytest.mark.parametrize(
    ("assigned", "field"),
    [
        ("model.module=Net", "model.module"),
        ("model.module=newcomer:Nett", "model.module"),
        ("model.module=nowhere:Net", "model.module"),
        ("model.hiden=3", "model.hiden"),
        ("model.name=mlp", "model.module"),
    ],
)
def test_a_network_that_is_not_there_is_refused(own, assigned, field):
    with pytest.raises(fv.config.ConfigError) as refused:
        fv.config.load("own.toml", [assigned])
    assert refused.value.problems[0].field == field


@pytest.mark.parametrize(
    ("name", "field"), [("newcomer:narrow", "clients[0].x"), ("newcomer:none", "model.module")]
)
def test_a_network_that_does_not_fit_is_refused_before_anything_is_written(own, name, field):
    spec = fv.config.load("own.toml", [f"model={{name = '{name}'}}"])
    with pytest.raises(fv.FieldError) as refused:
        fv.runs.run(spec, own / "run")
    assert refused.value.field == field
    assert not (own / "run" / "checkpoint").exists()


def test_a_run_without_privacy_and_a_run_of_one_client_are_said(own):
    warned = fv.runs.run(fv.config.load("own.toml", ["data.clients=1"]), own / "run").values[
        "data"
    ]["warnings"]
    assert any("[privacy]" in line for line in warned)
    assert any("one client" in line for line in warned)


def test_a_budget_over_other_rounds_than_the_runs_is_said(own):
    budget = "privacy={method='global', epsilon=8.0, rounds=2, delta=1e-5}"
    warned = fv.runs.run(fv.config.load("own.toml", [budget, "rounds=3"]), own / "run").values[
        "data"
    ]["warnings"]
    assert any("planned for 2" in line for line in warned)


def test_a_softmax_at_the_end_and_a_run_that_measures_nothing_are_said():
    with pytest.warns(UserWarning, match="softmax"):
        federation = fv.Federation(
            model=nn.Sequential(nn.Linear(6, 2), nn.Softmax(1)), clients=DEALT
        )
    history = federation.run(rounds=1)
    assert not history.metrics
    with pytest.raises(fv.FieldError, match="holds out"):
        history.metrics["accuracy"]
    assert len(repr(history)) < 200


def test_a_name_of_the_library_in_other_letters_is_suggested():
    with pytest.raises(AttributeError) as missing:
        fv.FedAVG  # noqa: B018
    assert (missing.value.name, missing.value.obj) == (
        "FedAVG",
        fv,
    )  # from which Python's traceback suggests FedAvg


def test_a_method_put_in_place_of_a_presets_leaves_out_what_it_does_not_have():
    put = ["privacy.method=sga-ldp", "rounds=1"]
    config = fv.config.load("digits-record", put)
    assert config.privacy.method == "sga-ldp"
    assert not config.compare.settings
    with pytest.raises(
        fv.FedVeilError, match="epsilon_min"
    ):  # what was assigned beside it stays, and is refused
        fv.config.load("digits-record", [*put, "privacy.examples=3"])
    assert fv.config.load("digits-compare", ["privacy.method=group"]).aggregator is None


def test_arrays_that_nobody_uses_are_named(tmp_path):
    arrays = {
        "train_images": np.zeros((4, 8, 8)),
        "train_labels": np.arange(4) % 2,
        "val_images": np.zeros((2, 8, 8)),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    assert "val_images" in fv.data.load("npz", path=tmp_path / "a.npz").note
