"""What each node keeps of a model: an app's strict `load_state_dict` finds it, over all rounds, and none of it leaves."""

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam
from torch import nn

import fedveil as fv
from fedveil.engines.flower.records import BESIDE, BUFFERS
from fedveil.flower import (
    FedVeilStrategy,
    InProcessGrid,
    WrappedStrategy,
    privacy_mod,
    run_in_process,
)

pytestmark = pytest.mark.flower
NODES, ROUNDS, STEPS = 3, 3, 4
METHOD = fv.GlobalDP(noise_multiplier=0.1, rounds=ROUNDS, clip=1.0)


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model[0].bias.requires_grad_(False)  # frozen: everybody has it from the server
    return model


LAYOUT = fv.Layout.from_module(network(), buffers="keep")


def data(partition):
    generator = torch.Generator().manual_seed(partition)
    x = torch.randn(24, 4, generator=generator) + 3 * partition
    return x, (x.sum(1) > 12 * partition).long()


def client_app():
    app = ClientApp(mods=[privacy_mod(LAYOUT, METHOD)])

    def loaded(message, context):
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=True)
        return model, *data(context.node_config["partition-id"])

    @app.train()
    def train(message, context):
        model, x, y = loaded(message, context)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(x)})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        model, x, y = loaded(message, context)
        model.eval()
        loss = nn.functional.cross_entropy(model(x), y).item()
        seen = float(model[1].running_mean.norm())
        metrics = MetricRecord({"num-examples": len(x), "loss": loss, "seen": seen})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class Watched(InProcessGrid):
    """Notes every reply."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.replies = []

    def ask_node(self, message):
        reply = super().ask_node(message)
        self.replies.append(reply)
        return reply


@pytest.fixture(params=["own", "wrapped"])
def played(request):
    strategy = (
        FedVeilStrategy(METHOD, LAYOUT)
        if request.param == "own"
        else WrappedStrategy(FedAdam(eta=0.1), METHOD, LAYOUT)
    )
    grid = Watched(
        client_app(), [{"partition-id": i, "num-partitions": NODES} for i in range(NODES)]
    )
    server = ServerApp()

    @server.main()
    def main(grid, context):
        result = strategy.start(grid, ArrayRecord(network().state_dict()))
        context.state["arrays"] = result.arrays

    return run_in_process(server, grid=grid).state["arrays"], strategy, grid


def test_statistics_go_on_at_each_node_and_never_leave(played):
    _, strategy, grid = played
    assert [len(log.used) for log in strategy.history] == [NODES] * ROUNDS
    own = [grid.contexts[i].state[BUFFERS] for i in range(NODES)]
    assert [int(one["1.num_batches_tracked"].numpy()) for one in own] == [STEPS * ROUNDS] * NODES
    means = [torch.from_numpy(one["1.running_mean"].numpy()) for one in own]
    assert not torch.allclose(means[0], means[1])
    assert all("0.bias" not in one for one in own)  # it is as the server sent it
    for reply in grid.replies:
        assert BESIDE not in reply.content
        assert set(reply.content.get("arrays", {})) <= set(LAYOUT.names)


def test_the_servers_model_loads_and_has_the_first_statistics(played):
    arrays, strategy, _ = played
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict(), strict=True)
    assert torch.equal(model[1].running_mean, torch.zeros(8))
    assert torch.equal(LAYOUT.read(model), strategy.models[0])


def test_nodes_measure_with_their_own_statistics(played):
    _, _, grid = played
    seen = [
        reply.content["metrics"]["seen"]
        for reply in grid.replies
        if "seen" in reply.content.get("metrics", {})
    ]
    assert len(seen) == NODES * ROUNDS
    assert min(seen) > 0
    assert len(set(seen)) == len(seen)
