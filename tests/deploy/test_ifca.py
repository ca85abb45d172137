"""Several hypotheses on a real SuperLink: two groups of sites find a model each."""

import json

import pytest
import torch
from chain import SLOWER, Chain, write_app

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
SITES, ROUNDS = 4, 3
BOTH = f"""
import torch
from torch import nn

import fedveil as fv

METHOD = fv.methods.build("ifca", hypotheses=2)
SITES, ROUNDS = {SITES}, {ROUNDS}


def network():
    torch.manual_seed(0)
    return nn.Linear(4, 1)


LAYOUT = fv.Layout.from_module(network())


def data(partition):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(partition))
    return x, (1 if partition % 2 else -1) * x.sum(1, keepdim=True)


def loss_of(vector, x, y):
    model = network()
    model.load_state_dict(LAYOUT.state_dict(model, vector))
    return model, nn.functional.mse_loss(model(x), y)


def best_of(models, x, y):
    losses = [float(loss_of(model, x, y)[1]) for model in models]
    return losses.index(min(losses))
"""
CLIENT = """
from study_both import *
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from fedveil.flower import FACTS, privacy_mod, read_broadcast, to_arrays, write_facts

app = ClientApp(mods=[privacy_mod(LAYOUT, METHOD)])


@app.train()
def train(message, context):
    models = read_broadcast(message.content, LAYOUT).models
    x, y = data(context.node_config["partition-id"])
    chosen = best_of(models, x, y)
    model, _ = loss_of(models[chosen], x, y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    content = {"arrays": to_arrays(LAYOUT, LAYOUT.read(model)), FACTS: write_facts(chosen=chosen)}
    content["metrics"] = MetricRecord({"num-examples": len(x)})
    return Message(RecordDict(content), reply_to=message)
"""
SERVER = """
import json
from study_both import *
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from fedveil.flower import FedVeilStrategy, ServerFolder

app = ServerApp()


@app.main()
def main(grid, context):
    out = context.run_config["out"]
    start = LAYOUT.read(network())
    options = {"rounds": ROUNDS, "clients": SITES, "evaluate": False, "folder": ServerFolder(out + ".run")}
    strategy = FedVeilStrategy(METHOD, LAYOUT, initial=torch.stack([start, -start]), **options)
    strategy.start(grid, ArrayRecord(network().state_dict()))
    losses = [[float(loss_of(model, *data(p))[1]) for model in strategy.models] for p in range(SITES)]
    found = {"models": strategy.models.tolist(), "losses": losses}
    found["used"] = [len(log.used) for log in strategy.history]
    with open(out, "w") as file:
        json.dump(found, file)
"""


def in_one_process(monkeypatch, tmp_path):
    """The models that the same app ends with, in one process."""
    from fedveil.flower import run_in_process

    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    import study_client
    import study_server

    out = tmp_path / "here.json"
    run_in_process(study_server.app, study_client.app, SITES, run_config={"out": str(out)})
    return json.loads(out.read_text())["models"]


def test_two_groups_of_sites_get_a_model_each_over_a_superlink(tmp_path, monkeypatch):
    app = write_app(tmp_path / "app", "study", CLIENT, SERVER)
    (app / "study_both.py").write_text(BOTH)
    with Chain(tmp_path) as chain:
        for partition in range(SITES):
            chain.supernode(partition, of=SITES, more="study='none'")
        found = chain.run(app, tmp_path / "out.json", 300 * SLOWER)
    losses = torch.tensor(found["losses"])
    assert found["used"] == [SITES] * ROUNDS
    assert losses.min(1).values.max() < 0.1
    assert losses.argmin(1).tolist() in ([0, 1] * 2, [1, 0] * 2)
    assert found["models"] == in_one_process(monkeypatch, tmp_path)
