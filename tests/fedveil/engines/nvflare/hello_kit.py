"""The model and data of FLARE's first example, on digits in the place of pictures that have to be downloaded."""

import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedveil.learning import ClientData

FOUR = ["site-1", "site-2", "site-3", "site-4"]
SITES = FOUR[:3]


class SimpleNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 6)
        self.out = nn.Linear(6, 10)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x.flatten(1))))


class Wide(SimpleNetwork):
    def __init__(self, width):
        super().__init__()
        self.hidden, self.out = nn.Linear(64, width), nn.Linear(width, 10)


def dataset(site):
    x, y = load_digits(return_X_y=True)
    mine = slice(FOUR.index(site), 400, len(FOUR))
    return torch.tensor(x[mine] / 16, dtype=torch.float32), torch.tensor(y[mine])


def people(site):
    """The same examples, two of each person."""
    x, y = dataset(site)
    return ClientData(x, y, person=torch.arange(len(x)) // 2)


def killed(site):
    """A peer that is gone in the middle of its first round."""
    if site == "site-3":
        os._exit(9)
    return dataset(site)


def halted(site):
    """A peer that stands still in its first round, until somebody kills its process."""
    if site == "site-3":
        seen = os.environ["FEDVEIL_SEEN"]
        Path(seen).with_name("halted").write_text(str(os.getpid()))
        time.sleep(600)
    return dataset(site)
