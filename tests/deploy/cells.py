"""Each method as a federation in one process and as an app for Flower's real chain, with the same seed."""

import json
from itertools import pairwise

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

import fedveil as fv
from fedveil.engines import Execution
from fedveil.engines.flower.app import learner_client_app, validator_client_app
from fedveil.flower import FedVeilStrategy, to_arrays
from fedveil.learning import ClientData, LocalTraining
from fedveil.methods import build

SITES, ROUNDS, SEED = 3, 2, 11
RECORD = {"examples": 16, "noise_multiplier": 1.0, "clip": 0.5}
PERSON = {**RECORD, "unit": "person", "people": 8, "records_per_person": 2}
PERSON.pop("examples")
CASES = {
    "vanilla": ("vanilla", {}),
    "global": ("global", {"noise_multiplier": 0.01}),
    "metric": ("metric", {}),
    "sga-ldp": ("sga-ldp", {}),
    "group": ("group", {"hypotheses": 3}),
    "record": ("record", RECORD),
    "person": ("record", PERSON),
    "trusted sum": ("record", {**RECORD, "sum": "trusted", "rounds": ROUNDS, "silos": SITES}),
    "fedre": ("fedre", {}),
    "validated": ("record", RECORD),  # the last site validates, and never trains
}
TRAINERS = {"validated": SITES - 1}
NOISED = fv.Validation(noise_multiplier=2.0, releases=ROUNDS)


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def clients():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    edges = [0, 16, 33, 51]
    found = []
    for first, last in pairwise(edges):
        persons = torch.arange(last - first) // 2
        found.append(ClientData(x[first:last], y[first:last], person=persons))
    return found


def federation(case):
    """The method in one process."""
    method, parameters = CASES[case]
    trainers, more = TRAINERS.get(case, SITES), {}
    if case == "fedre":
        more["shared"] = fv.Shared(region=(0, 0, 1, 32), public_data=clients()[0])
    if case == "validated":
        more["evaluation"] = fv.Evaluation(stopping=stopping(clients()[trainers:]))
    return fv.Federation(
        model=network,
        clients=clients()[:trainers],
        method=build(method, **parameters),
        seed=SEED,
        local=LocalTraining(lr=0.1, batch_size=8),
        execution=Execution(trainer="sequential"),
        **more,
    )


def stopping(held=()):
    """Early stopping by the loss of sites that never train; under Flower the nodes themselves say that they validate."""
    return fv.EarlyStopping(clients=held, patience=ROUNDS, validation=NOISED)


class ByPartition(ClientApp):
    """An app that trains at some nodes, and only validates at the others."""

    def __init__(self, trains, validates, trainers):
        super().__init__()
        self.trains, self.validates, self.trainers = trains, validates, trainers

    def __call__(self, message, context):
        trains = context.node_config["partition-id"] < self.trainers
        return (self.trains if trains else self.validates)(message, context)


def client_app(case):
    """The app of a node."""
    one = federation(case)
    given = {"seed": SEED, "source": one.source}
    trains = learner_client_app(one.learner, one.clients, one.method, **given)
    if case not in TRAINERS:
        return trains
    own, first = clients()[TRAINERS[case] :], TRAINERS[case]
    given = {"validation": NOISED, "source": one.source, "ledger": "run"}
    validates = validator_client_app(one.learner, own, first, one.method, **given)
    return ByPartition(trains, validates, first)


def server_app(case):
    """The app of the server: it writes the last models beside the file that `out` names."""
    app = ServerApp()

    @app.main()
    def main(grid, context):
        one, out = federation(case), context.run_config["out"]
        given = {"rounds": ROUNDS, "clients": len(one.clients), "seed": SEED, "evaluate": False}
        if case == "validated":
            given["stopping"] = stopping()
        # FedRE's server scores models on its own data
        party = (one.server,) if case == "fedre" else (one.method, one.layout)
        strategy = FedVeilStrategy(*party, initial=one.models, **given)
        strategy.start(grid, to_arrays(one.layout, one.models[0]))
        torch.save(strategy.models, f"{out}.models")
        if strategy.best is not None:
            torch.save(strategy.best.models, f"{out}.best")
        with open(out, "w") as file:
            json.dump({"rounds": len(strategy.history)}, file)

    return app
