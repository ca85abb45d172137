"""The model and the data: handwritten digits, dealt out to the partitions."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import fedveil as fv


def network():
    """The model."""
    torch.manual_seed(0)
    return torch.nn.Linear(64, 10)


LAYOUT = fv.Layout.from_module(network())


@cache
def examples():
    """All images and labels, shuffled; the last 397 are for testing."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])


def of_client(context):
    """A client's own examples: in a deployment the file that its node names, in a simulation a part of the digits."""
    if "data" in context.node_config:
        held = np.load(context.node_config["data"])
        return torch.tensor(held["x"] / 16, dtype=torch.float32), torch.tensor(
            held["y"], dtype=torch.int64
        )
    x, y = examples()
    mine = slice(context.node_config["partition-id"], 1400, context.node_config["num-partitions"])
    return x[mine], y[mine]


def accuracy(state_dict):
    """Of a model on the test images."""
    model, (x, y) = network(), examples()
    model.load_state_dict(state_dict)
    return float((model(x[1400:]).argmax(1) == y[1400:]).float().mean())


def fit(model, x, y):
    """Train for five epochs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        for batch in torch.randperm(len(x)).split(8):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
