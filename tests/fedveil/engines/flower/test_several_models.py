"""Several models, and FedRE's layer scores, in an app with training code of its own: what docs/flower.md says."""

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

import fedveil as fv
from fedveil.flower import (
    FACTS,
    FedVeilStrategy,
    ServerParty,
    privacy_mod,
    read_broadcast,
    run_in_process,
    to_arrays,
    write_facts,
)
from fedveil.methods import build

pytestmark = pytest.mark.flower
SITES = 6


def network():
    torch.manual_seed(0)
    return nn.Linear(4, 1)


LAYOUT = fv.Layout.from_module(network())


def data(partition):
    """Two groups of sites, whose slopes have opposite signs."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(partition))
    return x, (1 if partition % 2 else -1) * x.sum(1, keepdim=True)


def fitted(start, x, y):
    """The loss of a model [d] and the model after a few steps."""
    model = network()
    model.load_state_dict(LAYOUT.state_dict(model, start))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    first = float(nn.functional.mse_loss(model(x), y))
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return first, LAYOUT.read(model)


def played(method, strategy, reply):
    client = ClientApp(mods=[privacy_mod(LAYOUT, method, ledger="run")])
    server = ServerApp()

    @client.train()
    def train(message, context):
        models = read_broadcast(message.content, LAYOUT).models
        model, facts = reply(models, *data(context.node_config["partition-id"]))
        metrics = MetricRecord({"num-examples": 64})
        content = {"arrays": to_arrays(LAYOUT, model), "metrics": metrics}
        if facts is not None:
            content[FACTS] = facts
        return Message(RecordDict(content), reply_to=message)

    @server.main()
    def main(grid, context):
        strategy.start(grid, ArrayRecord(network().state_dict()))

    run_in_process(server, client, SITES)
    return strategy


def best_of(models, x, y):
    """A site takes the model that fits its own data best, and says which."""
    losses = [fitted(model, x, y)[0] for model in models]
    chosen = losses.index(min(losses))
    return fitted(models[chosen], x, y)[1], write_facts(chosen=chosen)


def test_two_groups_of_sites_get_a_model_each():
    method = build("ifca", hypotheses=2)
    initial = torch.stack([LAYOUT.read(network()), -LAYOUT.read(network())])
    strategy = FedVeilStrategy(method, LAYOUT, rounds=5, initial=initial, evaluate=False)
    models = played(method, strategy, best_of).models
    losses = torch.tensor([[fitted(model, *data(p))[0] for model in models] for p in range(SITES)])
    assert losses.min(1).values.max() < 0.1
    assert len(set(losses.argmin(1).tolist())) == 2


def test_noised_personal_models_are_each_sites_own_promise():
    method = build("group", hypotheses=2)
    strategy = FedVeilStrategy(method, LAYOUT, rounds=2, evaluate=False)
    assert played(method, strategy, best_of).models.shape == (2, 5)


@pytest.mark.parametrize("name", ["ifca", "group"])
def test_models_that_no_client_reads_are_warned_of(caplog, name):
    def first_alone(models, x, y):
        return fitted(models[0], x, y)[1], None

    method = build(name, hypotheses=2)
    caplog.set_level("WARNING", "flwr")
    strategy = FedVeilStrategy(method, LAYOUT, rounds=2, evaluate=False)
    played(method, strategy, first_alone)
    told = [
        record.getMessage() for record in caplog.records if "write_facts" in record.getMessage()
    ]
    assert len(told) == SITES  # once a node
    caplog.clear()
    played(method, FedVeilStrategy(method, LAYOUT, rounds=1, evaluate=False), best_of)
    assert "write_facts" not in caplog.text


def test_fedre_takes_scores_of_the_sites_and_of_public_data():
    method = build("fedre")
    seen = []

    def scored(models, x, y):
        return fitted(models[0], x, y)[1], write_facts(
            layer_scores=dict.fromkeys(LAYOUT.groups("module"), 1.0)
        )

    def scorer(models):
        seen.append(len(models))
        return torch.ones(len(models), len(LAYOUT.groups("module")), dtype=torch.float64)

    strategy = FedVeilStrategy(ServerParty(method, LAYOUT, scorer=scorer), rounds=2, evaluate=False)
    assert torch.isfinite(played(method, strategy, scored).models).all()
    assert seen == [SITES, SITES]
