"""Under local trust a client that was admitted always answers: nobody learns from its silence, or by asking again."""

from dataclasses import replace

import pytest
import torch

from core_kit import Deployed, assert_deviation, broadcast_of, client_facts, flat
from engine_kit import LOCAL, OPTIONS, federation
from fedveil.accounting import (
    OPEN,
    LeakageFilter,
    Ledger,
    Limits,
    ParticipationFilter,
    Policy,
    Release,
    digest,
)
from fedveil.engines import ClientParty
from fedveil.errors import FieldError, NoReplyError
from fedveil.mechanisms import ReproducibleSource, gaussian_sigma
from fedveil.methods import (
    SGALDP,
    FedRE,
    GlobalDP,
    GroupPrivacy,
    Method,
    Plain,
    Refusal,
    TrustedServer,
    build,
)

D = 500
START = torch.zeros(D, dtype=torch.float64)
STEP = torch.linspace(1, 2, D, dtype=torch.float64)
SIDES = {
    "group": GroupPrivacy(noise_multiplier=250.0),  # a leakage of 2
    "group, public radius": GroupPrivacy(noise_multiplier=250.0, radius=1.0),
    "fedre": FedRE(),
    "fedre, public scores": FedRE(scores="public"),
    "sga-ldp": SGALDP(),
    "sga-ldp, released": SGALDP(similarity="released"),
}
BAD = {
    "raised": RuntimeError("patient 17"),
    "NaN": torch.full((D,), torch.nan, dtype=torch.float64),
    "infinity": torch.full((D,), torch.inf, dtype=torch.float64),
    "overflow": torch.full((D,), 1e300, dtype=torch.float64),
}


def party(side, *, ledger=None, source=None, **options):
    method = Method("test", side, Plain())
    ledger = Ledger("run", "3") if ledger is None else ledger
    return ClientParty(method, flat(D), ledger, source or Deployed(0), **options)


def opened(round_=1, models=START, rounds=10):
    return broadcast_of(models, round_, rounds=rounds, scores=(1.0,))


def answer(client, result=STEP, round_=1, start=START, rounds=10):
    """Admit, and end training as `result` says; what leaves."""
    broadcast = opened(round_, start, rounds)
    verdict = client.admit(broadcast)
    if verdict is not None:
        return verdict
    if isinstance(result, Exception):
        return client.fail(broadcast, result)
    facts = client_facts(
        start, round_=round_, rounds=rounds, scores={"w": 1.0}, public_scores=(1.0,)
    )
    return client.release((Release("model", start + result),), facts)


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("name", SIDES)
def test_a_failure_is_a_zero_update_with_a_line_of_its_own(name, fault):
    well, failing = party(SIDES[name]), party(SIDES[name])
    good, zero = answer(well), answer(failing, BAD[fault])
    assert well.failure is None
    assert failing.failure is not None
    assert [r.kind for r in zero] == ["model"]
    assert torch.isfinite(zero[0].value).all()
    # on the ledgers they cost the same, and only the bits differ
    (first,), (second,) = well.ledger.entries, failing.ledger.entries
    assert (second.key, second.attempt, second.source) == (first.key, first.attempt, "secure")
    assert second.spend.guarantee == first.spend.guarantee
    assert (second.spend.charge, second.spend.leakage) == (first.spend.charge, first.spend.leakage)
    assert second.digest == digest(zero) != digest(good)


def test_a_zero_update_is_noise_of_the_claimed_scale_and_does_not_reuse_that_of_the_attempt():
    client = party(SGALDP())
    zero = answer(client, BAD["NaN"])[0].value
    assert_deviation(zero, gaussian_sigma(1.0, 1e-5, 1.0))
    real = answer(party(SGALDP()), torch.zeros(D, dtype=torch.float64))[
        0
    ].value  # the stream of a release, on zero
    assert not torch.allclose(zero, real)


def test_a_failure_costs_what_a_reply_costs():
    # otherwise a budget would run out earlier for clients that fail, and the server would see that
    for result in (STEP, BAD["NaN"], BAD["raised"]):
        client = party(SIDES["group"], budget=LeakageFilter(5.0))
        answers = [answer(client, result, r) for r in (1, 2, 3)]
        assert [isinstance(a, Refusal) for a in answers] == [False, False, True]


def test_an_intent_is_written_before_training_and_closed_by_the_release():
    lines = []
    client = party(SGALDP(), store=lines.append)
    broadcast = opened()
    assert client.admit(broadcast) is None
    assert [e.digest for e in Ledger.parse("run", "3", lines).entries] == [OPEN]
    sent = client.release((Release("model", STEP),), client_facts(START))
    ledger = Ledger.parse("run", "3", lines)
    assert (len(lines), ledger.lines) == (2, 2)
    assert [(e.digest, e.attempt) for e in ledger.entries] == [(digest(sent), 0)]


@pytest.mark.parametrize("name", SIDES)
def test_a_process_that_died_in_a_round_answers_zero_when_it_is_asked_again(name):
    lines = []
    client = party(SIDES[name], store=lines.append, budget=ParticipationFilter(1))
    assert client.admit(opened()) is None  # and dies here
    again = party(
        SIDES[name],
        ledger=Ledger.parse("run", "3", lines),
        budget=ParticipationFilter(1),
        store=lines.append,
    )
    zero = again.admit(opened())
    assert torch.equal(zero[0].value, answer(party(SIDES[name]), BAD["NaN"])[0].value)
    assert [(e.attempt, e.digest) for e in again.ledger.entries] == [
        (0, digest(zero))
    ]  # charged once
    assert len(lines) == 2


@pytest.mark.parametrize("name", SIDES)
def test_a_replayed_round_gets_the_stored_release_whatever_the_server_sends(name):
    client = party(SIDES[name], budget=ParticipationFilter(1))
    first = answer(client)
    for models in (START, START + 7):
        replayed = client.admit(opened(1, models))
        assert torch.equal(replayed[0].value, first[0].value)
    assert len(client.ledger.entries) == 1


def test_a_replayed_round_whose_release_is_lost_gets_a_charged_zero_update_or_a_refusal():
    lines = []
    first = answer(party(SGALDP(), store=lines.append))
    again = party(SGALDP(), ledger=Ledger.parse("run", "3", lines), budget=ParticipationFilter(2))
    zero = again.admit(opened())
    assert_deviation(zero[0].value, gaussian_sigma(1.0, 1e-5, 1.0))
    assert not torch.equal(zero[0].value, first[0].value)
    assert [e.attempt for e in again.ledger.entries] == [0, 1]
    kept = party(SGALDP(), ledger=Ledger.parse("run", "3", lines), kept=(1, first))
    assert torch.equal(kept.admit(opened())[0].value, first[0].value)
    poor = party(SGALDP(), ledger=Ledger.parse("run", "3", lines), budget=ParticipationFilter(1))
    assert isinstance(poor.admit(opened()), Refusal)
    assert len(poor.ledger.entries) == 1


def test_a_composed_promise_holds_no_more_releases_than_were_planned():
    side = FedRE(epsilon=2.0, scores="public")
    client = party(side)
    sent = [answer(client, round_=r, rounds=3) for r in (1, 2, 3)]
    assert not any(isinstance(s, Refusal) for s in sent)
    for rounds in (4, 100):  # a plan that grows is a second promise
        assert isinstance(answer(client, round_=4, rounds=rounds), Refusal)
    grown = party(side)
    assert not isinstance(answer(grown, round_=1, rounds=2), Refusal)
    assert isinstance(answer(grown, round_=2, rounds=1 + 1), tuple)
    spent = [e.spend.guarantee.mu for e in client.ledger.entries]
    assert sum(m**2 for m in spent) == pytest.approx(
        2 * sum(e.spend.guarantee.mu**2 for e in grown.ledger.entries) / 2
    )


@pytest.mark.parametrize("name", ["fedre", "fedre, public scores", "sga-ldp", "sga-ldp, released"])
def test_one_model_methods_take_one_model(name):
    client = party(SIDES[name])
    with pytest.raises(FieldError, match="hypotheses = 2"):
        client.admit(opened(models=torch.stack([START, START + 1])))
    assert client.ledger.entries == []


def test_the_choice_among_hypotheses_is_promised_at_their_distance_and_declined_beyond_the_policys():
    models = torch.zeros(3, D, dtype=torch.float64)
    models[1, 0], models[2, 1] = 3.0, 4.0  # 3, 4 and 5 apart
    side = GroupPrivacy(noise_multiplier=250.0, radius=1.0)
    quoted = side.quote(opened(models=models), side.init())
    assert quoted.guarantee.hypotheses_apart == pytest.approx(5.0)
    assert quoted.guarantee.bound.epsilon_per_distance == pytest.approx(2.0)
    assert "eps=10" in quoted.guarantee.describe()
    limits = {"release": Limits(leakage=3.0), "total": Limits(leakage=3.0), "distance": 1.0}
    for allowed, declines in ((4.9, True), (5.1, False)):
        client = party(side, policy=Policy(hypotheses_apart=allowed, **limits))
        assert isinstance(client.admit(opened(models=models)), Refusal) == declines
    assert isinstance(party(side, policy=Policy(**limits)).admit(opened(models=models)), Refusal)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"dimension": 1}, "dimension"), ({"round": 11}, "round"), ({"layer_scores": (1.0, 2.0)}, "layer_scores"),
     ({"layer_scores": (torch.nan,)}, "scores"), ({"layer_scores": None}, "layer_scores")],
)  # fmt: skip
def test_what_needs_no_data_is_refused_openly_before_data(change, field):
    client, broadcast = party(FedRE(scores="public")), opened()
    with pytest.raises(FieldError, match=field):
        client.admit(replace(broadcast, public=replace(broadcast.public, **change)))
    assert client.ledger.entries == []


@pytest.mark.parametrize(
    "models", [START + torch.nan, START + torch.inf, START[:-1], START.float()]
)
def test_models_that_are_none_are_refused_before_data(models):
    client = party(SGALDP())
    with pytest.raises(FieldError):
        client.admit(opened(models=models))
    assert client.ledger.entries == []


def test_a_configuration_that_cannot_protect_is_refused_before_data():
    client = party(FedRE(clip={"another layer": 1.0}))
    with pytest.raises(FieldError, match="another layer"):
        client.admit(opened())
    assert client.ledger.entries == []


def test_nothing_unprotected_is_digested():
    # a ledger that is read by others would confirm a guess of the model, the count or the loss
    central = ClientParty(
        Method("m", TrustedServer(), GlobalDP(noise_multiplier=0.01)),
        flat(D),
        Ledger("run", "3"),
        Deployed(0),
        budget=ParticipationFilter(9),
    )
    loud = party(GroupPrivacy(noise_multiplier=0))
    for client in (central, loud):
        for step in (STEP, 2 * STEP):
            answer(client, step, round_=1 if step is STEP else 2)
        assert len({e.digest for e in client.ledger.entries}) == 1


def test_a_reproducible_client_that_fails_draws_the_same_zero_again():
    lines = []
    first = answer(party(SGALDP(), source=ReproducibleSource(0), store=lines.append), BAD["NaN"])
    again = party(SGALDP(), source=ReproducibleSource(0), ledger=Ledger.parse("run", "3", lines))
    assert torch.equal(answer(again, BAD["NaN"])[0].value, first[0].value)
    assert len(again.ledger.entries) == 1


# ---- the embedded engine


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_the_server_cannot_tell_who_failed(name, fault):
    history = federation(name, faults={2: fault}).run(2)
    for record in history.rounds:
        assert record.round.used == (0, 1, 2, 3)
        assert not record.round.failed
        assert not record.round.invalid
        assert set(record.zeroed) == {2}  # the experimenter can
        assert set(record.client_scales) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", LOCAL)
def test_the_experimenter_is_told_when_everybody_failed(name):
    with pytest.raises(NoReplyError, match="round 1"):
        federation(
            name, faults=dict.fromkeys(range(4), "raise"), method=build(name, **OPTIONS[name])
        ).run(1)
