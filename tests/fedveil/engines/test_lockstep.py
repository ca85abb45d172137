"""Federations in lockstep end in the bits in which each ends alone."""

import pytest
import torch
from torch import nn

from fedveil.accounting import Filter
from fedveil.engines import Budgets, Evaluation, Execution, Federation, Lockstep
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, SequentialTrainer
from fedveil.learning.learner import Learner
from fedveil.methods import Publishing, build

METHODS = {
    "vanilla": {},
    "global": {"noise_multiplier": 0.5, "clip": 1.0},
    "metric": {"noise_multiplier": 0.1, "clip": 1.0},
    "sga-ldp": {"clip": 0.5},
    "group": {"noise_multiplier": 0.5},
}


def module():
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.2), nn.Linear(3, 2))


def client(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g)
    return ClientData(x, (x.sum(1) > 0).long(), x[: n // 2], (x[: n // 2].sum(1) > 0).long())


@pytest.fixture(scope="module")
def learner():
    torch.manual_seed(0)
    model = module()
    layout, local = Layout.from_module(model), LocalTraining(epochs=2, batch_size=4)
    return Learner(model, layout, local, trainer=SequentialTrainer(model, layout, local))


def federations(learner, **options):
    made = []
    for seed, (name, values) in enumerate(METHODS.items()):
        extra = {"clients_per_round": 2} if name == "metric" else {}
        if name in ("global", "vanilla"):
            extra["evaluation"] = Evaluation(publishing=Publishing(metrics="noised"))
        made.append(
            Federation(
                model=module,
                clients=[client(10 * seed + i, 5 + 3 * i) for i in range(3)],
                method=build(name, **values),
                execution=Execution(learner=learner),
                seed=seed,
                **extra,
                **options,
            )
        )
    return made


def test_in_lockstep_every_federation_has_the_bits_that_it_has_alone(learner):
    together, alone = federations(learner), federations(learner)
    records = list(Lockstep(together).rounds(3))
    assert [sorted(played) for played in records] == [[0, 1, 2, 3, 4]] * 3
    for i, single in enumerate(alone):
        history = single.run(3)
        assert torch.equal(single.models, together[i].models)
        assert single.server.ledger.entries == together[i].server.ledger.entries
        for partition in range(3):
            assert (
                single.party(partition).ledger.entries
                == together[i].party(partition).ledger.entries
            )
        assert [r.metrics for r in history.rounds] == [p[i].metrics for p in records]
        assert [r.published for r in history.rounds] == [p[i].published for p in records]
    assert all(p[0].published for p in records)


def test_their_clients_are_trained_in_one_call_a_round(learner, monkeypatch):
    calls = []
    train = learner.trainer.train
    monkeypatch.setattr(
        learner.trainer,
        "train",
        lambda starts, *rest: calls.append(len(starts)) or train(starts, *rest),
    )
    list(Lockstep(federations(learner)).rounds(2))
    assert calls == [14, 14]  # 3 clients of each, but for the federation with cohorts of 2


def test_one_that_ends_early_leaves_the_others_alone(learner):
    made = federations(learner)[:2]
    short = Federation(
        model=module,
        clients=made[1].clients,
        method=made[1].method,
        execution=Execution(learner=learner),
        seed=1,
        budgets=Budgets(server=Filter(15.0, 1e-5)),
    )
    lockstep = Lockstep([made[0], short])
    played = [sorted(p) for p in lockstep.rounds(12)]
    assert "budget is used up" in lockstep.stopped[1]
    assert short.round < made[0].round == 12
    assert played == [[0, 1]] * short.round + [[0]] * (12 - short.round)


def test_learners_must_be_shared(learner):
    other = Learner(learner.model, learner.layout, learner.local)
    made = federations(learner)[:2]
    made[1].learner = other
    with pytest.raises(FieldError, match="same learner"):
        Lockstep(made)
    with pytest.raises(FieldError, match="at least one"):
        Lockstep([])
