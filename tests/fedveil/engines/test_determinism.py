"""One seed, one result: whatever number of workers trains, and however large the blocks are in which things are summed."""

import importlib

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.methods import build

METHODS = {
    "global": ("global", {"noise_multiplier": 1.0, "clip": 1.0}),
    "sga-ldp": ("sga-ldp", {"clip": 0.5}),
    "record": ("record", {"examples": 60, "noise_multiplier": 1.0, "clip": 1.0}),
    "record, secure sum": (
        "record",
        {
            "examples": 60,
            "noise_multiplier": 1.0,
            "clip": 1.0,
            "sum": "secure",
            "least_sites": 4,
            "lr": 0.1,
        },
    ),
}
# Each with a size that cuts this federation's 2,410 parameters and 60 examples into several blocks.
BLOCKS = [
    ("fedveil.mechanisms.noise", "_BLOCK", 1 << 9),
    ("fedveil.secure.shares", "_BLOCK", 1 << 10),
    ("fedveil.learning.evaluation", "ROOM", 1 << 8),
    ("fedveil.learning.clients", "CHUNK", 16),
    ("fedveil.learning.gradients", "_BLOCK", 1 << 9),
    ("fedveil.clipping", "_ELEMENTS", 1 << 10),
    ("fedveil.clipping", "WIDTH", 1 << 9),
]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def client(partition, n=60):
    generator = torch.Generator().manual_seed(partition)
    x = torch.rand(n, 1, 8, 8, generator=generator)
    y = torch.randint(0, 10, (n,), generator=generator)
    return fv.ClientData(x, y, test_x=x[:20], test_y=y[:20])


def result(name, **execution):
    method, options = METHODS[name]
    federation = fv.Federation(
        model=network,
        clients=[client(partition) for partition in range(4)],
        method=build(method, **options),
        local=fv.LocalTraining(lr=0.1),
        seed=3,
        execution=fv.Execution(tell=lambda text: None, **execution),
    )
    history = federation.run(2)
    return history.models, history.metrics, federation.server.ledger.checksum


def assert_same(one, other):
    assert torch.equal(one[0], other[0])
    assert one[1:] == other[1:]


@pytest.mark.few(2)
@pytest.mark.parametrize("trainer", ["auto", "sequential"])
@pytest.mark.parametrize("name", METHODS)
def test_two_workers_give_the_bits_of_one(name, trainer):
    alone = result(name, trainer=trainer, workers=1)
    assert_same(alone, result(name, trainer=trainer, workers=1))
    assert_same(alone, result(name, trainer=trainer, workers=2))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", METHODS)
def test_blocks_of_another_size_give_the_same_bits(name, monkeypatch):
    usual = result(name)
    for module, constant, size in BLOCKS:
        with monkeypatch.context() as patch:
            place = importlib.import_module(module)
            assert getattr(place, constant) != size
            patch.setattr(place, constant, size)
            assert_same(usual, result(name))
