"""The example of the README: a Flower app as its user writes it, plus one mod and one strategy."""

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

import fedveil as fv
from fedveil.flower import FedVeilStrategy, method_from, privacy_mod, run_in_process

pytestmark = pytest.mark.flower

images, labels = load_digits(return_X_y=True)
X, Y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


def network():
    torch.manual_seed(0)
    return nn.Linear(64, 10)


layout = fv.Layout.from_module(network())
client = ClientApp(mods=[privacy_mod(layout)])  # the method comes from the run's configuration


@client.train()
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
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid, context):
    strategy = FedVeilStrategy(method_from(context), layout, rounds=5)
    result = strategy.start(grid, ArrayRecord(network().state_dict()))
    context.state["arrays"] = result.arrays


def accuracy(context):
    model = network()
    model.load_state_dict(context.state["arrays"].to_torch_state_dict())
    return float((model(X[1400:]).argmax(1) == Y[1400:]).float().mean())


@pytest.mark.parametrize(
    ("config", "least", "most"),
    [
        ({"privacy.method": "vanilla"}, 0.8, 1.0),
        ({"privacy.method": "global", "privacy.noise-multiplier": 0.01}, 0.8, 1.0),
        ({"privacy.method": "global", "privacy.noise-multiplier": 50.0}, 0.0, 0.4),
        ({"privacy.method": "metric", "privacy.noise-multiplier": 0.01, "privacy.clip": 2.0}, 0.8, 1.0),
        (
            {
                "privacy.method": "sga-ldp",
                "privacy.epsilon-min": 5000,
                "privacy.epsilon-max": 5000,
                "privacy.clip": 5.0,
            },
            0.6,
            1.0,
        ),
    ],
)
def test_the_readmes_app_learns(config, least, most):
    context = run_in_process(server, client, num_partitions=4, run_config=config)
    assert least <= accuracy(context) <= most
