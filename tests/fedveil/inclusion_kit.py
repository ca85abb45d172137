"""Federations of small silos whose broadcasts carry receipts, without trust and in the secure sum."""

import torch
from torch import nn

import fedveil as fv
from federation_kit import grouped
from fedveil.methods import build

SUMS = ("none", "secure")
SHARED = {"examples": 6, "noise_multiplier": 2.0, "clip": 0.5, "rounds": 4}


def silo(seed, n=6):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    return x, y


def method(kind, **values):
    own = {"least_sites": 3} if kind == "secure" else {}
    return build("record", fv.FedAvgM(momentum=0.5), sum=kind, **{**SHARED, **own, **values})


def start():
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def arguments(kind, n=4, **options):
    values = {
        "model": start(),
        "clients": [silo(i) for i in range(n)],
        "method": method(kind),
        "local": fv.LocalTraining(lr=0.5),
        "seed": 3,
    }
    return grouped({**values, **options})


def federation(kind, n=4, **options):
    return fv.Federation(**arguments(kind, n, **options))
