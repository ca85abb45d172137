"""The embedded engine and Flower run the same parties, so they must agree to the bit."""

from dataclasses import replace

import pytest
import torch
from flwr.serverapp import ServerApp

import fedveil as fv
from fedveil.accounting import Filter, LeakageFilter, Ledger
from fedveil.engines import Behaviour
from fedveil.errors import FieldError, NoReplyError
from fedveil.flower import FedVeilStrategy, FlowerFederation, run_in_process, to_arrays
from fedveil.learning import ClientData
from fedveil.mechanisms import SecureSource
from fedveil_lab.attacks import ServerView
from flower_cases import CLIENTS, METHODS, ROUNDS, arguments, digits, unruly

pytestmark = pytest.mark.flower
CENTRAL = [name for name, m in METHODS.items() if m.client.trust == "central"]


def ledgers(federation):
    return {name: book.entries for name, book in federation.books().items() if book.entries}


@pytest.mark.few(4)
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


@pytest.mark.few(4)
@pytest.mark.parametrize("name", METHODS)
def test_a_server_app_ends_in_the_same_bits(name):
    embedded, flower = (
        fv.Federation(**arguments(name)),
        FlowerFederation(shuffle=5, **arguments(name)),
    )
    size, app = len(flower.clients), ServerApp()
    given = {
        "rounds": 2,
        "initial": flower.models,
        "clients": size,
        "seed": flower.seed,
        "evaluate": False,
    }
    strategy = FedVeilStrategy(flower.server, **given)

    @app.main()
    def main(grid, context):
        strategy.start(grid, to_arrays(flower.layout, flower.models[0]))

    run_in_process(app, grid=flower.courier.grid)
    assert torch.equal(strategy.models, embedded.run(2).models)
    assert ledgers(flower) == ledgers(embedded)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", METHODS)
def test_clients_that_raise_diverge_or_decline(name):
    expected = fv.Federation(**unruly(name)).run(2)
    found = FlowerFederation(shuffle=2, **unruly(name)).run(2)
    assert torch.equal(found.models, expected.models)
    assert torch.isfinite(found.models).all()
    for ours, theirs in zip(found.rounds, expected.rounds, strict=True):
        a, b = ours.round, theirs.round
        well = (0, 3, 4) if a.number == 1 else (0, 4)
        assert a.invalid == b.invalid
        assert set(ours.zeroed) == set(theirs.zeroed)
        if name in CENTRAL:
            assert a.used == b.used == well
            assert set(a.failed) == set(b.failed) == {1}
            assert set(a.invalid) == {2}
        else:  # they answered with zero updates, which the server cannot tell
            assert a.used == b.used == tuple(sorted({*well, 1, 2}))
            assert a.failed == b.failed == {}
            assert set(ours.zeroed) == {1, 2}
        assert (
            a.refused
            == b.refused
            == ({} if a.number == 1 else {3: "the client's privacy budget is used up"})
        )
        assert a.report == b.report


def test_noise_follows_the_valid_replies_when_printed_and_the_plan_when_formal():
    for name, divisors in (("global-printed", (3, 2)), ("global-formal", (CLIENTS, CLIENTS))):
        server = METHODS[name].server
        rounds = FlowerFederation(**unruly(name)).run(2).rounds
        for record, n in zip(rounds, divisors, strict=True):
            assert record.round.report["sigma"] == pytest.approx(
                server.noise_multiplier * server.clip / n
            )


@pytest.mark.few(4)
@pytest.mark.parametrize("name", METHODS)
def test_a_run_without_any_reply_ends_loudly(name):
    broken = [ClientData(c.x, torch.full_like(c.y, 99)) for c in arguments(name)["clients"]]
    with pytest.raises(NoReplyError, match=r"no usable reply from 5 clients|every client failed"):
        FlowerFederation(**arguments(name, clients=broken)).run(ROUNDS)


@pytest.mark.parametrize("name", ["global-formal", "group", "sga-ldp"])
def test_sampled_cohorts_are_the_same(name):
    expected = fv.Federation(**arguments(name, clients_per_round=3)).run(4)
    found = FlowerFederation(**arguments(name, clients_per_round=3), shuffle=1).run(4)
    assert torch.equal(found.models, expected.models)
    assert [r.round.used for r in found.rounds] == [r.round.used for r in expected.rounds]
    assert len({r.round.used for r in found.rounds}) > 1


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["metric-fedadam", "sga-ldp"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_run_goes_on_where_it_stopped(name, kept):
    books = {}

    def build(engine, again=False):
        if not again:
            books.clear()

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
        4,
        lambda record: checkpoints.append(
            (first.models, first.round, first.server.state, first.client_states())
        ),
    )
    models, round_, server_state, client_states = checkpoints[1]
    second = build(FlowerFederation, again=True)
    if not kept:  # its total would leave out the rounds before
        with pytest.raises(FieldError, match="ledgers"):
            second.restore(models, round_, server_state, client_states)
        return
    second.restore(models, round_, server_state, client_states)
    resumed = second.run(4)
    assert [r.round.number for r in resumed.rounds] == [3, 4]
    assert torch.equal(resumed.models, first.models)


def test_the_server_stops_with_the_last_model_when_its_budget_is_used_up():
    def run(engine):
        return engine(
            **arguments("global-formal", server_budget=Filter(epsilon=1e6, delta=1e-5))
        ).run(3)

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
    runs = [
        FlowerFederation(**arguments("global-formal", source=SecureSource())).run(1).models
        for _ in range(2)
    ]
    assert not torch.equal(*runs)


def test_rounds_hands_over_the_same_records():
    expected = FlowerFederation(**arguments("vanilla")).run(2)
    found = list(FlowerFederation(**arguments("vanilla")).rounds(2))
    assert [r.round for r in found] == [r.round for r in expected.rounds]


class Malicious(Behaviour):
    """Trains on shifted labels, and sends twice its update."""

    def data(self, data, partition, round_):
        return replace(data, y=(data.y + round_) % 10)

    def model(self, turn):
        return turn.start + 2 * turn.update


@pytest.mark.parametrize("name", ["vanilla", "sga-ldp"])
def test_malicious_clients_do_the_same_behind_flowers_mod(name):
    found = FlowerFederation(**arguments(name, behaviours={2: Malicious()})).run(ROUNDS)
    assert torch.equal(
        found.models,
        fv.Federation(**arguments(name, behaviours={2: Malicious()})).run(ROUNDS).models,
    )
    assert not torch.equal(found.models, fv.Federation(**arguments(name)).run(ROUNDS).models)


@pytest.mark.parametrize("name", ["metric-fedadam", "sga-ldp"])
def test_probes_see_the_same_behind_flower(name):
    ours, theirs = ServerView(), ServerView()
    fv.Federation(**arguments(name, probes=[ours])).run(2)
    FlowerFederation(**arguments(name, probes=[theirs]), shuffle=1).run(2)
    assert len(ours.received) == len(theirs.received) == 10
    for a, b in zip(ours.received, theirs.received, strict=True):
        assert (a.round, a.partition) == (b.round, b.partition)
        assert torch.equal(a.starts, b.starts)
        assert torch.equal(a.model, b.model)


@pytest.mark.parametrize("name", ["sga-ldp", "group"])
def test_clients_with_their_own_parameters_are_the_same_behind_flower(name):
    common = METHODS[name].client
    own = {
        1: replace(common, clip=0.1) if name == "sga-ldp" else replace(common, noise_multiplier=0.5)
    }
    expected = fv.Federation(**arguments(name, client_sides=own)).run(2)
    found = FlowerFederation(**arguments(name, client_sides=own)).run(2)
    assert torch.equal(found.models, expected.models)
    assert found.guarantees == expected.guarantees
    assert [r.client_scales for r in found.rounds] == [r.client_scales for r in expected.rounds]
    assert not torch.equal(found.models, fv.Federation(**arguments(name)).run(2).models)
