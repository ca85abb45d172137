"""The embedded engine and Flower run the same parties, so they must agree to the bit."""

import pytest
import torch
from flower_cases import CLIENTS, METHODS, ROUNDS, arguments, digits, unruly

import fedveil as fv
from fedveil.accounting import Filter, LeakageFilter, Ledger
from fedveil.errors import NoReplyError
from fedveil.flower import FlowerFederation
from fedveil.learning import ClientData
from fedveil.mechanisms import SecureSource

pytestmark = pytest.mark.flower
CENTRAL = [name for name, m in METHODS.items() if m.client.trust == "central"]


def ledgers(federation):
    parties = {"server": federation.server, **federation._parties}
    return {name: party.ledger.entries for name, party in parties.items() if party.ledger.entries}


@pytest.mark.parametrize("name", METHODS)
def test_same_bits_as_embedded_though_replies_arrive_shuffled(name):
    embedded = fv.Federation(**arguments(name, clients=digits(test=8)))
    expected = embedded.run(ROUNDS)
    flower = FlowerFederation(shuffle=5, **arguments(name, clients=digits(test=8)))
    found = flower.run(ROUNDS)
    assert torch.equal(found.models, expected.models)
    assert found.guarantee == expected.guarantee
    assert found.guarantees == expected.guarantees
    assert [r.round for r in found.rounds] == [r.round for r in expected.rounds]
    assert [r.client_scales for r in found.rounds] == [r.client_scales for r in expected.rounds]
    assert [r.metrics for r in found.rounds] == [r.metrics for r in expected.rounds]
    assert [r.client_metrics for r in found.rounds] == [r.client_metrics for r in expected.rounds]
    assert ledgers(flower) == ledgers(embedded)  # digests of what left, entry by entry


@pytest.mark.parametrize("name", METHODS)
def test_clients_that_raise_diverge_or_decline(name):
    expected = fv.Federation(**unruly(name)).run(ROUNDS)
    found = FlowerFederation(shuffle=2, **unruly(name)).run(ROUNDS)
    assert torch.equal(found.models, expected.models)
    assert torch.isfinite(found.models).all()
    for ours, theirs in zip(found.rounds, expected.rounds, strict=True):
        a, b = ours.round, theirs.round
        assert a.used == b.used == ((0, 3, 4) if a.number == 1 else (0, 4))
        assert set(a.failed) == set(b.failed)
        assert 1 in a.failed
        assert a.invalid == b.invalid
        assert {*a.failed, *a.invalid} == {1, 2}
        assert a.refused == b.refused == ({} if a.number == 1 else {3: "the client's privacy budget is used up"})
        assert a.report == b.report
        if name in CENTRAL:
            assert a.failed == b.failed


def test_noise_follows_the_valid_replies_when_printed_and_the_plan_when_formal():
    for name, divisors in (("global-printed", (3, 2)), ("global-formal", (CLIENTS, CLIENTS))):
        server = METHODS[name].server
        rounds = FlowerFederation(**unruly(name)).run(2).rounds
        for record, n in zip(rounds, divisors, strict=True):
            assert record.round.report["sigma"] == pytest.approx(server.noise_multiplier * server.clip / n)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_without_any_reply_ends_loudly(name):
    broken = [ClientData(c.x, torch.full_like(c.y, 99)) for c in arguments(name)["clients"]]
    with pytest.raises(NoReplyError, match="no usable reply from 5 clients"):
        FlowerFederation(**arguments(name, clients=broken)).run(ROUNDS)


@pytest.mark.parametrize("name", ["global-formal", "group", "sga-ldp"])
def test_sampled_cohorts_are_the_same(name):
    expected = fv.Federation(**arguments(name, clients_per_round=3)).run(4)
    found = FlowerFederation(**arguments(name, clients_per_round=3), shuffle=1).run(4)
    assert torch.equal(found.models, expected.models)
    assert [r.round.used for r in found.rounds] == [r.round.used for r in expected.rounds]
    assert len({r.round.used for r in found.rounds}) > 1


@pytest.mark.parametrize("name", ["metric-fedadam", "sga-ldp"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_run_goes_on_where_it_stopped(name, kept):
    def build(engine):
        books = {}

        def open_book(party):
            return books.setdefault(party, (Ledger("run", party), lambda line: None))

        return engine(**arguments(name, ledgers=open_book if kept else None))

    whole = build(fv.Federation)
    whole.run(2)
    expected = whole.run(4)
    flower = build(FlowerFederation)
    flower.run(2)
    assert torch.equal(flower.run(4).models, expected.models)

    checkpoints = []
    first = build(FlowerFederation)
    first.run(
        4, lambda record: checkpoints.append((first.models, first.round, first.server.state, first.client_states()))
    )
    models, round_, server_state, client_states = checkpoints[1]
    second = build(FlowerFederation)
    second.restore(models, round_, server_state, client_states)
    resumed = second.run(4)
    assert [r.round.number for r in resumed.rounds] == [3, 4]
    assert torch.equal(resumed.models, first.models)


def test_the_server_stops_with_the_last_model_when_its_budget_is_used_up():
    def run(engine):
        return engine(**arguments("global-formal", server_budget=Filter(epsilon=1e6, delta=1e-5))).run(3)

    tight = Filter(epsilon=1e6, delta=1e-5)
    assert not run(fv.Federation).stopped
    mu = 1 / METHODS["global-formal"].server.noise_multiplier
    tight.budget = mu * 1.5  # two rounds cost mu * sqrt(2), three too much
    expected = fv.Federation(**arguments("global-formal", server_budget=tight)).run(3)
    again = Filter(epsilon=1e6, delta=1e-5)
    again.budget = mu * 1.5
    found = FlowerFederation(**arguments("global-formal", server_budget=again)).run(3)
    assert len(found.rounds) == 2
    assert found.stopped == expected.stopped != ""
    assert torch.equal(found.models, expected.models)


def test_a_leakage_cap_holds_across_rounds():
    leak = 910 / 5.0  # d / nu: 64 * 12 + 12 + 12 * 10 + 10 parameters
    caps = {"client_budgets": lambda p: LeakageFilter(2 * leak) if p else None}
    found = FlowerFederation(**arguments("group", **caps)).run(3)
    assert [sorted(r.round.refused) for r in found.rounds] == [[], [], [1, 2, 3, 4]]


def test_secure_noise_never_repeats():
    runs = [FlowerFederation(**arguments("global-formal", source=SecureSource())).run(1).models for _ in range(2)]
    assert not torch.equal(*runs)


def test_rounds_hands_over_the_same_records():
    expected = FlowerFederation(**arguments("vanilla")).run(2)
    found = list(FlowerFederation(**arguments("vanilla")).rounds(2))
    assert [r.round for r in found] == [r.round for r in expected.rounds]
