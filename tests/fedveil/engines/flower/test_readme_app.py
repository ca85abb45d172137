"""The example of the README: a Flower app as its user writes it, plus one mod and one strategy."""

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

import fedveil as fv
from fedveil.flower import FedVeilStrategy, privacy_mod, run_in_process

pytestmark = pytest.mark.flower

images, labels = load_digits(return_X_y=True)
X, Y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


def network():
    torch.manual_seed(0)
    return nn.Linear(64, 10)


layout = fv.Layout.from_module(network())


def train(message, context):
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    mine = slice(context.node_config["partition-id"], 1400, context.node_config["num-partitions"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X[mine]), Y[mine]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(X[mine])})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


def apps(method):
    client = ClientApp(
        mods=[privacy_mod(layout, method, ledger="run")]
    )  # a simulation: the ledger ends with the run
    client.train()(train)
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy = FedVeilStrategy(method, layout, rounds=5)
        result = strategy.start(grid, ArrayRecord(network().state_dict()))
        context.state["arrays"] = result.arrays

    return server, client


def accuracy(context):
    model = network()
    model.load_state_dict(context.state["arrays"].to_torch_state_dict())
    return float((model(X[1400:]).argmax(1) == Y[1400:]).float().mean())


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "options", "least", "most"),
    [
        ("vanilla", {}, 0.8, 1.0),
        ("global", {"noise_multiplier": 0.01}, 0.8, 1.0),
        ("global", {"noise_multiplier": 50.0}, 0.0, 0.4),
        ("metric", {"noise_multiplier": 0.01, "clip": 2.0}, 0.8, 1.0),
        ("sga-ldp", {"epsilon_min": 5000, "epsilon_max": 5000, "clip": 5.0}, 0.6, 1.0),
    ],
)
def test_the_readmes_app_learns(name, options, least, most):
    context = run_in_process(*apps(fv.methods.build(name, **options)), num_partitions=4)
    assert least <= accuracy(context) <= most
