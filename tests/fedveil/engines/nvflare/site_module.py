"""What a site brings of its own: its data, by its name, and a trainer."""

from dataclasses import replace

import torch

from fedveil.learning import make_trainer
from flare_kit import SITES, digits


def data(site):
    mine = digits()[SITES.index(site) if site in SITES else 0]
    return replace(mine, person=torch.arange(len(mine.x)) // 2)


def broken(site):
    raise RuntimeError("age 47, diagnosis C50")


def shapeless(site):
    return torch.zeros(16, 3), torch.zeros(16, dtype=torch.int64)


def trainer(model, layout, local):
    return make_trainer(model, layout, local, "sequential")


def held(site):
    """A fourth site, which never trains."""
    x, y = digits(40)[2].x[:20] + 1, digits(40)[2].y[:20]
    return x, y
