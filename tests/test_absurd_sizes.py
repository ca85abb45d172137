"""Sizes that nobody means are refused at once, with the field's name: nothing is allocated, dealt out or started."""

import io
import time
import zipfile

import numpy as np
import pytest
import torch

from fedveil.config import ConfigError, load
from fedveil.data import partition
from fedveil.data.arrays import read_npz
from fedveil.engines import Federation
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import LocalTraining, make_trainer
from fedveil.mechanisms import SecureSource

CLIENT = (torch.zeros(6, 5), torch.zeros(6, dtype=torch.int64))


def federation(clients, **options):
    return Federation(model=torch.nn.Linear(5, 2), clients=clients, **options)


def trainer(kind):
    model = torch.nn.Linear(5, 2)
    return make_trainer(model, Layout.from_module(model), LocalTraining(), kind, workers=100_000)


ABSURD = {
    "clients beyond all memory": ("clients", lambda: partition(np.zeros(50, int), 10**14, "iid", seed=0)),
    "more clients than examples": ("clients", lambda: partition(np.zeros(50, int), 51, "iid", seed=0)),
    "more, by Dirichlet": ("clients", lambda: partition(np.zeros(50, int), 10**14, "dirichlet", seed=0, alpha=0.1)),
    "more, by quantity": ("clients", lambda: partition(np.zeros(50, int), 10**14, "quantity", seed=0, alpha=0.1)),
    "more, by shards": ("clients", lambda: partition(np.zeros(50, int), 10**14, "shards", seed=0)),
    "workers of a configuration": ("workers", lambda: load("digits-compare", ["workers=100000"])),
    "workers of a trainer": ("workers", lambda: trainer("sequential")),
    "workers of the batched trainer": ("workers", lambda: trainer("batched")),
    "threads of noise": ("threads", lambda: SecureSource(threads=100_000)),
    "a cohort beyond all clients": ("clients_per_round", lambda: federation([CLIENT] * 3, clients_per_round=10**14)),
    "nobody has an example": ("clients", lambda: federation([(CLIENT[0][:0], CLIENT[1][:0])] * 2)),
}


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_size_is_refused_by_name_and_at_once(name):
    field, make = ABSURD[name]
    began = time.process_time()
    with pytest.raises((FieldError, ConfigError), match=rf"^{field} = "):
        make()
    assert time.process_time() - began < 1.0


def test_one_client_without_examples_is_no_absurdity():
    assert len(federation([CLIENT, (CLIENT[0][:0], CLIENT[1][:0])]).run(1).rounds) == 1


@pytest.mark.parametrize("rows", [10**12, 10**5, 40])
def test_an_npz_header_larger_than_its_file_is_refused_before_anything_is_allocated(tmp_path, rows):
    header, path = io.BytesIO(), tmp_path / "odd.npz"
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(39 * 64 * 4))
    with pytest.raises(FieldError, match=r"array 'x' claims"):
        read_npz(path)
    whole = {"x": np.zeros((3, 4)), "names": np.array(["a", "bc"]), "empty": np.zeros((0, 7))}
    np.savez(path, **whole)
    assert all(np.array_equal(read_npz(path)[key], value) for key, value in whole.items())
