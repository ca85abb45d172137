"""A network that writes into its input trains and is measured as in plain PyTorch, and moves nobody's data."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedveil as fv
from fedveil.layout import Layout
from fedveil.learning.losses import predict


class Halves(nn.Module):
    """Scales its input in its own place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        x.mul_(0.5)
        return self.linear(x)


def begins_with_relu():
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3))


def plain(model, x, y, steps):
    """Train on all examples at once, as a `DataLoader` hands them out: copies."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(x.clone()), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("make", [Halves, begins_with_relu])
def test_a_network_that_writes_into_its_input_moves_no_data(make):
    torch.manual_seed(0)
    model = make()
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    parts = [x.clone() for _ in range(4)]
    clients = [(parts[0], y, parts[1], y), (parts[2], y, parts[3], y)]
    local = fv.LocalTraining(epochs=3, batch_size=24, lr=0.1)
    wanted = plain(copy.deepcopy(model), x, y, 6)
    history = fv.Federation(model=model, clients=clients, local=local, seed=0).run(2)
    for part in parts:
        torch.testing.assert_close(part, x, rtol=0, atol=0)
    torch.testing.assert_close(history.state_dicts[0], wanted.state_dict(), rtol=0, atol=1e-5)
    with torch.no_grad():
        loss = float(functional.cross_entropy(wanted(x.clone()), y))
    assert history.metrics["loss"] == pytest.approx(loss, abs=1e-5)


def test_outputs_are_computed_beside_the_examples():
    model, x = Halves(), torch.rand(5, 6)
    layout = Layout.from_module(model)
    vector = layout.flatten(dict(model.named_parameters())).detach()
    before = x.clone()
    outputs = predict(model, layout, vector, x, batch=2)
    torch.testing.assert_close(x, before, rtol=0, atol=0)
    torch.testing.assert_close(outputs, model(before).detach())
