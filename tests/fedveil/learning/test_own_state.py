"""What a module's own code keeps in attributes: not from one client to the next, and not from a measurement."""

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.learning import ClientData, LocalTraining, make_trainer, predict

X = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 2


class Remembers(nn.Module):
    """Adds what it has seen, which it keeps in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.head, self.way = nn.Linear(4, 2), way
        self.seen, self.list, self.table, self.names, self.sum = None, [], {}, {0}, torch.zeros(4)

    def forward(self, x):
        mean = x.mean(0).detach()
        past = torch.zeros(4)
        if self.way == "attribute" and self.seen is not None:
            past = self.seen
        elif self.way == "new attribute":
            past = getattr(self, "later", past)
            self.later = mean
        elif self.way == "list":
            past = self.list[-1] if self.list else past
            self.list.append(mean)
        elif self.way == "mapping":
            past = self.table.get("mean", past)
            self.table["mean"] = mean
        elif self.way == "set":
            past = past + len(self.names)
            self.names.add(len(self.names))
        elif self.way == "tensor":
            past = self.sum.clone()
            self.sum += mean
        self.seen = mean
        return self.head(x + past)


@pytest.mark.parametrize("way", ["attribute", "new attribute", "list", "mapping", "set", "tensor"])
def test_a_client_begins_as_if_it_were_alone(way):
    torch.manual_seed(0)
    model = Remembers(way)
    layout = fv.Layout.from_module(model)
    start, local = layout.read(model)[None], LocalTraining(batch_size=2)
    pair = [ClientData(X + 1, Y), ClientData(X, Y)]
    keys = [(0, 1, 0), (0, 1, 1)]
    both = make_trainer(model, layout, local).train(start.expand(2, -1), pair, keys)
    [alone] = make_trainer(model, layout, local).train(start, pair[1:], keys[1:])
    assert torch.equal(both[1].model, alone.model)
    assert torch.equal(predict(model, layout, start[0], X), predict(model, layout, start[0], X))
