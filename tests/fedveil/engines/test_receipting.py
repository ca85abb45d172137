"""Receipts in a round: what a broadcast carries, and the cheats that a site refuses by name."""

from dataclasses import replace

import pytest
import torch

import fedveil as fv
from fedveil.accounting import Limits, Policy, Receipt, ShareReceipt, digest
from fedveil.engines.answers import Collected
from fedveil.engines.malicious import Behaviour
from fedveil.engines.receipting import UNSEALED, has_receipts
from fedveil.methods import Broadcast, Refusal, build
from fedveil.methods.facts import PublicFacts
from inclusion_kit import SUMS, arguments, federation, silo, start

OTHER = "ab" * 32


def played(kind, done=2, **options):
    """A federation after some rounds."""
    fed = federation(kind, **options)
    fed.run(done)
    return fed


def opened(fed, **changes):
    """What would open the next round, and its receipt."""
    number = fed.round + 1
    keys = fed.parties.site_keys.roster(range(len(fed.clients)))
    plain = fed.server.open(fed.models, number, 4, fed.cohort_size, keys)
    broadcast = fed.server.receipted(plain)
    receipt = Receipt.parse(broadcast.public.receipt)
    if changes:
        receipt = replace(receipt, **changes)
        broadcast = carrying(broadcast, receipt.text)
    return broadcast, receipt


def carrying(broadcast, text):
    return Broadcast(models=broadcast.models, public=replace(broadcast.public, receipt=text))


def leaf_of(fed, partition):
    return fed.party(partition).ledger.entries[-1].receipt["leaf"]


def without(receipt, own, *others):
    return tuple(sorted({*receipt.leaves, *others} - {own}))


@pytest.mark.parametrize("kind", SUMS)
def test_each_broadcast_carries_the_root_over_what_the_round_before_accepted(kind):
    fed = federation(kind)
    before = None
    for _ in range(3):
        broadcast, receipt = opened(fed)
        if before is None:
            assert receipt.first
        else:
            leaves = sorted(leaf_of(fed, p) for p in range(4))
            assert list(receipt.leaves) == leaves
            assert (receipt.previous, receipt.asked) == (before.root, 4)
            assert receipt.model == digest((fv.accounting.Release("model", fed.models),))
        before = receipt
        fed.run(fed.round + 1)
    assert broadcast.public.round == 3


@pytest.mark.parametrize("kind", SUMS)
def test_flower_gives_the_same_models_ledgers_and_receipts(kind):
    pytest.importorskip("flwr")
    from fedveil.flower import FlowerFederation

    one, other = federation(kind), FlowerFederation(**arguments(kind))
    for fed in (one, other):
        fed.run(3)
    assert torch.equal(one.models, other.models)
    for party, ledger in one.books().items():
        assert ledger.checksum == other.books()[party].checksum
    assert one.server.ledger.entries[-1].receipt["leaves"]


@pytest.mark.parametrize("kind", SUMS)
def test_without_receipts_the_models_have_the_same_bits(kind, monkeypatch):
    fed = played(kind, 3)
    monkeypatch.setattr("fedveil.engines.server.has_receipts", lambda *_: False)
    other = played(kind, 3)
    assert torch.equal(fed.models, other.models)
    assert not any(entry.receipt for ledger in other.books().values() for entry in ledger.entries)


@pytest.mark.parametrize(
    ("named", "values"),
    [
        ("vanilla", {}),
        ("global", {"noise_multiplier": 1.0, "clip": 1.0}),
        ("group", {"noise_multiplier": 0.1}),
        ("fedre", {"clip": 0.2, "epsilon": 1.0}),
        ("record", {"sum": "trusted", "silos": 3, "examples": 6, "epsilon": 4, "rounds": 2}),
    ],
)
def test_there_are_none_where_the_server_is_trusted_or_nothing_is_proven(named, values):
    """A heuristic may release what is not noised, and nothing unnoised is ever hashed into what leaves."""
    made = build(named, **values)
    layout = fv.Layout.from_module(start())
    public = PublicFacts(round=1, rounds=2, cohort=3, dimension=layout.size)
    broadcast = Broadcast(models=layout.read(start())[None], public=public)
    quoted = made.client.quote(broadcast, made.client.init())
    proven = made.client.trust == "local" and quoted.guarantee.proven
    assert has_receipts(made, broadcast) == proven
    assert not proven or named == "fedre"


# ---- what a site refuses


def admitted(fed, broadcast, partition=0):
    party = fed.party(partition)
    verdict = party.admit(broadcast)
    if isinstance(verdict, Refusal):
        return str(party.failure)
    return party.left_out


CHEATS = (
    "left out",
    "altered",
    "another round",
    "a later round",
    "another past",
    "begun anew",
    "another's place",
)


def cheats(fed, receipt):
    own, other = leaf_of(fed, 0), leaf_of(fed, 1)
    swapped = without(receipt, own, OTHER)
    return {
        "left out": ({"leaves": without(receipt, own), "asked": 3}, "left out, or altered"),
        "altered": ({"leaves": swapped}, "left out, or altered"),
        "another round": ({"round": 1}, "must be of round"),
        "a later round": ({"round": 3}, "must be of round"),
        "another past": ({"previous": OTHER}, "follows another receipt"),
        "begun anew": (
            dict.fromkeys(("facts", "opened", "model", "previous"), "")
            | {"asked": 0, "leaves": ()},
            "begins anew",
        ),
        "another's place": ({"leaves": without(receipt, own, OTHER, other)}, "left out"),
    }


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("name", CHEATS)
def test_a_planted_cheat_is_refused_by_name_before_data_are_touched(kind, name):
    fed = played(kind)
    _, receipt = opened(fed)
    change, said = cheats(fed, receipt)[name]
    broadcast, _ = opened(fed, **change)
    lines = fed.party(0).ledger.lines
    assert said in admitted(fed, broadcast)
    assert fed.party(0).ledger.lines == lines
    honest, _ = opened(fed)
    assert admitted(fed, honest) == ""


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no json"])
def test_a_server_that_stops_to_show_receipts_or_shows_none_is_refused(text):
    fed = played("none")
    broadcast, _ = opened(fed)
    assert "receipt" in admitted(fed, carrying(broadcast, text))


def test_a_share_that_is_counted_twice_is_refused():
    fed = played("none")
    broadcast, receipt = opened(fed)
    doubled = receipt.text.replace(receipt.leaves[0], f'{receipt.leaves[0]}", "{receipt.leaves[0]}')
    assert "each leaf once" in admitted(fed, carrying(broadcast, doubled))


def test_two_shares_of_one_site_in_one_round_are_refused():
    """As of a site that answered two questions of a round, both of which the server counts."""
    fed = played("none")
    party = fed.party(0)
    held = ShareReceipt.of(party.ledger.entries[-1])
    again = replace(party.ledger.entries[-1], attempt=1, receipt=replace(held, leaf=OTHER).values())
    party.ledger.commit(again)
    _, receipt = opened(fed)
    both = tuple(sorted({*receipt.leaves, OTHER} - {leaf_of(fed, 1)}))
    broadcast, _ = opened(fed, leaves=both)
    assert "2 shares of this site" in admitted(fed, broadcast)


def test_another_view_of_the_same_round_is_refused():
    fed = played("none", 1)
    broadcast, _ = opened(fed)
    party = fed.party(0)
    assert party.admit(broadcast) is None
    party.fail(broadcast, RuntimeError("out of memory"))
    other, _ = opened(fed, asked=5)
    assert "another one than round 2 showed" in admitted(fed, other)


def test_other_models_or_facts_than_others_were_asked_about_are_refused_without_trust():
    fed = played("none")
    for change in ({"opened": OTHER}, {"facts": OTHER}):
        broadcast, _ = opened(fed, **change, leaves=(OTHER,), asked=4)
        assert "another question" in admitted(fed, broadcast)


@pytest.mark.parametrize("kind", SUMS)
def test_a_share_that_was_lost_is_told_and_refused_only_by_a_policy_that_asks_for_it(kind):
    fed = played(kind)
    _, receipt = opened(fed)
    broadcast, _ = opened(fed, leaves=without(receipt, leaf_of(fed, 0)))
    assert "not among the 3 of 4" in admitted(fed, broadcast)
    party = fed.party(0)
    total = Limits(record_epsilon=100.0)
    party.policy = Policy(
        trust=("local", "secure sum"), total=total, secure_source=False, receipts=True
    )
    assert "the site's policy asks" in admitted(fed, broadcast)
    party.ledger.entries.clear()
    assert "asks for one in each" in admitted(fed, carrying(broadcast, ""))


def test_a_site_that_was_not_asked_in_between_goes_on():
    fed = federation("none", clients_per_round=2)
    history = fed.run(4)
    assert [len(record.round.used) for record in history.rounds] == [2, 2, 2, 2]


def test_a_secure_sum_that_was_asked_again_leaves_no_site_behind():
    """The accepted shares answer the second question; who answered the first alone is told, and goes on."""
    fed = played("secure", 1)
    keys = fed.parties.site_keys.roster(range(4))
    first = fed.server.receipted(fed.server.open(fed.models, 2, 4, 4, keys))
    party = fed.party(0)
    assert party.admit(first) is None
    party.fail(first, RuntimeError("slow"))
    left = fed.server.receipted(fed.server.open(fed.models, 2, 4, 4, keys[1:], 1))
    receipt = Receipt.parse(left.public.receipt)
    third = replace(
        receipt,
        round=2,
        facts=left.facts,
        opened=left.opened,
        previous=receipt.root,
        asked=3,
        leaves=("11" * 32, "22" * 32, "33" * 32),
    )
    public = replace(first.public, round=3, receipt=third.text)
    following = Broadcast(models=first.models, public=public)
    assert "another question" in admitted(fed, following)
    assert party.failure is None


# ---- what the server makes of replies


class Bypass(Behaviour):
    bypass = True

    def model(self, turn):
        return turn.start


def test_what_lacks_a_seal_is_not_combined(monkeypatch):
    monkeypatch.setattr(
        "fedveil.engines.embedded.Cohort._seal", lambda self, p, b: "x" if p else OTHER
    )
    [record] = federation("none").run(1).rounds
    assert record.round.used == (0,)
    assert set(record.round.invalid.values()) == {UNSEALED}


def test_a_reply_that_is_another_ones_to_the_seal_counts_once():
    fed = federation("none")
    fed.begin(2)
    answers = fed.courier.collect()
    answers.replies[1], answers.seals[1] = answers.replies[0], answers.seals[0]
    _, log = fed._loop._server.close(fed._loop.broadcast, answers)
    assert log.used == (0, 2, 3)
    assert len(fed.server.ledger.entries[-1].receipt["leaves"]) == 3


def test_whoever_pays_nothing_is_counted_and_no_honest_site_is_hurt():
    fed = federation("none", behaviours={2: Bypass()})
    fed.run(3)
    assert len(fed.server.ledger.entries[-1].receipt["leaves"]) == 4
    assert not fed.party(2).ledger.entries


def test_seals_and_roots_are_the_same_whatever_the_data_are():
    """What is sent beside a share: a hash of public terms under a salt of its own."""
    made = []
    for shift in (0, 50):
        clients = [silo(i + shift) for i in range(4)]
        fed = federation("none", clients=clients)
        fed.begin(2)
        made.append(fed.courier.collect().seals)
    assert made[0] == made[1]
    assert len(set(made[0].values())) == 4


def test_a_secure_source_gives_each_release_a_salt_of_its_own():
    fed = federation("none", source=fv.SecureSource())
    fed.run(3)
    salts = {e.receipt["salt"] for p in range(4) for e in fed.party(p).ledger.entries if e.receipt}
    assert len(salts) == 12


@pytest.mark.parametrize("kind", SUMS)
def test_a_run_that_goes_on_shows_the_receipt_of_its_ledger(kind):
    whole, broken = federation(kind), federation(kind)
    whole.run(3)
    for _ in range(2):
        broken.begin(3)
        broken.end()
    states = broken.parties.states()
    broken.restore(broken.models, 2, broken.server.state, states)
    broken.run(3)
    assert torch.equal(whole.models, broken.models)
    assert whole.server.ledger.checksum == broken.server.ledger.checksum


def test_a_questions_loop_counts_those_who_were_asked_last():
    first, second = (
        Collected(asked=4, seals={0: "a"}),
        Collected(asked=3, seals={1: "b"}),
    )
    assert (first.followed_by(second).asked, first.followed_by(second).seals) == (3, {1: "b"})
