"""Federation(buffers="keep"): running statistics stay with each client, and evaluation uses them."""

import numpy as np
import pytest
import torch
from torch import nn

import fedveil as fv


def clients(n=3, examples=60):
    """Clients of one task whose columns lie at other places and on other scales."""
    dealt, rng = [], np.random.default_rng(0)
    for i in range(n):
        x = rng.normal(size=(examples, 4)).astype("float32")
        y = (x[:, 0] + x[:, 1] > 0).astype("int64")
        x = 10 * i + (i + 1) * x
        dealt.append((x[:40], y[:40], x[40:], y[40:]))
    return dealt


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))


LOCAL = fv.LocalTraining(epochs=3, batch_size=8, lr=0.2)


def federation(made=fv.Federation, **options):
    torch.manual_seed(0)
    arguments = {
        "model": network(),
        "clients": clients(),
        "local": LOCAL,
        "shared": fv.Shared(buffers="keep"),
        **options,
    }
    return made(**arguments)


def test_statistics_stay_with_each_client_and_evaluation_uses_them():
    own = federation()
    history = own.run(rounds=5)
    means = [client.buffers["0.running_mean"] for client in own.clients]
    for i, mean in enumerate(means):  # of 10 i plus noise, by a running mean over 75 steps
        assert mean.mean() == pytest.approx(10 * i, abs=0.5)
    assert (
        history.metrics["accuracy"] > 0.9
    )  # of the initial statistics: a guess, for clients that lie elsewhere
    model = network()
    every = []
    for client in own.clients:
        model.load_state_dict({**history.state_dicts[0], **client.buffers})
        every.append(float((model.eval()(client.test_x).argmax(1) == client.test_y).float().mean()))
    assert history.metrics["accuracy"] == pytest.approx(np.mean(every))
    assert [m["accuracy"] for m in history.rounds[-1].client_metrics] == pytest.approx(every)


def test_statistics_go_on_from_the_round_before():
    whole, parts = federation(), federation()
    whole.run(rounds=2)
    parts.run(rounds=1)
    first = [c.buffers["0.num_batches_tracked"].item() for c in parts.clients]
    parts.run(rounds=2)
    assert first == [15] * 3
    assert [c.buffers["0.num_batches_tracked"].item() for c in parts.clients] == [30] * 3
    for one, other in zip(whole.clients, parts.clients, strict=True):
        assert all(torch.equal(one.buffers[name], other.buffers[name]) for name in one.buffers)


def test_nothing_of_them_is_sent_and_a_client_that_never_trained_has_none():
    own = federation(clients_per_round=1)
    history = own.run(rounds=1)
    assert sum(client.buffers is not None for client in own.clients) == 1
    assert set(history.state_dicts[0]) == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.flower
def test_flower_keeps_them_in_the_node_to_the_same_bits():
    pytest.importorskip("flwr")
    from fedveil.flower import FlowerFederation

    data = clients()
    embedded = federation(clients=data, execution=fv.engines.Execution(trainer="sequential"))
    flower = federation(
        FlowerFederation, clients=data, execution=fv.engines.Execution(trainer="sequential")
    )
    one, other = embedded.run(rounds=2), flower.run(rounds=2)
    assert torch.equal(one.models, other.models)
    assert one.metrics == other.metrics
    for a, b in zip(embedded.clients, flower.clients, strict=True):
        assert all(torch.equal(a.buffers[name], b.buffers[name]) for name in a.buffers)


def test_what_cannot_keep_them_is_refused_with_the_repair():
    with pytest.raises(fv.FieldError, match=r"fedveil\.learning\.mend"):
        federation(shared=fv.Shared())
    assert federation(model=fv.learning.mend(network()), shared=fv.Shared()).run(rounds=1).rounds
    rule = fv.EarlyStopping(clients=[c[:2] for c in clients(1)], patience=1)
    with pytest.raises(fv.FieldError, match="mend"):
        federation(evaluation=fv.Evaluation(stopping=rule))
    with pytest.raises(fv.FieldError, match="mend"):
        fv.audit(
            lambda c, m, s: federation(clients=c, method=m, seed=s),
            clients(),
            rounds=1,
            replicates=4,
        )
