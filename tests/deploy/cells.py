"""Each method as a federation in one process and as an app for Flower's real chain, with the same seed."""

import json
from itertools import pairwise

import torch
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

import fedveil as fv
from fedveil.engines import Execution
from fedveil.engines.flower.app import learner_client_app
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
}


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
    return fv.Federation(
        model=network,
        clients=clients(),
        method=build(method, **parameters),
        seed=SEED,
        local=LocalTraining(lr=0.1, batch_size=8),
        execution=Execution(trainer="sequential"),
    )


def client_app(case):
    """The app of a node."""
    one = federation(case)
    given = {"seed": SEED, "source": one.source}
    return learner_client_app(one.learner, one.clients, one.method, **given)


def server_app(case):
    """The app of the server: it writes the last models beside the file that `out` names."""
    app = ServerApp()

    @app.main()
    def main(grid, context):
        one, out = federation(case), context.run_config["out"]
        given = {"rounds": ROUNDS, "clients": SITES, "seed": SEED, "evaluate": False}
        strategy = FedVeilStrategy(one.method, one.layout, initial=one.models, **given)
        strategy.start(grid, to_arrays(one.layout, one.models[0]))
        torch.save(strategy.models, f"{out}.models")
        with open(out, "w") as file:
            json.dump({"rounds": len(strategy.history)}, file)

    return app
