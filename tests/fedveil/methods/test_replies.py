"""What a cohort sends: the same bits wherever its models lie, and models that are added as they come."""

from dataclasses import replace

import pytest
import torch

import fedveil as fv
from engine_kit import OPTIONS, federation, images
from fedveil.accounting import digest
from fedveil.errors import ReplyError
from fedveil.learning import training
from fedveil.learning.batched import BatchedTrainer
from fedveil.methods import build, models_of


def ran(name, lone, monkeypatch, **options):
    """Models, digests in the ledger, figures and digests of replies; `lone`: no two models lie in one tensor."""
    kept = []

    class Keeper:
        name, figures = "keeper", ()

        def __call__(self, seen):
            kept.append({p: digest(r) for p, r in seen.received.items()})
            return {}

    with monkeypatch.context() as patched:
        if lone:
            train = BatchedTrainer.train
            patched.setattr(
                BatchedTrainer, "train", lambda self, *a: [_copied(o) for o in train(self, *a)]
            )
        made = federation(name, evaluation=fv.Evaluation(probes=[Keeper()]), **options)
        history = made.run(3)
    lines = [entry.digest for entry in made.server.ledger.entries]
    return history.models, lines, [dict(r.round.report) for r in history.rounds], kept


def _copied(outcome):
    return replace(outcome, model=outcome.model.clone())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, OPTIONS[name]) for name in ("vanilla", "global", "metric")),
        ("global", {"noise_multiplier": 0.2, "clip": 0.01}),
        ("global", {"noise_multiplier": 0.2, "order": "printed"}),
    ],
)
def test_bits_ledger_figures_and_replies_do_not_follow_where_the_models_lie(
    name, options, monkeypatch
):
    method = build(name, **options)
    together = ran(name, False, monkeypatch, method=method)
    alone = ran(name, True, monkeypatch, method=method)
    assert torch.equal(together[0], alone[0])
    assert together[1:] == alone[1:]


@pytest.mark.parametrize(
    "rule", [fv.FedMedian(), fv.FedAdam(), fv.FedAvg("examples"), fv.Krum(malicious=1)]
)
def test_every_rule_sees_the_same(rule, monkeypatch):
    own = {
        "n": 5,
        "method": build("vanilla", rule),
        "clients": [images(p, 4 + p) for p in range(5)],
    }
    assert torch.equal(
        ran("vanilla", False, monkeypatch, **own)[0], ran("vanilla", True, monkeypatch, **own)[0]
    )


@pytest.mark.parametrize("fault", ["nan", "raise"])
def test_what_one_client_breaks_is_that_clients_alone(fault):
    made = federation("global", faults={2: fault})
    record = made.run(1).rounds[0]
    assert record.round.used == (0, 1, 3)
    assert {**record.round.invalid, **record.round.failed}.keys() == {2}


def test_participations_are_counted_client_by_client_where_somebody_counts():
    budgets = fv.Budgets(clients=lambda p: fv.ParticipationFilter(1) if p == 1 else None)
    rounds = federation("global", budgets=budgets).run(2).rounds
    assert [r.round.used for r in rounds] == [(0, 1, 2, 3), (0, 2, 3)]
    assert set(rounds[1].round.refused) == {1}


def wide(**options):
    """Five clients with a model wide enough to be added as it comes, trained one after another."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(16, 2100), torch.nn.ReLU(), torch.nn.Linear(2100, 30)
    )
    data = [images(p) for p in range(5)]
    return fv.Federation(
        model=model, clients=data, method=fv.GlobalDP(noise_multiplier=0.2, clip=0.01), **options
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_models_added_as_they_come_give_the_same_run(workers):
    kept = []

    class Keeper:
        name, figures = "keeper", ()

        def __call__(self, seen):
            kept.append(len(seen.received[0]))
            return {}

    execution = fv.Execution(trainer="sequential", workers=workers)
    whole = wide(execution=execution, evaluation=fv.Evaluation(probes=[Keeper()])).run(3)
    added = wide(execution=execution).run(3)
    assert kept == [3, 3, 3]
    assert torch.equal(whole.models, added.models)
    assert [dict(r.round.report) for r in whole.rounds] == [
        dict(r.round.report) for r in added.rounds
    ]


def test_of_models_added_as_they_come_one_that_breaks_is_its_clients_alone(monkeypatch):
    made = wide(execution=fv.Execution(trainer="sequential", workers=2))
    train = training.SequentialTrainer._train

    def torn(self, start, client, key):
        if key[2] == 3:
            raise RuntimeError("out of memory")
        found = train(self, start, client, key)
        if key[2] == 1:
            found.model[5] = torch.inf
        return found

    monkeypatch.setattr(training.SequentialTrainer, "_train", torn)
    record = made.run(1).rounds[0].round
    assert record.used == (0, 2, 4)
    assert record.invalid.keys() == {1}
    assert record.failed.keys() == {3}
    assert float(made.models.norm()) < float("inf")


def test_models_are_added_as_they_come_and_none_is_kept(monkeypatch):
    made, seen = wide(execution=fv.Execution(trainer="sequential")), []
    monkeypatch.setattr(
        made.server, "combine", lambda broadcast, answers, *_: seen.append(answers.replies) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        made.run(1)
    [replies] = seen
    assert {p: [r.kind for r in reply] for p, reply in replies.items()} == {
        p: ["count", "metric"] for p in range(5)
    }
    with pytest.raises(ReplyError):
        models_of(list(replies.values()))
