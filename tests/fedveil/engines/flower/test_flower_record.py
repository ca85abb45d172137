"""Record-level privacy under Flower: the same bits as embedded, and a user's own training code behind the mod."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

import fedveil as fv
from fedveil.aggregation import FedAvgM
from fedveil.errors import FieldError, NoReplyError
from fedveil.flower import (
    FACTS,
    FedVeilStrategy,
    FlowerFederation,
    privacy_mod,
    read_broadcast,
    run_in_process,
    to_arrays,
    training_source,
    write_facts,
)
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.methods import build
from flower_cases import digits

pytestmark = pytest.mark.flower
DELTA = 1e-5


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def lower(x, first):
    masks = torch.zeros(x.shape, dtype=torch.bool)
    masks[..., first:, :] = True
    return masks


def arguments(sum_, unit="record"):
    clients = digits()
    values = {"examples": clients[0].examples, "epsilon": 4.0, "rounds": 3, "clip": 0.5}
    if unit == "person":  # of one to three images
        clients = [replace(c, person=torch.arange(c.examples) % 11) for c in clients]
        values |= {"unit": unit, "people": values.pop("examples") / 2, "records_per_person": 2}
    if unit == "region":  # of other pixels at every client
        clients = [replace(c, masks=lower(c.x, 5 + i % 2)) for i, c in enumerate(clients)]
        values |= {"unit": unit, "blank": 0.5}
    if sum_ == "trusted":
        values["silos"] = len(clients)
    method = build("record", FedAvgM(), sum=sum_, **values)
    return {
        "model": network(),
        "clients": clients,
        "method": method,
        "local": LocalTraining(lr=0.5),
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("sum_", "unit"), [*product(["none", "trusted"], ["record", "person"]), ("none", "region")]
)
def test_same_bits_and_ledgers_as_embedded(sum_, unit):
    embedded = fv.Federation(**arguments(sum_, unit))
    expected = embedded.run(3)
    flower = FlowerFederation(shuffle=5, **arguments(sum_, unit))
    found = flower.run(3)
    assert torch.equal(found.models, expected.models)
    assert found.guarantees == expected.guarantees
    assert found.guarantee.unit == unit
    assert found.guarantee.epsilon(DELTA) == pytest.approx(4.0)
    assert not any(r.zeroed for r in found.rounds)


def test_there_is_no_source_outside_a_private_round():
    with pytest.raises(FieldError, match="source"):
        training_source()


def test_a_users_own_app_is_private_and_an_unmarked_model_stays():
    client = ClientData(*(torch.cat([getattr(c, n) for c in digits()]) for n in ("x", "y")))
    layout = fv.Layout.from_module(network())
    method = build(
        "record", FedAvgM(), examples=client.examples / 4, epsilon=8.0, rounds=5, clip=1.0
    )

    trainer = PrivateTrainer(network(), layout, LocalTraining(lr=1.0), method.client.noisy_steps)

    def train(message, context, marked):
        noisy = context.node_config["partition-id"] in marked
        mine = slice(context.node_config["partition-id"], None, 4)
        start, data = (
            read_broadcast(message.content, layout).models,
            ClientData(client.x[mine], client.y[mine]),
        )
        [trained] = trainer.train_noisily(start, [data], [(0,)], [training_source()])
        facts = {FACTS: write_facts(noised=trained.noised)} if noisy else {}
        content = {
            "arrays": to_arrays(layout, trained.model),
            "metrics": MetricRecord({"num-examples": 1}),
            **facts,
        }
        return Message(RecordDict(content), reply_to=message)

    def ran(marked):
        app = ClientApp(mods=[privacy_mod(layout, method, seed=3, trainer=trainer)])
        app.train()(lambda message, context: train(message, context, marked))
        server = ServerApp()

        @server.main()
        def main(grid, context):
            strategy = FedVeilStrategy(method, layout, rounds=5)
            context.state["arrays"] = strategy.start(
                grid, ArrayRecord(network().state_dict())
            ).arrays

        run = run_in_process(server, app, num_partitions=4)
        return torch.cat(
            [v.reshape(-1) for v in run.state["arrays"].to_torch_state_dict().values()]
        )

    begun = torch.cat([v.reshape(-1) for v in network().state_dict().values()])
    models = [ran({0, 1, 2, 3}), ran({0})]  # in place of unmarked models noise alone leaves
    right = []
    for model in models:
        module = network()
        layout.load(module, model)
        right.append(float((module(client.x).argmax(1) == client.y).double().mean()))
        assert (model - begun).norm() > 0.5
    assert right[0] > 0.4
    assert right[1] < right[0] - 0.1
    with pytest.raises(
        NoReplyError, match="every client failed"
    ):  # no server could tell; a simulation does
        ran(set())
