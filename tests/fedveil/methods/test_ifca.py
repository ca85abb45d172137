"""IFCA finds the clusters that group privacy looks for in noise; the index is the only thing beside FedAvg."""

import math
from collections import Counter

import pytest
import torch
from torch import nn

from fedveil.accounting import Release
from fedveil.engines import Federation, Shared
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.methods import Broadcast, Method, Plain, PublicFacts, ServerFacts, build
from fedveil_lab.runs.promised import guarantees_of

TRUE = torch.tensor([[5.0, 6.0], [4.0, -4.5]])

ONES = Shared(initial=torch.ones(1, 2))


def lines(n=12, examples=20):
    g = torch.Generator().manual_seed(0)
    clients = []
    for i in range(n):
        x = torch.randn(examples, 2, generator=g)
        clients.append(ClientData(x, x @ TRUE[i % 2] + torch.rand(examples, generator=g)))
    return clients


def test_clients_report_their_cluster_and_models_become_personal():
    starts = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    fed = Federation(
        model=nn.Linear(2, 1, bias=False),
        clients=lines(),
        method=build("ifca", hypotheses=2),
        local=LocalTraining(loss="mse", lr=0.1, batch_size=20),
        shared=Shared(initial=starts),
    )
    history = fed.run(30)
    assert torch.allclose(history.models, TRUE, atol=0.2)
    assert history.guarantee.status == "none"
    figures = history.rounds[-1].round.report
    assert (figures["cluster_0"], figures["cluster_1"]) == (6, 6)


def test_group_privacy_without_noise_and_one_hypothesis_is_fedavg():
    arguments = {
        "clients": lines(),
        "local": LocalTraining(loss="mse", lr=0.1, batch_size=20),
        "seed": 3,
    }
    silent = build("group", noise_multiplier=0.0, hypotheses=1)
    runs = [
        Federation(model=nn.Linear(2, 1, bias=False), method=method, shared=ONES, **arguments).run(
            5
        )
        for method in (build("vanilla"), silent, build("ifca", hypotheses=1))
    ]
    for other in runs[1:]:
        assert torch.allclose(runs[0].models, other.models, atol=1e-6)


def test_group_privacy_with_one_hypothesis_is_fedavg_with_the_same_noise():
    arguments = {
        "clients": lines(),
        "local": LocalTraining(loss="mse", lr=0.1, batch_size=20),
        "seed": 3,
    }
    method = build("group", noise_multiplier=2.0, hypotheses=1)
    averaged = Method("group", method.client, Plain())
    a, b = (
        Federation(model=nn.Linear(2, 1, bias=False), method=m, shared=ONES, **arguments).run(5)
        for m in (method, averaged)
    )
    assert torch.allclose(a.models, b.models, atol=1e-5)
    assert float((a.models - torch.ones(1, 2)).norm()) > 0.1


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "silent"), [("group", {"noise_multiplier": 0.0}), ("ifca", {})])
@pytest.mark.parametrize("divide", [0, 3])
def test_a_hypothesis_that_nobody_chooses_begins_anew_beside_the_one_that_all_choose(
    name, silent, divide
):
    fed = Federation(
        model=nn.Linear(2, 1, bias=False),
        clients=lines(),
        method=build(name, hypotheses=2, divide=divide, **silent),
        local=LocalTraining(loss="mse", lr=0.1, batch_size=20),
        shared=Shared(initial=torch.tensor([[4.0, 1.0], [500.0, 500.0]])),
    )
    history = fed.run(30)
    divided = [record.round.report.get("divided", 0.0) for record in history.rounds]
    assert divided[:2] == [0.0, 0.0]  # three rounds without a member come first
    assert sum(divided) == (divide > 0)
    assert torch.allclose(history.models.sort(dim=0)[0], TRUE.sort(dim=0)[0], atol=0.2) == (
        divide > 0
    )


@pytest.mark.parametrize("name", ["group", "ifca"])
def test_more_hypotheses_than_clients_equal_ones_one_row_and_a_loss_of_nan_end_no_run(name):
    clients = [
        *lines(2),
        *lines(1, examples=1),
        ClientData(torch.full((4, 2), 1e30), torch.ones(4)),
    ]
    fed = Federation(
        model=nn.Linear(2, 1, bias=False),
        clients=clients,
        method=build(name, hypotheses=6, divide=1),
        local=LocalTraining(loss="mse", lr=0.1, batch_size=20),
        shared=Shared(initial=torch.ones(6, 2)),
    )
    history = fed.run(3)
    assert history.models.shape == (6, 2)
    assert bool(history.models.isfinite().all())
    assert all(
        record.round.used[:3] == (0, 1, 2) for record in history.rounds
    )  # only the fourth may be missing
    assert all(
        record.zeroed or record.round.failed or record.round.invalid for record in history.rounds
    )


@pytest.mark.parametrize(("hypotheses", "told"), [(1, None), (2, math.log(2)), (3, math.log(3))])
def test_the_index_is_charged_in_the_ledger_of_whoever_reports_it_and_in_the_summary(
    hypotheses, told
):
    fed = Federation(
        model=nn.Linear(2, 1, bias=False),
        clients=lines(4),
        method=build("ifca", hypotheses=hypotheses),
        local=LocalTraining(loss="mse", lr=0.1, batch_size=20),
        shared=Shared(initial=torch.ones(hypotheses, 2)),
        clients_per_round=2,
        seed=1,
    )
    records = fed.run(3).rounds
    took = Counter(p for record in records for p in record.round.used)
    for partition in range(4):
        entries = fed.party(partition).ledger.entries
        assert [e.spend.leakage for e in entries] == [told] * (took[partition] if told else 0)
        assert {e.spend.guarantee.status for e in entries} <= {"none"}
    worst, told_of = guarantees_of(fed.method, fed.books(), 1e-5)
    assert worst.status == "none"
    if told is None:
        assert "worst client" not in told_of
    else:
        most = max(took.values())
        assert told_of["worst client"]["participations"] == most
        assert told_of["worst client"]["leakage"] == pytest.approx(most * told)
        assert told_of["worst client"]["text"] == "none"


def test_an_index_that_is_none_is_left_out():
    server = build("ifca", hypotheses=2).server
    starts = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    layout = Layout.from_shapes({"w": (2,)})
    facts = ServerFacts(
        broadcast=Broadcast(
            models=starts, public=PublicFacts(round=1, rounds=1, cohort=4, dimension=2)
        ),
        layout=layout,
        partitions=(0, 1, 2, 3),
    )
    sent = [(0.0, [2.0, 2.0]), (0.5, [9.0, 9.0]), (float("nan"), [9.0, 9.0]), (7.0, [9.0, 9.0])]
    replies = [
        (Release("model", torch.tensor(m)), Release("index", torch.tensor(i, dtype=torch.float64)))
        for i, m in sent
    ]
    combined = server.combine(replies, facts, server.init(2, torch.float32), None)
    assert combined.models.tolist() == [[2.0, 2.0], [1.0, 1.0]]
