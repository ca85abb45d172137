"""Sizes that nobody means are refused at once, with the field's name: nothing is allocated, dealt out or started."""

import io
import time
import zipfile

import numpy as np
import pytest
import torch

from fedveil.data import partition
from fedveil.data.arrays import read_npz
from fedveil.engines import Federation
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import LocalTraining, build_model, make_trainer
from fedveil.learning.models import MODELS
from fedveil.mechanisms import SecureSource
from fedveil.methods import build
from fedveil_lab.config import ConfigError, load
from fedveil_lab.runs.prepare import prepare

CLIENT = (torch.zeros(6, 5), torch.zeros(6, dtype=torch.int64))


def federation(clients, **options):
    return Federation(model=torch.nn.Linear(5, 2), clients=clients, **options)


def trainer(kind):
    model = torch.nn.Linear(5, 2)
    return make_trainer(model, Layout.from_module(model), LocalTraining(), kind, workers=100_000)


def tiny(*assignments):
    """A small configuration, prepared for its run."""
    return prepare(load("digits-compare", assignments))


ABSURD = {
    "rounds of a configuration": (
        "rounds",
        lambda: load("digits-compare", ["rounds=99999999999999999999"]),
    ),
    "rounds that nobody trains": ("rounds", lambda: load("digits-compare", ["rounds=1000001"])),
    "rounds of a federation": ("rounds", lambda: federation([CLIENT] * 3).run(10**9)),
    "a seed beyond 64 bits": (
        "seed",
        lambda: load("digits-compare", ["seed=99999999999999999999"]),
    ),
    "steps beyond 64 bits": ("epochs", lambda: LocalTraining(epochs=10**20)),
    "hypotheses": ("hypotheses", lambda: build("group", hypotheses=10**9)),
    "one wide layer": (
        "model.hidden",
        lambda: tiny("model.name=mlp", "model.hidden=[99999999999]"),
    ),
    "two wide layers": (
        "model.hidden",
        lambda: tiny("model.name=mlp", "model.hidden=[3000000, 3000000]"),
    ),
    "layers beyond 64 bits": (
        "model.hidden",
        lambda: tiny("model.name=mlp", "model.hidden=[4000000000, 4000000000]"),
    ),
    "a layer beyond 64 bits": (
        "model.hidden",
        lambda: tiny("model.name=mlp", "model.hidden=[99999999999999999999]"),
    ),
    "channels": ("model.channels", lambda: tiny("model.name=lenet", "model.channels=99999999")),
    "heads": ("model.heads", lambda: tiny("model.name=femnist_cnn", "model.heads=99999999999999")),
    "clients beyond all memory": (
        "clients",
        lambda: partition(np.zeros(50, int), 10**14, "iid", seed=0),
    ),
    "more clients than examples": (
        "clients",
        lambda: partition(np.zeros(50, int), 51, "iid", seed=0),
    ),
    "more, by Dirichlet": (
        "clients",
        lambda: partition(np.zeros(50, int), 10**14, "dirichlet", seed=0, alpha=0.1),
    ),
    "more, by quantity": (
        "clients",
        lambda: partition(np.zeros(50, int), 10**14, "quantity", seed=0, alpha=0.1),
    ),
    "more, by shards": ("clients", lambda: partition(np.zeros(50, int), 10**14, "shards", seed=0)),
    "workers of a configuration": ("workers", lambda: load("digits-compare", ["workers=100000"])),
    "workers of a trainer": ("workers", lambda: trainer("sequential")),
    "workers of the batched trainer": ("workers", lambda: trainer("batched")),
    "threads of noise": ("threads", lambda: SecureSource(threads=100_000)),
    "a cohort beyond all clients": (
        "clients_per_round",
        lambda: federation([CLIENT] * 3, clients_per_round=10**14),
    ),
    "nobody has an example": ("clients", lambda: federation([(CLIENT[0][:0], CLIENT[1][:0])] * 2)),
}


@pytest.fixture(scope="module")
def ready():
    """What is imported with the first data is there."""
    tiny()


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_size_is_refused_by_name_and_at_once(name):
    field, make = ABSURD[name]
    began = time.process_time()
    with pytest.raises((FieldError, ConfigError), match=rf"^{field} = "):
        make()
    assert time.process_time() - began < 1.0


def test_a_model_of_ones_own_registry_that_cannot_be_built_without_memory_is_built():
    @MODELS.register("measured")
    def measured(input_shape, outputs):
        return torch.nn.Linear(int(torch.ones(4).sum().item()), outputs)

    assert build_model("measured", input_shape=(4,), outputs=2, seed=0).in_features == 4


def test_a_model_whose_own_code_fails_is_refused_by_name():
    @MODELS.register("broken")
    def broken(input_shape, outputs):
        raise RuntimeError("no such device")

    with pytest.raises(FieldError, match=r"^model\.name = 'broken'.*no such device"):
        build_model("broken", input_shape=(4,), outputs=2, seed=0)


KINDS = ("[1]", '["global"]', "{a = 1}", "3", "true")


@pytest.mark.parametrize(
    "key", ["privacy.method", "data.name", "model.name", "aggregator.name", "malicious.behaviour"]
)
@pytest.mark.parametrize("value", KINDS)
def test_a_name_of_a_wrong_kind_is_refused_by_its_key(key, value):
    with pytest.raises(ConfigError) as refused:
        load("digits-compare", [f"{key}={value}"])
    assert key in {problem.field for problem in refused.value.problems}


@pytest.mark.parametrize(
    "table", ["data", "model", "local", "privacy", "publish", "scoring", "stopping", "source"]
)
@pytest.mark.parametrize("value", KINDS[:2] + KINDS[3:])
def test_a_table_of_a_wrong_kind_is_refused_by_its_name(table, value):
    with pytest.raises(ConfigError, match=rf"^{table} = .*table with keys"):
        load("digits-compare", [f"{table}={value}"])


def test_one_client_without_examples_is_no_absurdity():
    assert len(federation([CLIENT, (CLIENT[0][:0], CLIENT[1][:0])]).run(1).rounds) == 1


@pytest.mark.parametrize("rows", [10**12, 10**5, 40])
def test_an_npz_header_larger_than_its_file_is_refused_before_anything_is_allocated(tmp_path, rows):
    header, path = io.BytesIO(), tmp_path / "odd.npz"
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(39 * 64 * 4))
    with pytest.raises(FieldError, match=r"array 'x' claims"):
        read_npz(path)
    whole = {"x": np.zeros((3, 4)), "names": np.array(["a", "bc"]), "empty": np.zeros((0, 7))}
    np.savez(path, **whole)
    assert all(np.array_equal(read_npz(path)[key], value) for key, value in whole.items())
