"""The model and the data: measurements of breast tissue, dealt out to three sites."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

SITES = ["site-1", "site-2", "site-3"]


def network():
    """The model, as FedVeil's filters and controller build it."""
    return torch.nn.Linear(30, 2)


def examples():
    """All of them; in a real federation scaled by constants that all sites agreed on."""
    x, y = load_breast_cancer(return_X_y=True)
    return torch.as_tensor(scale(x), dtype=torch.float32), torch.as_tensor(y)


def examples_of(site):
    """A site's own; the last 100 belong to nobody."""
    x, y = examples()
    mine = slice(SITES.index(site), -100, len(SITES))
    return x[mine], y[mine]


def accuracy(state_dict):
    """Of a model on the examples that belong to nobody."""
    model, (x, y) = network(), examples()
    model.load_state_dict(state_dict)
    return float((model(x[-100:]).argmax(1) == y[-100:]).float().mean())
