"""Validation clients: they never train, their losses are releases, and a run stops on them."""

from dataclasses import replace

import pytest
import torch
from engine_kit import federation, images, tiny

from fedveil.engines import EarlyStopping, Lockstep
from fedveil.engines.history import Best
from fedveil.errors import BudgetError, FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, client_losses
from fedveil.learning.learner import Learner
from fedveil.mechanisms import SecureSource
from fedveil.methods import build
from fedveil.methods.validating import Validation
from fedveil.runs.checkpoint import Checkpoint
from fedveil.runs.summary import guarantees_of

HELD = [images(50 + p) for p in range(6)]
PUBLIC = Validation(losses="public")


def made(name, rule, **options):
    return federation(name, stopping=rule, **{"validation_clients": HELD, **options})


def noised(name="sga-ldp", **options):
    rule = {"patience": 100, "validation": Validation(noise_multiplier=0.5, loss_range=2.0, releases=3), **options}
    return made(name, EarlyStopping(**rule))


def test_validation_clients_never_train():
    keys = []
    run = made("vanilla", EarlyStopping(patience=9, validation=PUBLIC))
    learn = run.learner.inner.learn
    run.learner.inner.learn = lambda models, clients, some, needs: (
        keys.extend(some) or learn(models, clients, some, needs)
    )
    history = run.run(3)
    assert {key[2] for key in keys} == {0, 1, 2, 3}
    assert torch.equal(history.models, federation("vanilla").run(3).models)


def test_public_losses_are_the_losses_and_promise_nothing():
    run = made("sga-ldp", EarlyStopping(patience=9, validation=PUBLIC))
    record = run.run(1).rounds[0]
    learner = run.learner
    losses = client_losses(learner.model, run.layout, run.models, HELD, "cross_entropy")
    assert record.validation == pytest.approx(float(losses.mean()))
    history = run.history([record])
    assert history.validation.status == "none"
    assert history.guarantees["validation-0"].status == "none"
    assert history.guarantee.status == "heuristic"  # that of the clients that train
    books = {str(p): run.party(p).ledger for p in range(4)} | {
        f"validation-{p}": run.validators._party(p).ledger for p in range(6)
    }
    assert guarantees_of(run.method, books, 1e-5)[1]["validation clients"]["text"] == "none"


@pytest.mark.parametrize("name", ["vanilla", "sga-ldp"])
def test_it_stops_when_the_loss_no_longer_falls_and_keeps_best_and_last(name):
    run = made(name, EarlyStopping(patience=2, every=2, min_delta=10.0, validation=PUBLIC))
    history = run.run(20)
    assert [r.validation is not None for r in history.rounds] == [False, True] * 3
    assert run.round == 6
    assert "round 2" in history.stopped
    assert history.best.round == 2
    assert torch.equal(history.best.models, federation(name).run(2).models)
    assert torch.equal(history.models, federation(name).run(6).models)
    assert not torch.equal(history.best.models, history.models)


def test_a_loss_that_falls_goes_on():
    local = LocalTraining(lr=0.5)
    layout = Layout.from_module(tiny())
    run = made("vanilla", EarlyStopping(patience=1, validation=PUBLIC), learner=Learner(tiny(), layout, local))
    history = run.run(4)
    values = [r.validation for r in history.rounds]
    assert values == sorted(values, reverse=True)
    assert len(values) == 4
    assert (history.best.round, history.best.loss) == (4, values[-1])


def test_noised_losses_are_cut_noised_charged_and_capped():
    run = noised()
    history = run.run(5)
    assert [r.validation is not None for r in history.rounds] == [True] * 3 + [False] * 2  # three releases a client
    for p in range(6):
        entries = run.validators._party(p).ledger.entries
        assert [e.key for e in entries] == [(1, "validate"), (2, "validate"), (3, "validate")]
        assert all(e.spend.guarantee.mu == 2.0 and e.spend.scale == (1.0,) for e in entries)
    assert history.validation.mu == pytest.approx(2 * 3**0.5)
    assert history.validation.relation == "replace-one"
    assert history.validation.status == "conditional"
    assert history.guarantee.status == "heuristic"


def test_any_two_data_sets_move_a_release_by_the_declared_range_at_most():
    quiet = Validation(noise_multiplier=1e-12, loss_range=2.0)
    source = noised().source
    sent = [float(quiet.release(v, "local", source)[0][0].value) for v in (-5.0, 0.5, 99.0, float("inf"), float("nan"))]
    assert sent == pytest.approx([0.0, 0.5, 2.0, 2.0, 2.0])
    many = torch.tensor(
        [
            float(Validation(noise_multiplier=3.0).release(1.0, "local", source.child(i))[0][0].value)
            for i in range(4000)
        ]
    )
    assert float(many.mean()) == pytest.approx(1.0, abs=4 * 9 / 4000**0.5)
    assert float(many.std()) == pytest.approx(9.0, rel=0.05)  # z R


def test_a_sample_is_drawn_anew_from_those_who_may_still_release():
    run = noised(sample=2)
    run.run(9)
    asked = [[p for p in range(6) if run.validators._party(p).ledger.find((t, "validate"))] for t in range(1, 10)]
    assert [len(a) for a in asked] == [2] * 9
    assert len({tuple(a) for a in asked}) > 1
    assert sorted(p for a in asked for p in a) == sorted(list(range(6)) * 3)


def test_a_trusted_sum_of_models_trusts_nobody_with_losses():
    method = build("record-sum", examples=6, noise_multiplier=1.0, silos=4)
    rule = EarlyStopping(patience=100, validation=Validation(noise_multiplier=0.5, loss_range=2.0, releases=3))
    run = made("x", rule, method=method, learner=None)
    history = run.run(5)
    assert [len(run.validators._party(p).ledger.entries) for p in range(6)] == [3] * 6
    assert history.validation.mu == pytest.approx(2 * 3**0.5)
    assert history.guarantee.unit == "record"


def test_a_client_whose_data_fail_answers_all_the_same():
    broken = [ClientData(HELD[0].x, HELD[0].y + 7), HELD[1]]
    rule = EarlyStopping(patience=9, validation=Validation(noise_multiplier=1e-9, loss_range=2.0))
    run = made("sga-ldp", rule, validation_clients=broken)
    record = run.run(1).rounds[0]
    fine = client_losses(run.learner.model, run.layout, run.models, [HELD[1]], "cross_entropy")
    assert record.validation == pytest.approx((2.0 + float(fine)) / 2, rel=1e-6)
    assert [len(run.validators._party(p).ledger.entries) for p in (0, 1)] == [1, 1]


def test_under_central_trust_the_server_noises_the_mean_and_pays():
    z = 0.5
    rule = EarlyStopping(patience=9, validation=Validation(noise_multiplier=z, loss_range=2.0))
    history = made("global", rule).run(2)
    server = made("global", rule)
    server.run(2)
    entries = [e for e in server.server.ledger.entries if e.key[1] == "validate"]
    assert [e.spend.guarantee.mu for e in entries] == [1 / z] * 2
    assert entries[0].spend.scale == pytest.approx((z * 2.0 / 12,))  # z times the mean's sensitivity, R / (2 m)
    plain = federation("global").run(2).guarantee
    assert history.guarantee.mu == pytest.approx((plain.mu**2 + 2 / z**2) ** 0.5)
    assert history.validation is None
    public = made("global", replace(rule, validation=PUBLIC)).run(2)
    assert public.guarantee == plain
    assert public.validation.status == "none"


def test_a_resumed_run_ends_in_the_same_bits_and_pays_once():
    whole = noised(patience=2)
    expected = whole.run(9)
    books = {}
    part = made("sga-ldp", whole.validators.rule, ledgers=keeper(books))
    part.run(2)
    kept = Checkpoint.of(part, "memory", "x", {})
    asked = part.ask(9)  # the round that the crash takes: its releases are recorded, its checkpoint is not
    part.close(asked, part.collect(asked, part.learner.learn(*vars(asked.task).values())))
    again = made("sga-ldp", whole.validators.rule, ledgers=keeper(books))
    kept.restore(again)
    history = again.run(9)
    assert torch.equal(history.models, expected.models)
    assert torch.equal(history.best.models, expected.best.models)
    assert (history.best.loss, history.best.round, again.round) == (
        expected.best.loss,
        expected.best.round,
        whole.round,
    )
    assert again.validators._party(0).ledger.entries == whole.validators._party(0).ledger.entries
    with pytest.raises(FieldError, match="disagree"):
        kept.restore(federation("sga-ldp"))


def test_asked_again_for_a_round_a_client_sends_the_same_or_pays_again_until_its_cap():
    rule = EarlyStopping(validation=Validation(releases=2))
    secure = made("sga-ldp", rule, source=SecureSource()).validators._party(0)
    sent = [secure.send(1.0, 1, rule.validation, "local") for _ in range(2)]
    assert sent[0] != sent[1]
    assert len(secure.ledger.entries) == 2
    with pytest.raises(BudgetError):
        secure.send(1.0, 1, rule.validation, "local")
    party = made("sga-ldp", rule).validators._party(0)
    assert len({party.send(1.0, 1, rule.validation, "local") for _ in range(5)}) == 1
    assert len(party.ledger.entries) == 1


def keeper(books):
    from fedveil.accounting import Ledger

    return lambda party: books.setdefault(party, (Ledger("memory", party), lambda line: None))


def test_in_lockstep_one_stops_and_the_others_go_on():
    layout = Layout.from_module(tiny())
    learner = Learner(tiny(), layout, LocalTraining())
    rule = EarlyStopping(patience=1, min_delta=10.0, validation=PUBLIC)
    both = [made("vanilla", rule, learner=learner), federation("vanilla", learner=learner)]
    lockstep = Lockstep(both)
    played = [sorted(p) for p in lockstep.rounds(4)]
    assert played == [[0, 1], [0, 1], [1], [1]]
    assert "stopped early" in lockstep.stopped[0]


def test_what_does_not_fit_is_refused():
    with pytest.raises(FieldError, match="validation_clients"):
        federation("vanilla", stopping=EarlyStopping())
    with pytest.raises(FieldError, match="stopping"):
        federation("vanilla", validation_clients=HELD)
    with pytest.raises(FieldError, match="sample"):
        made("vanilla", EarlyStopping(sample=7))
    with pytest.raises(FieldError, match="validation_clients"):
        made("vanilla", EarlyStopping(), validation_clients=[ClientData(HELD[0].x[:0], HELD[0].y[:0])])
    with pytest.raises(FieldError, match="loss_range"):
        Validation(loss_range=0.0)
    with pytest.raises(FieldError, match="every"):
        EarlyStopping(every=0)
    assert Best().waited == 0
