"""Rounds of a secure sum: what arrives, what is charged, and what a server that asks otherwise gets."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import fedveil as fv
from core_kit import IMPOSSIBLE, variance_p
from federation_kit import grouped
from fedveil.accounting import Filter, Policy, SumPolicy, digest
from fedveil.accounting.ledger import OPEN
from fedveil.accounting.policy import Limits
from fedveil.engines import Execution
from fedveil.engines.answers import RoundAnswers
from fedveil.errors import FieldError, LedgerError, NoReplyError
from fedveil.learning import ClientData
from fedveil.mechanisms import SecureSource
from fedveil.methods import Refusal, build
from fedveil.secure import Site, SiteKey

D = 21


def silo(seed=0, n=6):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    return ClientData(x, y, person=torch.arange(n) // 2)


def method(**values):
    shared = {
        "examples": 6,
        "noise_multiplier": 2.0,
        "clip": 0.5,
        "least_sites": 3,
        "rounds": 3,
        "sum": "secure",
    }
    return build("record", fv.FedAvgM(momentum=0.5), **{**shared, **values})


def federation(n=4, clients=None, **values):
    options = {
        k: values.pop(k)
        for k in ("source", "policy", "client_budgets", "execution", "seed")
        if k in values
    }
    clients = clients or [silo(i) for i in range(n)]
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    how = {
        "model": model,
        "clients": clients,
        "method": method(**values),
        "local": fv.LocalTraining(lr=0.5),
        "seed": 3,
    }
    return fv.Federation(**grouped({**how, **options}))


def shares_of(fed, roster=None, attempt=0, rounds=3):
    """Everything that a round's sites send, as the server sees it."""
    partitions = range(len(fed.clients)) if roster is None else roster
    keys = [fed.parties.site_keys.keys[p].public for p in partitions]
    broadcast = fed.server.open(fed.models, fed.round + 1, rounds, fed.cohort_size, keys, attempt)
    return broadcast, {p: answer(fed, p, broadcast) for p in partitions}


def answer(fed, partition, broadcast):
    party = fed.party(partition)
    verdict = party.admit(broadcast)
    if verdict is not None:
        return verdict
    source = party.training_source(broadcast.public.round)
    key = (fed.seed, broadcast.public.round, partition)
    (learned,) = fed.learner.learn(
        broadcast.models, [fed.clients[partition]], [key], frozenset(), [source]
    )
    from fedveil.engines.assembly import client_facts, client_releases

    return party.release(client_releases(learned), client_facts(broadcast, fed.layout, learned))


def plain_total(fed, broadcast, partitions):
    """The integer sum of what went in, noise included, computed without a mask."""
    context = fed.method.client.question(broadcast, fed.layout)
    total = torch.zeros(D, dtype=torch.int64)
    for p in partitions:
        source = fed.parties.site_keys.keys[p].source(context.digest)
        key = (fed.seed, broadcast.public.round, p)
        trainer = fed.learner.private_trainer
        (made,) = trainer.train_noisily(
            broadcast.models, [fed.clients[p]], [key], [source.child("train")]
        )
        import hashlib

        mark = int.from_bytes(hashlib.sha256(made.total.numpy().tobytes()).digest(), "big")
        total += made.total + context.terms.noise.sample(D, source=source.child("noise", mark))
    return total, context


@pytest.mark.parametrize("n", [3, 4, 40])
@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_round_is_a_step_against_the_plain_integer_sum_to_the_bit(n, unit):
    person = (
        {"unit": "person", "examples": None, "people": 3, "records_per_person": 2}
        if unit == "person"
        else {}
    )
    fed, other = (federation(n, **person) for _ in range(2))
    broadcast, _ = shares_of(other, rounds=1)
    total, context = plain_total(other, broadcast, range(n))
    denominator = 3 if unit == "person" else 6
    step = (-0.5 * (total.double() * context.terms.grid / (denominator * n))).float()
    fed.run(1)
    assert torch.equal(fed.models[0], step)  # from zeros


@pytest.mark.parametrize("relation", ["zero-out", "add/remove", "replace-one"])
def test_a_run_promises_what_it_says(relation):
    history = federation(relation=relation).run(3)
    guarantee = history.guarantee
    assert (guarantee.trust, guarantee.unit, guarantee.status) == (
        "secure sum",
        "record",
        "conditional",
    )
    assert guarantee.mu == pytest.approx((2 if relation == "replace-one" else 1) * math.sqrt(3) / 2)
    assert (
        federation(noise_multiplier=None, epsilon=2.0, rounds=3, retries=2)
        .run(3)
        .guarantee.epsilon(1e-5)
        < 2.0
    )


def test_the_sum_has_the_noise_of_all_honest_sites_and_no_share_shows_anything():
    wide = nn.Linear(3000, 3)
    zero = [ClientData(torch.zeros(4, 3000), torch.zeros(4, dtype=torch.int64)) for _ in range(4)]
    fed = fv.Federation(
        model=wide, clients=zero, method=method(examples=4), local=fv.LocalTraining(lr=1.0), seed=0
    )
    broadcast, replies = shares_of(fed)
    for releases in replies.values():
        assert [r.kind for r in releases] == ["share"]
        values = releases[0].value.numpy().view(np.uint64).astype(float) / 2**64
        assert stats.kstest(values, "uniform").pvalue > 1e-6
    server, context = fed.method.server, fed.method.client.question(broadcast, fed.layout)
    mean = server.mean(list(replies.values()), context)[:9000].numpy() * (
        4 * 4
    )  # weights alone: their gradient is 0
    assert (
        variance_p(mean, 0.5 * 2.0 * math.sqrt(4 / 2)) > 1e-6
    )  # sized for 3 - 1 honest sites, and 4 add it
    assert variance_p(mean, 0.5 * 2.0) < IMPOSSIBLE


# ---- a server that asks otherwise


def test_the_same_question_is_answered_with_the_same_bits_and_charged_once():
    fed = federation()
    broadcast, first = shares_of(fed)
    lines = [len(fed.party(p).ledger.entries) for p in range(4)]
    again = {p: answer(fed, p, broadcast) for p in range(4)}
    assert all(torch.equal(first[p][0].value, again[p][0].value) for p in range(4))
    assert [len(fed.party(p).ledger.entries) for p in range(4)] == lines == [1] * 4


@pytest.mark.parametrize("change", ["attempt", "roster", "model", "run", "round"])
def test_every_other_question_is_a_release_of_its_own_with_other_noise_and_masks(change):
    fed = federation(5, rounds=9)
    broadcast, first = shares_of(fed)
    public = broadcast.public
    other = {
        "attempt": lambda: replace(broadcast, public=replace(public, attempt=7)),
        "roster": lambda: replace(broadcast, public=replace(public, roster=public.roster[:4])),
        "model": lambda: replace(broadcast, models=broadcast.models + 1),
        "run": lambda: replace(broadcast, public=replace(public, run="another")),
        "round": lambda: replace(broadcast, public=replace(public, round=2)),
    }[change]()
    asked = [p for p in range(5) if fed.parties.site_keys.keys[p].public in other.public.roster]
    second = {p: answer(fed, p, other) for p in asked}
    for p in asked:
        assert len(fed.party(p).ledger.entries) == 2
        gap = (first[p][0].value - second[p][0].value).numpy().view(np.uint64)
        assert (
            float(np.median(np.minimum(gap, -gap).astype(float))) > 2**55
        )  # masks: not the noise of two sums
    mixed = [first[0], *(second[p] for p in asked if p != 0)]
    context = fed.method.client.question(other, fed.layout)
    if len(mixed) == len(context.roster):
        with pytest.raises(NoReplyError, match="cancel"):
            fed.method.server.mean(mixed, context)


def test_an_answer_to_another_question_than_the_last_admitted_is_in_no_ledger_and_does_not_leave():
    fed = federation()
    keys = [k.public for k in fed.parties.site_keys.keys]
    first, second = (fed.server.open(fed.models, 1, 3, 4, keys, attempt) for attempt in (0, 1))
    party = fed.party(0)
    assert party.admit(first) is None
    assert party.admit(second) is None
    with pytest.raises(LedgerError):
        party.fail(first, RuntimeError("late"))
    assert [r.kind for r in party.fail(second, RuntimeError("in time"))] == ["share"]


def test_attempts_have_an_end_and_the_server_is_told_nothing_of_why():
    fed = federation()
    answers = []
    for attempt in (5, 0, 9, 2, 1):  # in any order, each a release
        answers.append(shares_of(fed, attempt=attempt)[1][0])
    assert [isinstance(a, Refusal) for a in answers] == [False, False, False, True, True]
    assert len(fed.party(0).ledger.entries) == 3
    small = federation()
    keys = [k.public for k in small.parties.site_keys.keys]
    stranger = SiteKey(bytes(range(64))).public
    reasons = set()
    for roster in (keys[1:], [*keys, stranger]):
        broadcast = small.server.open(small.models, 1, 3, 4, roster)
        verdict = small.party(0).admit(broadcast)
        reasons.add(verdict.reason)
        assert small.party(0).failure is not None
    assert reasons == {answers[-1].reason}
    assert isinstance(
        small.party(0).admit(small.server.open(small.models, 1, 3, 4, keys[:2])), Refusal
    )
    assert not small.party(0).ledger.entries


def test_a_lot_is_drawn_anew_for_every_question():
    fed = federation(rate=0.5, clients=[silo(i, n=40) for i in range(4)], examples=40)
    lots = []
    for attempt in (0, 1):
        broadcast, _ = shares_of(fed, attempt=attempt)
        context = fed.method.client.question(broadcast, fed.layout)
        lots.append(
            fed.parties.site_keys.keys[0]
            .source(context.digest)
            .child("train")
            .child("lots")
            .uniform(40)
            < 0.5
        )
    assert not torch.equal(*lots)


@pytest.mark.parametrize(
    "field", ["clip", "noise_multiplier", "examples", "least_sites", "colluding", "rate", "units"]
)
def test_sites_that_were_told_other_terms_make_no_sum(field):
    terms = {"least_sites": 4, "colluding": 1}
    value = {"least_sites": 3, "colluding": 2, "rate": 0.5, "units": 99}.get(
        field, 1.0000001 * {"clip": 0.5, "examples": 6}.get(field, 2.0)
    )
    fed, other = federation(**terms), federation(**{**terms, field: value})
    broadcast, replies = shares_of(fed)
    assert isinstance(answer(other, 2, broadcast), Refusal)
    assert other.party(2).failure.field == "terms"
    assert not other.party(2).ledger.all_entries
    lie = replace(broadcast.public, terms=other.method.client.agreed(other.layout.size))
    replies[2] = answer(
        other, 2, replace(broadcast, public=lie)
    )  # a server that tells each site what it wants to hear
    context = fed.method.client.question(broadcast, fed.layout)
    with pytest.raises(NoReplyError, match="cancel"):
        fed.method.server.mean(list(replies.values()), context)


def test_a_site_insists_on_its_own_least_roster_and_colluders():
    key, others = SiteKey(bytes(64)), [SiteKey(bytes([i]) * 64).public for i in (1, 2, 3)]
    fed = federation()
    for insists in ({"least_sites": 4}, {"colluding": 2}):
        site = Site(key, SumPolicy(peers=[o.hex() for o in others], **insists))
        broadcast = fed.server.open(fed.models, 1, 3, 4, [key.public, *others])
        with pytest.raises(FieldError) as refused:
            site.require(fed.method.client.question(broadcast, fed.layout))
        assert refused.value.field == next(iter(insists))
    with pytest.raises(FieldError, match="own key"):
        Site(key, SumPolicy(peers=[k.hex() for k in (key.public, *others)]))


# ---- sites that go missing


def test_a_site_whose_budget_is_used_up_leaves_and_the_others_pay_for_both_questions():
    def budgets(partition):
        return Filter(epsilon=0.1 if partition == 3 else 50.0, delta=1e-5)

    fed = federation(client_budgets=budgets, rounds=3, source=SecureSource())
    record = next(iter(fed.rounds(3)))
    assert record.round.used == (0, 1, 2)
    assert [len(fed.party(p).ledger.entries) for p in range(4)] == [2, 2, 2, 0]
    assert [fed.party(p).ledger.entries[0].digest for p in range(3)] == [
        OPEN
    ] * 3  # asked, and never answered
    with pytest.raises(NoReplyError):
        federation(3, client_budgets=lambda p: budgets(3) if p == 2 else None).run(1)


def test_a_plan_has_room_for_so_many_retries():
    fed = federation(rounds=2, retries=1)
    for attempt in (0, 1):
        broadcast, shares = shares_of(fed, attempt=attempt, rounds=2)
        assert not any(isinstance(answer, Refusal) for answer in shares.values())
    assert [len(e.ledger.entries) for e in (fed.party(p) for p in range(4))] == [2] * 4
    fed.server.combine(broadcast, RoundAnswers(shares))
    fed.round = 1
    assert not isinstance(shares_of(fed, rounds=2)[1][0], Refusal)
    assert isinstance(shares_of(fed, attempt=1, rounds=2)[1][0], Refusal)


# ---- data that would tell


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38, 0.0])
def test_extreme_examples_change_no_word_line_or_size(value):
    seen = []
    for extreme in (False, True):
        clients = [silo(i) for i in range(3)]
        if extreme:
            clients[0].x[0] = value
        fed = federation(clients=clients)
        broadcast, replies = shares_of(fed)
        entries = fed.party(0).ledger.entries
        seen.append(
            (
                replies[0][0].value.shape,
                replies[0][0].kind,
                len(entries),
                entries[0].spend,
                broadcast.public,
            )
        )
        context = fed.method.client.question(broadcast, fed.layout)
        assert float(fed.method.server.mean(list(replies.values()), context).abs().max()) < 10
    assert seen[0] == seen[1]


def test_training_that_fails_is_a_share_of_nothing():
    class Raises(nn.Linear):
        def forward(self, x):
            raise RuntimeError("broken")

    fed = federation()
    broadcast, replies = shares_of(fed, roster=[0, 1, 2])
    party = fed.party(3)
    everybody = tuple(sorted(k.public for k in fed.parties.site_keys.keys))
    wide = replace(broadcast, public=replace(broadcast.public, roster=everybody))
    assert party.admit(wide) is None
    sent = party.fail(wide, RuntimeError("broken"))
    assert [r.kind for r in sent] == ["share"]
    assert party.ledger.entries[-1].digest == digest(sent)
    assert len(replies) == 3


def test_with_a_secure_source_keys_are_fresh_and_an_intent_is_written_before_data_are_touched():
    fed = federation(source=SecureSource())
    again = federation(source=SecureSource())
    assert len({key.public for made in (fed, again) for key in made.parties.site_keys.keys}) == 8
    broadcast = fed.server.open(fed.models, 1, 3, 4, [k.public for k in fed.parties.site_keys.keys])
    assert fed.party(0).admit(broadcast) is None
    assert fed.party(0).ledger.entries[-1].digest == OPEN
    assert not isinstance(
        fed.party(0).admit(broadcast), Refusal
    )  # a process died here: its share is of nothing
    assert fed.party(0).ledger.entries[-1].digest != OPEN


# ---- what is refused before anything happens


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"least_sites": 2}, "least_sites"),
        ({"least_sites": 0}, "least_sites"),
        ({"colluding": 2}, "colluding"),
        ({"steps": 2}, "steps"),
        ({"retries": -1}, "retries"),
        ({"units": 10**18}, "noise_multiplier"),
        ({"units": 9, "relation": "add/remove", "most": 10}, "units"),
        ({"noise_multiplier": 1e-12}, "noise_multiplier"),
    ],
)
def test_terms_that_cannot_be_kept(values, field):
    with pytest.raises(FieldError) as refused:
        method(**values)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("values", "sampled", "n", "field"),
    [
        ({"least_sites": 5}, None, 4, "clients"),
        ({}, None, 2, "clients"),
        ({"least_sites": 4}, 3, 4, "clients_per_round"),
        ({}, 2, 4, "clients_per_round"),
    ],
)
def test_too_few_clients_for_a_sum_are_refused_before_there_is_a_round(values, sampled, n, field):
    how = {
        "model": nn.Linear(6, 3),
        "clients": [silo(i) for i in range(n)],
        "clients_per_round": sampled,
    }
    with pytest.raises(FieldError) as refused:
        fv.Federation(**how, method=method(**values))
    assert (refused.value.field, refused.value.value) == (field, sampled or n)


@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_silo_of_more_units_than_is_public_is_refused_before_there_is_a_round(unit):
    person = (
        {"unit": "person", "examples": None, "people": 3, "records_per_person": 2}
        if unit == "person"
        else {}
    )
    has = 3 if person else 6
    assert federation(units=has, **person).run(1).rounds
    with pytest.raises(FieldError, match=f"units = {has - 1}"):
        federation(units=has - 1, **person)


def test_a_policy_allows_secure_sums_by_name_and_keys_fit_the_clients():
    assert "secure sum" in federation(policy=Policy(trust=("local",))).run(1).stopped
    assert (
        federation(
            policy=Policy(trust=("secure sum",), total=Limits(record_mu=5.0), secure_source=False)
        )
        .run(1)
        .rounds
    )
    one = SiteKey(bytes(64))
    for keys in ([one], [one] * 4, ["a", "b", "c", "d"]):
        with pytest.raises(FieldError, match="keys"):
            federation(execution=Execution(keys=keys))
    with pytest.raises(FieldError, match="aggregator"):
        build(
            "record", fv.FedMedian(), examples=6, noise_multiplier=1.0, sum="secure", least_sites=3
        )
