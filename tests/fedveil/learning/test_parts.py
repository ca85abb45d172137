"""A sum over the parts of a batch holds three vectors at a time, whatever the number of parts."""

import weakref

import torch
from torch import nn

from fedveil.layout import Layout
from fedveil.learning import per_example
from fedveil.learning.per_example import PerExample


def test_no_vector_of_an_earlier_part_is_kept(monkeypatch):
    """An 11 million parameter network in 64 parts of one row held 64 vectors of 89 MB, twice."""
    monkeypatch.setattr(per_example, "_ELEMENTS", 1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    sums = PerExample(model, Layout.from_module(model), "cross_entropy", torch.Generator())
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    own = PerExample._part

    def counting(self, step, batch):
        nonlocal most
        found = own(self, step, batch)
        alive.append(weakref.ref(found[0]))
        most = max(most, sum(one() is not None for one in alive))
        return found

    monkeypatch.setattr(PerExample, "_part", counting)
    sums.clipped_sum(torch.randn(40, 1, 4, 4), torch.zeros(40, dtype=torch.long), 1.0)
    assert len(alive) == 40
    assert most <= 3
