"""The order of a party: admit, draw, commit, hand over; what a crash may cost, and what it may never do."""

import json
from dataclasses import replace

import pytest
import torch

from core_kit import Deployed, broadcast_of, client_facts, flat, reply, server_party
from fedveil.accounting import (
    Entry,
    Filter,
    LeakageFilter,
    Ledger,
    Limits,
    ParticipationFilter,
    Policy,
    Release,
    digest,
    mu_of_epsilon,
    nothing,
)
from fedveil.aggregation import FedAvg
from fedveil.engines import ClientParty, ServerParty
from fedveil.engines.answers import RoundAnswers
from fedveil.errors import BudgetError, FieldError, LedgerError, NoReplyError
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import (
    METHODS,
    SGALDP,
    GlobalDP,
    GroupPrivacy,
    Method,
    MetricPrivacy,
    PerturbationAware,
    Plain,
    Refusal,
    TrustedServer,
    build,
    paired,
    registered_as,
)

DELTA, D = 1e-5, 3
START = torch.zeros(D, dtype=torch.float64)
STEP = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
GROUP = Method(
    "group", GroupPrivacy(noise_multiplier=1.5), Plain()
)  # leakage n / nu = 2 in every participation


def client(*, method=GROUP, ledger=None, **options):
    ledger = Ledger("run", "3") if ledger is None else ledger
    return ClientParty(method, flat(D), ledger, ReproducibleSource(0), **options)


def release(party, round_=1, step=STEP):
    sent = (Release("model", START + step), Release("count", torch.tensor(5.0)))
    return party.release(sent, client_facts(START, round_=round_))


def participate(party, round_=1, step=STEP):
    refusal = party.admit(broadcast_of(START, round_))
    return refusal if refusal is not None else release(party, round_, step)


# ---- clients


def test_a_client_commits_before_it_hands_over():
    lines = []
    party = client(store=lines.append)
    released = participate(party)
    (entry,) = party.ledger.entries
    assert entry.key == (1, "protect")
    assert entry.digest == digest(released)
    assert entry.spend.leakage == 2.0
    assert Ledger.parse("run", "3", lines).entries == party.ledger.entries


def test_nothing_is_handed_over_if_the_ledger_cannot_be_written():
    def full(line):
        raise OSError("disk full")

    party = client(method=Method("sga", SGALDP(), Plain()), store=full)
    before = party.state
    with pytest.raises(OSError, match="disk full"):
        participate(party)
    assert party.state == before


class Flaky:
    """A store whose first line does not reach the disk."""

    def __init__(self):
        self.lines, self.failures = [], 1

    def __call__(self, line):
        if self.failures:
            self.failures -= 1
            raise OSError("disk full")
        self.lines.append(line)


def test_a_party_that_could_not_write_once_hands_nothing_over_any_more():
    # drawn again the same bits would find their entry in memory, and go out without a line on the disk
    store = Flaky()
    server = server_party(GlobalDP(noise_multiplier=1.0, clip=1.0), D, store=store)
    party = client(store=Flaky())
    for _ in range(2):
        with pytest.raises((OSError, LedgerError), match=r"disk full|go on from what is stored"):
            server.combine(opened(), RoundAnswers(replies()))
        with pytest.raises((OSError, LedgerError), match=r"disk full|go on from what is stored"):
            participate(party)
    assert store.lines == []
    with pytest.raises(LedgerError, match="go on from what is stored"):
        server.combine(opened(2), RoundAnswers(replies()))


def test_a_client_pays_what_it_was_quoted_or_sends_nothing():
    # the server understates the dimension, so that the filter would be charged a third of the leakage
    party = client(budget=LeakageFilter(5.0))
    lie = broadcast_of(START, 1)
    lie = replace(lie, public=replace(lie.public, dimension=1))
    with pytest.raises(FieldError, match="layout has 3"):
        party.admit(lie)
    assert party.ledger.entries == []
    # and a client that is asked about one broadcast and trained on another
    sent = (Release("model", START + STEP),)
    side = Method("sga", SGALDP(similarity="released", epsilon_min=1.0, epsilon_max=8.0), Plain())
    party = client(method=side)
    first = participate(party, 1)[0].value
    assert (
        party.admit(broadcast_of(START - (first - START), 2)) is None
    )  # against its last release: epsilon_min
    with pytest.raises(FieldError, match="quoted before training"):
        party.release(
            sent, client_facts(first, round_=2)
        )  # along it: epsilon_max, for a zero update too
    assert len(party.ledger.entries) == 1


def test_an_evaluation_releases_no_model():
    for kind in ("model", "update", "gradient"):
        with pytest.raises(FieldError, match="metrics and counts"):
            client().report((Release(kind, START + STEP),), client_facts(START))


def test_a_client_that_may_not_spend_is_refused_before_training():
    party = client(budget=LeakageFilter(5.0))  # two participations of 2 fit, a third does not
    assert participate(party, 1)
    assert participate(party, 2)
    assert participate(party, 3).reason == "the client's privacy budget is used up"
    assert [e.key[0] for e in party.ledger.entries] == [1, 2]


def test_a_refusal_does_not_depend_on_the_clients_data():
    verdicts = []
    for step in (STEP, 1e6 * STEP):
        party = client(budget=LeakageFilter(3.0))
        verdicts.append([type(participate(party, r, step)).__name__ for r in (1, 2, 3)])
    assert verdicts[0] == verdicts[1] == ["tuple", "Refusal", "Refusal"]


def test_a_filter_is_rebuilt_from_the_ledger():
    lines = []
    party = client(budget=LeakageFilter(5.0), store=lines.append)
    participate(party, 1)
    participate(party, 2)
    resumed = client(ledger=Ledger.parse("run", "3", lines), budget=LeakageFilter(5.0))
    assert resumed.budget.spent == 4.0
    assert resumed.admit(broadcast_of(START, 3)) is not None
    forgetful = client(budget=LeakageFilter(5.0))  # the same without its ledger would be let in
    assert forgetful.admit(broadcast_of(START, 3)) is None


def test_a_lowered_budget_is_exceeded_for_good():
    # 4 are spent; a filter of 3 holds only one of the two entries, and still nothing more may be admitted
    lines = []
    party = client(store=lines.append)
    participate(party, 1)
    participate(party, 2)
    cheap = Method("group", GroupPrivacy(noise_multiplier=30.0), Plain())  # a leakage of .1
    resumed = client(
        method=cheap, ledger=Ledger.parse("run", "3", lines), budget=LeakageFilter(3.0)
    )
    assert resumed.admit(broadcast_of(START, 3)) is not None


def test_the_same_release_may_go_out_again():
    party = client(budget=LeakageFilter(5.0))
    first = participate(party)
    resumed = client(ledger=party.ledger, budget=LeakageFilter(5.0))
    again = participate(resumed)
    assert torch.equal(again[0].value, first[0].value)
    assert len(resumed.ledger.entries) == 1
    assert resumed.budget.spent == 2.0


def test_a_second_release_under_a_key_is_a_zero_update_with_fresh_noise_and_is_charged():
    # after a crash the client trains again and does not get the same bits: a second look at its data is not for sale
    lines = []
    party = client(budget=LeakageFilter(5.0), store=lines.append)
    first = participate(party)
    resumed, other = (
        client(ledger=Ledger.parse("run", "3", lines), budget=LeakageFilter(5.0)) for _ in range(2)
    )
    second = participate(resumed, step=2 * STEP)
    assert [e.attempt for e in resumed.ledger.entries] == [0, 1]
    assert resumed.budget.spent == 4.0
    assert torch.equal(
        participate(other, step=5 * STEP)[0].value, second[0].value
    )  # whatever the second step was
    noises = first[0].value - STEP, second[0].value - START
    directions = [n / n.norm() for n in noises]
    assert not torch.allclose(directions[0], directions[1], atol=1e-3)
    # and a third crash goes on to the third attempt, for which there is no budget
    third = client(ledger=resumed.ledger, budget=LeakageFilter(5.0))
    with pytest.raises(BudgetError):
        participate(third, step=3 * STEP)
    assert len(third.ledger.entries) == 2


def noise_of(party, round_=1):
    return participate(party, round_)[0].value - STEP


def test_noise_differs_between_rounds_and_parties_and_not_between_orders():
    one, two = client(), ClientParty(GROUP, flat(D), Ledger("run", "4"), ReproducibleSource(0))
    drawn = [noise_of(one, 1), noise_of(one, 2), noise_of(two, 1)]
    for i in range(3):
        for j in range(i):
            assert not torch.allclose(drawn[i], drawn[j])
    shared = ReproducibleSource(
        0
    )  # one source object for all, asked in another order, draws the same
    late = ClientParty(GROUP, flat(D), Ledger("run", "4"), shared)
    early = ClientParty(GROUP, flat(D), Ledger("run", "3"), shared)
    assert torch.equal(noise_of(late, 1), drawn[2])
    assert torch.equal(noise_of(early, 2), drawn[1])
    assert torch.equal(noise_of(early, 1), drawn[0])


def test_evaluation_replies_leave_only_under_central_trust():
    metrics = (
        Release("metric", torch.tensor(0.5), "accuracy"),
        Release("count", torch.tensor(5.0)),
    )
    assert client().report(metrics, client_facts(START)) == ()
    trusting = client(method=Method("global", TrustedServer(), GlobalDP(noise_multiplier=0.01)))
    assert trusting.report(metrics, client_facts(START)) == metrics


def test_a_heuristic_cannot_be_held_to_an_epsilon():
    with pytest.raises(FieldError, match="heuristic"):
        client(budget=Filter(8.0, DELTA)).admit(broadcast_of(START, 1))
    party = client(budget=ParticipationFilter(1))
    assert participate(party, 1)
    assert participate(party, 2).reason


# ---- the server


def replies(n=4, move=1.0):
    return {p: reply(START + move * (p + 1)) for p in range(n)}


def opened(round_=1, cohort=4, theta=START):
    return broadcast_of(theta, round_, cohort=cohort)


def test_the_server_commits_what_it_hands_over():
    lines = []
    server = server_party(GlobalDP(noise_multiplier=1.0, clip=1.0), D, store=lines.append)
    after, log = server.combine(opened(), RoundAnswers(replies()))
    (entry,) = Ledger.parse("run", "server", lines).entries
    assert entry.key == (1, "combine")
    assert entry.digest == digest((Release("model", after.models),))
    assert entry.spend == log.spend
    assert entry.spend.guarantee.mu == pytest.approx(1.0)
    assert after.public == replace(opened().public, round=2)
    assert (log.number, log.used) == (1, (0, 1, 2, 3))


def test_the_order_of_arrival_does_not_matter():
    # floats of unlike size: their sum depends on the order, so the server has to fix one
    arrived = {p: reply(START + v) for p, v in enumerate([1e10, 1.0, -1e10, 3.0, 0.1])}
    backwards = dict(reversed(arrived.items()))
    for side in (Plain(), GlobalDP(clip=1e11, noise_multiplier=0.01), MetricPrivacy(clip=1.0)):
        a, b = (
            server_party(side, D).combine(opened(cohort=5), RoundAnswers(r))
            for r in (arrived, backwards)
        )
        assert torch.equal(a[0].models, b[0].models)
        assert a[1].report == b[1].report


def test_unusable_replies_are_dropped_and_counted():
    arrived = replies()
    arrived[1] = reply([0.0, float("nan"), 0.0])
    arrived[2] = (Release("count", torch.tensor(1.0)),)
    _, log = server_party(GlobalDP(noise_multiplier=1.0, clip=1.0), D).combine(
        opened(cohort=6), RoundAnswers(arrived, {4: "RuntimeError"}, {5: "budget"})
    )
    assert log.used == (0, 3)
    assert set(log.invalid) == {1, 2}
    assert (log.failed, log.refused) == ({4: "RuntimeError"}, {5: "budget"})
    assert log.report["clients"] == 2
    assert log.spend.scale == (pytest.approx(1 / 6),)  # formal: the planned cohort


@pytest.mark.parametrize("damaged", [torch.ones(2), torch.tensor(float("nan")), torch.tensor(-1.0)])
def test_one_damaged_count_does_not_end_the_round(damaged):
    arrived = replies()
    arrived[0] = (*arrived[0], Release("count", damaged))
    _, log = server_party(GlobalDP(noise_multiplier=0.01), D).combine(
        opened(), RoundAnswers(arrived)
    )
    assert log.used == (1, 2, 3)


@pytest.mark.parametrize("order", ["formal", "printed"])
@pytest.mark.parametrize("absurd", [-1.0, 1e16, 1e308])
def test_an_absurd_count_is_dropped_and_moves_no_guarantee(order, absurd):
    rule = FedAvg("examples", max_examples=100)
    server = server_party(GlobalDP(rule, noise_multiplier=1.0, clip=1.0, order=order), D)
    arrived = {p: reply(START + p, count=100) for p in range(4)}
    arrived[0] = reply(START, count=absurd)
    _, log = server.combine(opened(), RoundAnswers(arrived))
    assert set(log.invalid) == {0}
    assert log.spend.guarantee.mu == pytest.approx(1.0)


@pytest.mark.parametrize("counts", [[0, 0, 0, 0], [1, 1, 1, 1], [1e15, 1, 0, 100], [9e15] * 4])
def test_counts_do_not_move_the_formal_sensitivity(counts):
    rule = FedAvg("examples", max_examples=100)
    server = server_party(GlobalDP(rule, noise_multiplier=1.0, clip=1.0), D)
    _, log = server.combine(
        opened(), RoundAnswers({p: reply(START + p, count=c) for p, c in enumerate(counts)})
    )
    assert (log.spend.guarantee.mu, log.spend.sensitivity) == (
        pytest.approx(1.0),
        pytest.approx(1 / 4),
    )


@pytest.mark.parametrize(
    "side",
    [
        Plain(FedAvg("examples")),
        GlobalDP(FedAvg("examples"), order="printed", noise_multiplier=0.01),
    ],
)
def test_counts_whose_sum_would_overflow_do_not_end_the_run(side):
    arrived = {p: reply(START + p, count=1e308 if p < 2 else 5.0) for p in range(4)}
    _, log = server_party(side, D).combine(opened(), RoundAnswers(arrived))
    assert log.used == (2, 3)


def test_one_missing_count_does_not_end_the_round():
    arrived = {p: reply(START + p, count=p) for p in range(4)}
    arrived[1] = reply(START)
    after, log = server_party(Plain(FedAvg("examples")), D).combine(opened(), RoundAnswers(arrived))
    assert log.used == (0, 2, 3)
    assert "count" in log.invalid[1]
    assert after.models[0].tolist() == pytest.approx([(2 * 2 + 3 * 3) / 5] * D)
    _, log = server_party(Plain(), D).combine(
        opened(), RoundAnswers(arrived)
    )  # a rule that does not weigh needs no count
    assert log.used == (0, 1, 2, 3)


@pytest.mark.parametrize("side", [Plain(), GlobalDP(noise_multiplier=0.01), MetricPrivacy()])
def test_one_huge_model_does_not_end_the_round(side):
    arrived = replies()
    arrived[0] = reply(torch.full((D,), 1e300, dtype=torch.float64))
    _, log = server_party(side, D).combine(opened(), RoundAnswers(arrived))
    assert log.used == (1, 2, 3)


def test_no_usable_reply_ends_the_run():
    with pytest.raises(NoReplyError, match="no usable reply"):
        server_party(Plain(), D).combine(opened(), RoundAnswers({}, {0: "OSError: gone"}))
    with pytest.raises(NoReplyError):
        server_party(Plain(), D).combine(opened(), RoundAnswers({0: reply([float("nan")] * D)}))


def test_the_server_stops_before_its_budget_is_exceeded():
    # mu is 1 a round; a budget of mu = 1.5 holds two (1.414) and not three (1.732)
    side = GlobalDP(noise_multiplier=1.0, clip=1.0)
    epsilon = 6.95  # mu(6.95, 1e-5) is just below 1.5
    assert 1.45 < mu_of_epsilon(epsilon, DELTA) < 1.5
    lines = []
    server = server_party(side, D, budget=Filter(epsilon, DELTA), store=lines.append)
    for number in (1, 2):
        server.combine(opened(number), RoundAnswers(replies()))
    with pytest.raises(BudgetError, match="last released model stands"):
        server.combine(opened(3), RoundAnswers(replies()))
    assert [json.loads(line).get("round") for line in lines] == [
        None,
        1,
        2,
    ]  # the budget itself comes first
    # a resumed server knows what it spent, and says which model is left
    resumed = ServerParty(
        server.method,
        server.layout,
        Ledger.parse("run", "server", lines),
        ReproducibleSource(0),
        budget=Filter(epsilon, DELTA),
    )
    with pytest.raises(BudgetError, match="last released model stands"):
        resumed.combine(opened(3), RoundAnswers(replies()))
    with pytest.raises(BudgetError, match="bits a crash took: the last checkpointed model stands"):
        resumed.combine(opened(2), RoundAnswers(replies(move=-1.0)))


def test_a_round_drawn_again_is_the_same_or_costs_again():
    side = GlobalDP(noise_multiplier=1.0, clip=100.0)
    server = server_party(side, D, budget=Filter(100.0, DELTA))
    first, _ = server.combine(opened(), RoundAnswers(replies()))
    same, _ = server.combine(opened(), RoundAnswers(replies()))
    assert torch.equal(same.models, first.models)
    assert len(server.ledger.entries) == 1
    assert server.budget.spent == pytest.approx(1.0)
    other, _ = server.combine(opened(), RoundAnswers(replies(move=2.0)))
    assert [e.attempt for e in server.ledger.entries] == [0, 1]
    assert server.budget.spent == pytest.approx(2**0.5)
    # the noise is fresh: without that, the difference would be exactly that of the clients' means
    means = torch.full((D,), 2.5, dtype=torch.float64)
    assert not torch.allclose(other.models[0] - first.models[0], means, atol=1e-3)


def test_noise_differs_between_rounds():
    server = server_party(GlobalDP(noise_multiplier=1.0, clip=1.0), D)
    models = [
        server.combine(opened(number), RoundAnswers(replies()))[0].models for number in (1, 2, 3)
    ]
    assert not torch.equal(models[0], models[1])
    assert not torch.equal(models[1], models[2])


def test_scores_come_from_a_scorer():
    with pytest.raises(FieldError, match="public_data"):
        server_party(PerturbationAware(), D)
    server = server_party(PerturbationAware(), D, scorer=lambda models: torch.zeros(len(models), 1))
    after, _ = server.combine(opened(), RoundAnswers(replies()))
    assert after.models[0].tolist() == pytest.approx(
        [2.5] * D
    )  # equal scores: the plain mean of 1, 2, 3, 4


def test_a_foreign_ledger_entry_is_not_continued():
    ledger = Ledger("run", "server")
    ledger.commit(Entry((1, "combine"), 0, "x", nothing()))
    with pytest.raises(LedgerError):
        ledger.commit(Entry((1, "combine"), 0, "y", nothing()))


@pytest.mark.parametrize(
    ("listed", "allowed"), [("sga-ldp", True), ("SGALDP", True), ("record", False)]
)
def test_a_policy_lists_a_method_by_its_name_however_it_was_made(listed, allowed):
    policy = Policy(trust=("local",), methods=(listed,), total=Limits(mu=99.0))
    method = paired(SGALDP(similarity="released"))
    party = ClientParty(method, flat(D), Ledger("run", "3"), Deployed(0), policy=policy)
    assert isinstance(party.admit(broadcast_of(START, 1)), Refusal) != allowed


def test_each_kind_of_method_is_registered_under_one_name():
    needed = {
        "record": {"examples": 4, "noise_multiplier": 1.0},
        "global": {"noise_multiplier": 1.0},
    }
    for name in METHODS:
        made = build(name, **needed.get(name, {}))
        assert registered_as(replace(made, name=type(made.client).__name__)) == name
    own = Method("mine", GroupPrivacy(noise_multiplier=1.5), Plain())
    assert registered_as(own) == "group"
