"""The embedded engine: one client's trouble never ends a round, is counted, and leaves the noise right."""

import pytest
import torch

from engine_kit import CENTRAL, LOCAL, OPTIONS, Faulty, federation, images, tiny
from fedveil.accounting import (
    Filter,
    Ledger,
    ParticipationFilter,
    compose_mu,
    epsilon_of_mu,
    mu_of_epsilon,
)
from fedveil.aggregation import FedAvg
from fedveil.engines import Federation
from fedveil.errors import FieldError, LedgerError, NoReplyError
from fedveil.methods import build

DELTA = 1e-5


def expected_sigma(name, *, replied, planned, record):
    """Deviation of the server's noise, from the papers' formulas."""
    options = OPTIONS[name]
    scale = options["noise_multiplier"] * options["clip"] / planned
    return scale if name == "global" else scale / record.round.report["distance"]


@pytest.mark.parametrize("name", CENTRAL)
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_failing_client_is_counted_and_the_round_goes_on(name, fault):
    history = federation(name, faults={2: fault}).run(2)
    for record in history.rounds:
        log = record.round
        assert log.used == (0, 1, 3)
        assert log.report["clients"] == 3
        where = log.invalid if fault == "nan" else log.failed
        assert set(where) == {2}
        assert len(log.failed) + len(log.invalid) == 1
        assert not log.refused
        if name in ("global", "metric"):  # formal order: absent clients stay in the divisor
            assert log.report["sigma"] == pytest.approx(
                expected_sigma(name, replied=3, planned=4, record=record)
            )
    assert torch.isfinite(history.models).all()


@pytest.mark.parametrize("name", ["global", "metric"])
def test_printed_noise_is_for_the_clients_that_replied(name):
    method = build(name, **OPTIONS[name], order="printed")
    (record,) = federation(name, faults={2: "raise"}, method=method).run(1).rounds
    assert record.round.report["sigma"] == pytest.approx(
        expected_sigma(name, replied=3, planned=3, record=record)
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_a_client_whose_filter_refuses_is_counted_and_does_not_train(name):
    trained = []

    class Watched(Faulty):
        def learn(self, models, clients, keys, needs=frozenset(), sources=()):
            trained.append([partition for _, _, partition in keys])
            return super().learn(models, clients, keys, needs)

    budgets = lambda p: ParticipationFilter(1) if p == 2 else None  # noqa: E731
    fed = federation(name, learner=Watched({}), client_budgets=budgets)
    history = fed.run(3)
    assert [r.round.used for r in history.rounds] == [(0, 1, 2, 3), (0, 1, 3), (0, 1, 3)]
    assert [set(r.round.refused) for r in history.rounds] == [set(), {2}, {2}]
    assert trained == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 3]]
    assert len(fed.party(2).ledger.entries) == 1


@pytest.mark.parametrize("name", LOCAL)
def test_a_failed_participation_is_charged_under_local_trust(name):
    fed = federation(name, faults={2: "raise"}, client_budgets=lambda p: ParticipationFilter(2))
    assert [set(r.round.refused) for r in fed.run(2).rounds] == [set(), set()]
    stopped = fed.run(3).stopped  # everybody's budget is used up, the failing client's too
    assert "every client declined" in stopped
    assert len(fed.party(2).ledger.entries) == 2


@pytest.mark.parametrize("name", OPTIONS)
def test_all_clients_failing_ends_the_run(name):
    fed = federation(name, faults=dict.fromkeys(range(4), "raise"), since=2)
    with pytest.raises(NoReplyError, match="round 2"):
        fed.run(3)
    assert fed.round == 1
    assert torch.isfinite(fed.models).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(name):
    first, again, other = (
        federation(name).run(2),
        federation(name).run(2),
        federation(name, seed=8).run(2),
    )
    assert torch.equal(first.models, again.models)
    assert not torch.equal(first.models, other.models)


@pytest.mark.parametrize("name", LOCAL)
def test_a_client_draws_the_same_noise_whoever_else_takes_part(name):
    # partition 0 of a federation of two and of four: its release under local trust is the same to the bit
    digests = []
    for n in (2, 4):
        fed = federation(name, n)
        fed.run(1)
        digests.append(fed.party(0).ledger.entries[0].digest)
    assert digests[0] == digests[1]


def test_cohorts_are_keyed_by_seed_and_round():
    fed, twin = (federation("vanilla", 6, clients_per_round=3) for _ in range(2))
    cohorts = [tuple(fed.cohort(r)) for r in range(1, 30)]
    assert cohorts == [tuple(twin.cohort(r)) for r in range(1, 30)]
    assert all(len(set(c)) == 3 and list(c) == sorted(c) for c in cohorts)
    assert len(set(cohorts)) > 5
    assert {p for c in cohorts for p in c} == set(range(6))
    other = federation("vanilla", 6, clients_per_round=3, seed=8)
    assert cohorts != [tuple(other.cohort(r)) for r in range(1, 30)]
    assert federation("vanilla", 6).cohort(3) == [0, 1, 2, 3, 4, 5]


def test_only_the_cohort_takes_part_and_is_noised_for():
    fed = federation("global", 6, clients_per_round=3)
    for record in fed.run(3).rounds:
        assert record.round.used == tuple(fed.cohort(record.round.number))
        assert record.round.report["sigma"] == pytest.approx(0.1 * 1.0 / 3)


def test_the_servers_budget_stops_the_run_with_the_last_model():
    # z = .1: mu = 10 a round; a budget of mu just below 15 holds two rounds
    epsilon = 165.0
    assert 14.2 < mu_of_epsilon(epsilon, DELTA) < 17.3
    history = federation("global", server_budget=Filter(epsilon, DELTA)).run(5)
    assert len(history.rounds) == 2
    assert "budget" in history.stopped
    assert torch.equal(history.models, federation("global").run(2).models[None][0])
    assert history.guarantee.mu == pytest.approx(10 * 2**0.5)
    assert history.guarantee.epsilon(DELTA) <= epsilon


def test_a_budget_lowered_afterwards_does_not_lower_the_total():
    files = {}

    def ledgers(party):
        lines = files.setdefault(party, [])
        return Ledger.parse("memory", party, list(lines)), lines.append

    first = federation("global", ledgers=ledgers)
    spent = first.run(3).guarantee.epsilon(DELTA)
    later = federation("global", ledgers=ledgers, server_budget=Filter(1.0, DELTA))
    later.restore(first.models, 3, first.server.state, first.client_states())
    history = later.run(4)
    assert "budget is used up" in history.stopped
    assert history.guarantee.epsilon(DELTA) == pytest.approx(spent)


def adaptive(**options):
    """Metric privacy whose scale follows released models: what a round costs is less than what it may."""
    return federation(
        "metric", method=build("metric", **OPTIONS["metric"], distance_on="released"), **options
    )


def charged_by(federation, rounds):
    """What a filter counts for the first rounds, as an epsilon."""
    return epsilon_of_mu(
        compose_mu(e.spend.charge for e in federation.server.ledger.entries[:rounds]), DELTA
    )


def kept():
    """Ledgers that outlive a federation, as its files would."""
    files = {}

    def ledgers(party):
        lines = files.setdefault(party, [])
        return Ledger.parse("memory", party, list(lines)), lines.append

    return ledgers


def test_a_budget_is_the_total_only_if_it_was_set_before_the_first_release():
    ledgers = kept()
    first = adaptive(ledgers=ledgers)
    spent = first.run(3).guarantee
    charged = charged_by(first, 3)
    assert charged < spent.epsilon(DELTA) / 2
    budget = charged * 1.000001  # chosen after looking, just above what was charged
    later = adaptive(ledgers=ledgers, server_budget=Filter(budget, DELTA))
    assert (
        later.run(3).guarantee == later.history([]).guarantee == spent
    )  # no more is released, and nothing promised
    before = adaptive(ledgers=kept(), server_budget=Filter(budget, DELTA))
    history = before.run(3)
    assert len(history.rounds) == 3
    assert budget * (1 - 1e-9) < history.guarantee.epsilon(DELTA) <= budget


def test_a_declared_budget_is_never_dropped_or_raised_later():
    whole = adaptive()
    whole.run(9)
    declared = charged_by(whole, 3)  # of nine rounds the first three fit
    ledgers = kept()
    first = adaptive(ledgers=ledgers, server_budget=Filter(declared, DELTA))
    assert first.run(2).guarantee.epsilon(DELTA) == pytest.approx(declared)
    for budget in (
        None,
        Filter(10 * declared, DELTA),
        Filter(declared, DELTA / 10),
        ParticipationFilter(3),
    ):
        with pytest.raises(FieldError, match="budget"):
            adaptive(ledgers=ledgers, server_budget=budget)
    lowered = adaptive(ledgers=ledgers, server_budget=Filter(declared / 2, DELTA))
    assert lowered.history([]).guarantee.epsilon(DELTA) == pytest.approx(declared)


def test_totals_are_the_servers_or_the_clients():
    central = federation("global").run(3)
    assert set(central.guarantees) == {"server"}
    assert central.guarantee.mu == pytest.approx(10 * 3**0.5)
    assert central.guarantee.scope == "total"
    assert federation("vanilla").run(1).guarantee.status == "none"
    assert federation("metric").run(1).guarantee.status == "heuristic"
    for name in LOCAL:
        local = federation(name).run(2)
        assert set(local.guarantees) == {"0", "1", "2", "3"}
        assert (local.guarantee.status, local.guarantee.trust) == ("heuristic", "local")


def test_a_resumed_run_neither_repeats_noise_nor_forgets_what_was_spent():
    whole = federation("sga-ldp").run(4)
    files = {}

    def ledgers(party):
        lines = files.setdefault(party, [])
        return Ledger.parse("memory", party, list(lines)), lines.append

    first = federation("sga-ldp", ledgers=ledgers, client_budgets=lambda p: ParticipationFilter(4))
    for record in first.rounds(4):
        if record.round.number == 2:
            break
    resumed = federation(
        "sga-ldp", ledgers=ledgers, client_budgets=lambda p: ParticipationFilter(4)
    )
    resumed.restore(first.models, 2, first.server.state, first.client_states())
    assert torch.equal(resumed.run(4).models, whole.models)
    assert all(len(lines) == 4 for lines in files.values())
    assert "budget is used up" in resumed.run(5).stopped


def test_a_run_is_not_resumed_without_the_ledgers_that_hold_what_was_spent():
    first = federation("global")
    spent = first.run(3).guarantee
    with pytest.raises(FieldError, match="ledgers"):  # its total would be that of one round
        federation("global").restore(first.models, 3, first.server.state, first.client_states())
    ledgers = kept()
    first = federation("global", ledgers=ledgers)
    first.run(3)
    later = federation("global", ledgers=ledgers)
    later.restore(first.models, 3, first.server.state, first.client_states())
    assert later.run(4).guarantee.mu == pytest.approx(spent.mu * (4 / 3) ** 0.5)


@pytest.mark.parametrize("name", LOCAL)
def test_only_models_reach_the_server_under_local_trust(name):
    seen, fed = [], federation(name)
    combine = fed.server.combine
    fed.server.combine = lambda opened, answers, *rest: (
        seen.append(answers.replies) or combine(opened, answers, *rest)
    )
    fed.run(1)
    assert {r.kind for releases in seen[0].values() for r in releases} == {"model"}
    assert len(seen[0]) == 4


def test_examples_weigh_only_where_counts_may_leave():
    clients = [images(0, 2), images(1, 6)]
    uniform, weighted = (
        Federation(model=tiny, clients=clients, method=FedAvg(weighting=w), seed=3).run(1).models
        for w in ("uniform", "examples")
    )
    assert not torch.allclose(uniform, weighted)
    with pytest.raises(FieldError, match="weighting"):
        Federation(model=tiny, clients=clients, method=build("sga-ldp", FedAvg("examples")))


def test_hypotheses_each_start_elsewhere_and_clients_choose():
    fed = federation("group")
    assert fed.models.shape == (2, fed.layout.size)
    assert not torch.equal(fed.models[0], fed.models[1])
    report = fed.run(1).rounds[0].round.report
    assert report["cluster_0"] + report["cluster_1"] == 4
    with pytest.raises(FieldError, match="hypotheses"):
        Federation(model=tiny(), clients=[images(0)], method="group")


def test_a_damaged_checkpoint_is_refused_by_the_servers_ledger():
    files = {}

    def ledgers(party):
        lines = files.setdefault(party, [])
        return Ledger.parse("memory", party, list(lines)), lines.append

    first = federation("global", ledgers=ledgers)
    models = first.run(2).models
    state = (first.server.state, first.client_states())
    damaged = models.clone()
    damaged[0, 0] += 1e-6
    with pytest.raises(LedgerError, match="released in round 2"):
        federation("global", ledgers=ledgers).restore(damaged, 2, *state)
    whole = federation("global", ledgers=ledgers)
    whole.restore(models, 2, *state)
    assert len(whole.run(3).rounds) == 1
