"""What the Flower tests share: a small federation on scikit-learn's digits, and every method."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from federation_kit import grouped
from fedveil.accounting import ParticipationFilter
from fedveil.aggregation import FedAdam, FedAvg, FedMedian
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.learner import Learner
from fedveil.learning.scoring import Scoring
from fedveil.methods import build

CLIENTS, ROUNDS, REGION = 5, 3, (2, 2, 3, 4)

METHODS = {
    "vanilla": build("vanilla", FedAvg(weighting="examples")),
    "global-formal": build("global", FedAvg(), noise_multiplier=0.01),
    "global-printed": build(
        "global", FedAvg(weighting="examples"), order="printed", noise_multiplier=0.01
    ),
    "metric-fedavg": build("metric", FedAvg()),
    "metric-fedmedian": build("metric", FedMedian(), order="printed"),
    "metric-fedadam": build("metric", FedAdam()),
    "group": build("group", hypotheses=2),
    "ifca": build("ifca", hypotheses=2),
    "fedre-normalised": build("fedre"),
    "fedre-printed": build("fedre", normalised=False),
    "sga-ldp": build("sga-ldp"),
}


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.LeakyReLU(), nn.Linear(12, 10))


def digits(clients=CLIENTS, train=24, test=0):
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
    parts, start = [], 0
    for i in range(clients):
        middle, stop = start + train + i, start + train + i + test
        held_out = (x[middle:stop], y[middle:stop]) if test else ()
        parts.append(ClientData(x[start:middle], y[start:middle], *held_out))
        start = stop
    return parts


def arguments(name, **changes):
    x, y = load_digits(return_X_y=True)
    public = ClientData(
        torch.tensor(x[-3:] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y[-3:])
    )
    model, local = network(), LocalTraining(lr=0.1, batch_size=8)
    given = {
        "model": network,
        "learner": Learner(
            model, Layout.from_module(model), local, region=REGION, scoring=Scoring(images=2)
        ),
        "clients": digits(),
        "method": METHODS[name],
        "seed": 11,
        "public_data": public,
    }
    return grouped(given | changes)


def unruly(name, **changes):
    """Client 1 raises, client 2 diverges to NaN, client 3 declines after one round; 0 and 4 are well."""
    clients = digits()
    clients[1] = ClientData(clients[1].x, torch.full_like(clients[1].y, 99))
    clients[2] = ClientData(torch.full_like(clients[2].x, 3e38), clients[2].y)
    return arguments(
        name,
        clients=clients,
        client_budgets=lambda p: ParticipationFilter(1) if p == 3 else None,
        **changes,
    )


def observe(federation):
    """Record every raw model that leaves training, and every reply that leaves a client."""
    raw, sent = {}, []
    learn = federation.learner.learn

    def spy_learn(models, clients, keys, *more):
        outcomes = learn(models, clients, keys, *more)
        raw.update({key[1:]: (models[o.chosen], o) for key, o in zip(keys, outcomes, strict=True)})
        return outcomes

    federation.learner.learn = spy_learn
    grid = federation.courier.grid
    send = grid.send_and_receive

    def spy_send(messages, *, timeout=None):
        replies = list(send(messages, timeout=timeout))
        sent.extend(replies)
        return replies

    grid.send_and_receive = spy_send
    return raw, sent
