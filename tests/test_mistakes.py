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


def relabelled(change):
    return [(x, change(y)) for x, y in DEALT]


def images(*shape):
    return [(RNG.normal(size=(10, *shape)).astype("float32"), np.arange(10) % 2) for _ in range(2)]


def convolutional(channels):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))


CLIENTS = {
    "float labels": ("clients[0].y", relabelled(lambda y: y.astype(float))),
    "labels in a column": ("clients[0].y", relabelled(lambda y: y[:, None])),
    "texts": ("clients[0].y", relabelled(lambda y: np.array(["ill", "well"])[y])),
    "objects": ("clients[0].y", relabelled(lambda y: y.astype(object))),
    "labels from 1": ("clients[0].y", relabelled(lambda y: y + 1)),
    "labels -1 and 1": ("clients[0].y", relabelled(lambda y: 2 * y - 1)),
    "one client's labels": ("clients[2].y", [*DEALT[:2], (X[:9], Y[:9] + 5)]),
    "one client's columns": ("clients[1].x", [DEALT[0], (X[:9, :4], Y[:9]), DEALT[2]]),
    "one client's targets": ("clients[1].y", [DEALT[0], (X[:9], Y[:9].astype("float32")), DEALT[2]]),
    "everybody's columns": ("clients[0].x", [(x[:, :4], y) for x, y in DEALT]),
    "whole numbers": ("clients[0].x", [((10 * x).astype(int), y) for x, y in DEALT]),
    "bytes": ("clients[0].x", [(np.abs(x).astype("uint8"), y) for x, y in DEALT]),
    "missing values": ("clients[2].x[0]", [*DEALT[:2], (np.where(X[:9] < 9, np.nan, 0), Y[:9])]),
    "lengths": ("clients[0].y", [(x, y[:-1]) for x, y in DEALT]),
}


@pytest.mark.parametrize("mistake", CLIENTS)
def test_examples_that_cannot_be_used_are_refused_before_round_1(mistake):
    field, clients = CLIENTS[mistake]
    with pytest.raises(fv.FieldError) as refused:
        fv.Federation(model=nn.Linear(6, 2), clients=clients)
    assert refused.value.field == field


@pytest.mark.parametrize(("shape", "channels"), [((8, 8), 1), ((8, 8, 3), 3)])
def test_images_without_their_channels_in_front_are_refused_with_what_to_write(shape, channels):
    with pytest.raises(fv.FieldError) as refused:
        fv.Federation(model=convolutional(channels), clients=images(*shape))
    assert refused.value.field == "clients[0].x"
    fitting = images(channels, 8, 8)
    assert fv.Federation(model=convolutional(channels), clients=fitting).run(rounds=1).rounds


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
    assert "did you mean 'mnist-by-writer'" in str(fv.errors.nearest("mnist", ["bloodmnist", "mnist-by-writer"]))


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
        ("model.module=newcomer:Nett", "model.name"),
        ("model.module=nowhere:Net", "model.name"),
        ("model.hiden=3", "model.hiden"),
        ("model.name=mlp", "model.module"),
    ],
)
def test_a_network_that_is_not_there_is_refused(own, assigned, field):
    with pytest.raises(fv.config.ConfigError) as refused:
        fv.config.load("own.toml", [assigned])
    assert refused.value.problems[0].field == field


@pytest.mark.parametrize(("name", "field"), [("newcomer:narrow", "clients[0].x"), ("newcomer:none", "model.name")])
def test_a_network_that_does_not_fit_is_refused_before_anything_is_written(own, name, field):
    spec = fv.config.load("own.toml", [f"model={{name = '{name}'}}"])
    with pytest.raises(fv.FieldError) as refused:
        fv.runs.run(spec, own / "run")
    assert refused.value.field == field
    assert not (own / "run" / "checkpoint").exists()


def test_a_run_without_privacy_and_a_run_of_one_client_are_said(own):
    warned = fv.runs.run(fv.config.load("own.toml", ["data.clients=1"]), own / "run").values["data"]["warnings"]
    assert any("[privacy]" in line for line in warned)
    assert any("one client" in line for line in warned)


def test_a_budget_over_other_rounds_than_the_runs_is_said(own):
    budget = "privacy={method='global', epsilon=8.0, rounds=2, delta=1e-5}"
    warned = fv.runs.run(fv.config.load("own.toml", [budget, "rounds=3"]), own / "run").values["data"]["warnings"]
    assert any("planned for 2" in line for line in warned)


def test_a_softmax_at_the_end_and_a_run_that_measures_nothing_are_said():
    with pytest.warns(UserWarning, match="softmax"):
        federation = fv.Federation(model=nn.Sequential(nn.Linear(6, 2), nn.Softmax(1)), clients=DEALT)
    history = federation.run(rounds=1)
    assert not history.metrics
    with pytest.raises(fv.FieldError, match="holds out"):
        history.metrics["accuracy"]
    assert len(repr(history)) < 200


def test_a_name_of_the_library_in_other_letters_is_suggested():
    with pytest.raises(AttributeError) as missing:
        fv.FedAVG  # noqa: B018
    assert (missing.value.name, missing.value.obj) == ("FedAVG", fv)  # from which Python's traceback suggests FedAvg


MISSPELT = {
    "metric privacy": (fv.MetricPrivacy, "nois_multiplier", "noise_multiplier"),
    "global DP": (fv.GlobalDP, "epsilom", "epsilon"),
    "SGA-LDP": (fv.SGALDP, "epsilon_mim", "epsilon_min"),
    "FedRE": (fv.FedRE, "cliping", "clip"),
    "record level": (fv.RecordDP, "example", "examples"),
    "group privacy": (fv.GroupPrivacy, "noise_multiplyer", "noise_multiplier"),
    "a rule": (fv.TrimmedMean, "fractions", "fraction"),
    "training": (fv.LocalTraining, "epoch", "epochs"),
}


@pytest.mark.parametrize("mistake", MISSPELT)
def test_a_misspelt_keyword_of_a_method_is_refused_with_the_one_that_was_meant(mistake):
    what, wrong, meant = MISSPELT[mistake]
    with pytest.raises(fv.FieldError, match=f"'{meant}'") as refused:
        what(**{wrong: 1.0})
    assert refused.value.field == wrong


def test_a_method_put_in_place_of_a_presets_leaves_out_what_it_does_not_have():
    put = ["privacy.method=sga-ldp", "rounds=1"]
    config = fv.config.load("digits-record", put)
    assert config.privacy.method == "sga-ldp"
    assert not config.compare.settings
    with pytest.raises(fv.FedVeilError, match="epsilon_min"):  # what was assigned beside it stays, and is refused
        fv.config.load("digits-record", [*put, "privacy.examples=3"])
    assert fv.config.load("digits-compare", ["privacy.method=group"]).aggregator is None


def test_arrays_that_nobody_uses_are_named(tmp_path):
    arrays = {"train_images": np.zeros((4, 8, 8)), "train_labels": np.arange(4) % 2, "val_images": np.zeros((2, 8, 8))}
    np.savez(tmp_path / "a.npz", **arrays)
    assert "val_images" in fv.data.load("npz", path=tmp_path / "a.npz").note
