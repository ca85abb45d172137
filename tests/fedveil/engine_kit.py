"""A tiny federation, and clients that answer as the test says."""

import torch
from torch import nn

from federation_kit import grouped
from fedveil.engines import Execution, Federation, Shared
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, Trained
from fedveil.learning.learner import Learned, Learner
from fedveil.methods import build

REGION = (0, 0, 2, 2)
OPTIONS = {
    "vanilla": {},
    "global": {"noise_multiplier": 0.1, "clip": 1.0},
    "metric": {"noise_multiplier": 0.1, "clip": 1.0},
    "group": {"noise_multiplier": 0.1},
    "fedre": {"clip": 0.2},
    "sga-ldp": {"clip": 0.5},
}
CENTRAL = ("vanilla", "global", "metric")
LOCAL = ("group", "fedre", "sga-ldp")


def tiny():
    """Two layers on images of 4 x 4: 16 * 3 + 3 + 3 * 2 + 2 = 59 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Tanh(), nn.Linear(3, 2))


def images(partition, n=6):
    generator = torch.Generator().manual_seed(partition)
    x = torch.rand(n, 1, 4, 4, generator=generator)
    return ClientData(x, (x.mean((1, 2, 3)) > 0.5).long())


class Faulty:
    """A learner some of whose clients fail: {partition: "raise" or "nan"}, from a round on."""

    def __init__(self, faults, since=1, model=None):
        module = model or tiny()
        self.inner = Learner(module, Layout.from_module(module), LocalTraining(), region=REGION)
        self.faults, self.since = faults, since

    def learn(self, models, clients, keys, needs=frozenset(), sources=()):
        outcomes = self.inner.learn(models, clients, keys, needs)
        return [self._spoil(o, key) for o, key in zip(outcomes, keys, strict=True)]

    def _spoil(self, outcome, key):
        _, round_, partition = key
        fault = self.faults.get(partition) if round_ >= self.since else None
        if fault == "raise":
            return RuntimeError("out of memory")
        if fault == "nan":
            trained = outcome.trained
            return Learned(
                Trained(torch.full_like(trained.model, torch.nan), 6, 0.5), 0, outcome.layer_scores
            )
        return outcome

    def __getattr__(self, name):
        return getattr(self.inner, name)


def learned(learner, task):
    """What a learner makes of a round's task, as the engine asks it."""
    return learner.learn(task.models, task.clients, task.keys, task.needs, task.sources)


def federation(name, n=4, *, faults=None, since=1, method=None, **options):
    """An embedded federation of a named method with its usual options."""
    values = {
        "model": tiny,
        "clients": [images(p) for p in range(n)],
        "seed": 7,
        "public_data": images(100),
    }
    values |= {
        "method": method or build(name, **OPTIONS[name]),
        "learner": Faulty(faults or {}, since),
    }
    return Federation(**grouped({**values, **options}))


class Scripted:
    """A learner whose clients move their start by given steps: {partition: [d]}, the same in every round."""

    trainer = private_trainer = None
    local = LocalTraining()

    def __init__(self, steps, chosen=None, scores=None, public_scores=None):
        self.steps, self.chosen, self.scores = steps, chosen or {}, scores
        self.model = wide()
        self._public_scores = public_scores

    def learn(self, models, clients, keys, needs=frozenset(), sources=()):
        return [self._one(models, partition) for _, _, partition in keys]

    def _one(self, models, partition):
        chosen = self.chosen.get(partition, 0)
        return Learned(Trained(models[chosen] + self.steps[partition], 6, 0.5), chosen, self.scores)

    def public_scores(self, models, public):
        return self._public_scores[: len(models)]


def wide():
    """Two modules of 10,000 and 10,000 parameters."""
    return nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False)).double()


def scripted(method, steps, *, seed=0, **learner):
    """A federation of `wide` models whose clients move by the given steps [n, d]."""
    clients = [
        (torch.zeros(1, 100, dtype=torch.float32), torch.zeros(1, dtype=torch.int64)) for _ in steps
    ]
    script = Scripted(dict(enumerate(steps)), **learner)
    return Federation(
        model=wide,
        clients=clients,
        method=method,
        execution=Execution(learner=script),
        seed=seed,
        shared=Shared(public_data=clients[0]),
    )
