"""Validation clients: they never train, their losses are releases, and a run stops on them."""

from dataclasses import replace

import pytest
import torch

from engine_kit import federation, images, tiny
from fedveil.accounting import Filter, LeakageFilter, Ledger, Limits, ParticipationFilter, Policy
from fedveil.engines import EarlyStopping, Lockstep
from fedveil.engines.history import Best
from fedveil.engines.lifetime import LifetimeLedger, begin_ledger
from fedveil.errors import BudgetError, FieldError
from fedveil.gdp import epsilon_of_mu
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, client_losses
from fedveil.learning.learner import Learner
from fedveil.mechanisms import SecureSource
from fedveil.methods import build
from fedveil.methods.publishing import Validation
from fedveil_lab.runs.checkpoint import Checkpoint
from fedveil_lab.runs.promised import guarantees_of

HELD = [images(50 + p) for p in range(6)]
PUBLIC = Validation(losses="public")


def made(name, rule, **options):
    return federation(name, stopping=rule, **{"validation_clients": HELD, **options})


def noised(
    name="sga-ldp",
    *,
    policy=None,
    client_budgets=None,
    tell=None,
    method=None,
    learner="usual",
    **options,
):
    rule = {
        "patience": 100,
        "validation": Validation(noise_multiplier=0.5, loss_range=2.0, releases=3),
        **options,
    }
    more = {"policy": policy, "client_budgets": client_budgets, "tell": tell, "method": method}
    more |= {} if learner == "usual" else {"learner": learner}
    return made(
        name,
        EarlyStopping(**rule),
        **{k: v for k, v in more.items() if v is not None or k == "learner"},
    )


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
        f"validation-{p}": run.validators.validator(p).ledger for p in range(6)
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
    run = made(
        "vanilla",
        EarlyStopping(patience=1, validation=PUBLIC),
        learner=Learner(tiny(), layout, local),
    )
    history = run.run(4)
    values = [r.validation for r in history.rounds]
    assert values == sorted(values, reverse=True)
    assert len(values) == 4
    assert (history.best.round, history.best.loss) == (4, values[-1])


def test_noised_losses_are_cut_noised_charged_and_capped():
    run = noised()
    history = run.run(5)
    assert [r.validation is not None for r in history.rounds] == [True] * 3 + [
        False
    ] * 2  # three releases a client
    for p in range(6):
        entries = run.validators.validator(p).ledger.entries
        assert [e.key for e in entries] == [(1, "validate"), (2, "validate"), (3, "validate")]
        assert all(e.spend.guarantee.mu == 2.0 and e.spend.scale == (1.0,) for e in entries)
    assert history.validation.mu == pytest.approx(2 * 3**0.5)
    assert history.validation.relation == "replace-one"
    assert history.validation.status == "conditional"
    assert history.guarantee.status == "heuristic"


def test_any_two_data_sets_move_a_release_by_the_declared_range_at_most():
    quiet = Validation(noise_multiplier=1e-12, loss_range=2.0)
    source = noised().source
    sent = [
        float(quiet.release(v, "local", source)[0][0].value)
        for v in (-5.0, 0.5, 99.0, float("inf"), float("nan"))
    ]
    assert sent == pytest.approx([0.0, 0.5, 2.0, 2.0, 2.0])
    many = torch.tensor(
        [
            float(
                Validation(noise_multiplier=3.0).release(1.0, "local", source.child(i))[0][0].value
            )
            for i in range(4000)
        ]
    )
    assert float(many.mean()) == pytest.approx(1.0, abs=4 * 9 / 4000**0.5)
    assert float(many.std()) == pytest.approx(9.0, rel=0.05)  # z R


def test_a_sample_is_drawn_anew_from_those_who_may_still_release():
    run = noised(sample=2)
    run.run(9)
    asked = [
        [p for p in range(6) if run.validators.validator(p).ledger.find((t, "validate"))]
        for t in range(1, 10)
    ]
    assert [len(a) for a in asked] == [2] * 9
    assert len({tuple(a) for a in asked}) > 1
    assert sorted(p for a in asked for p in a) == sorted(list(range(6)) * 3)


def test_a_trusted_sum_of_models_trusts_nobody_with_losses():
    method = build("record", sum="trusted", examples=6, noise_multiplier=1.0, silos=4)
    rule = EarlyStopping(
        patience=100, validation=Validation(noise_multiplier=0.5, loss_range=2.0, releases=3)
    )
    run = made("x", rule, method=method, learner=None)
    history = run.run(5)
    assert [len(run.validators.validator(p).ledger.entries) for p in range(6)] == [3] * 6
    assert history.validation.mu == pytest.approx(2 * 3**0.5)
    assert history.guarantee.unit == "record"


def test_a_client_whose_data_fail_answers_all_the_same():
    broken = [ClientData(HELD[0].x, HELD[0].y + 7), HELD[1]]
    rule = EarlyStopping(patience=9, validation=Validation(noise_multiplier=1e-9, loss_range=2.0))
    run = made("sga-ldp", rule, validation_clients=broken)
    record = run.run(1).rounds[0]
    fine = client_losses(run.learner.model, run.layout, run.models, [HELD[1]], "cross_entropy")
    assert record.validation == pytest.approx((2.0 + float(fine)) / 2, rel=1e-6)
    assert [len(run.validators.validator(p).ledger.entries) for p in (0, 1)] == [1, 1]


def test_under_central_trust_the_server_noises_the_mean_and_pays():
    z = 0.5
    rule = EarlyStopping(patience=9, validation=Validation(noise_multiplier=z, loss_range=2.0))
    history = made("global", rule).run(2)
    server = made("global", rule)
    server.run(2)
    entries = [e for e in server.server.ledger.entries if e.key[1] == "validate"]
    assert [e.spend.guarantee.mu for e in entries] == [1 / z] * 2
    assert entries[0].spend.scale == pytest.approx(
        (z * 2.0 / 12,)
    )  # z times the mean's sensitivity, R / (2 m)
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
    part.begin(
        9
    )  # the round that the crash takes: its releases are recorded, its checkpoint is not
    part.end()
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
    assert (
        again.validators.validator(0).ledger.entries == whole.validators.validator(0).ledger.entries
    )
    with pytest.raises(FieldError, match="disagree"):
        kept.restore(federation("sga-ldp"))


def test_asked_again_for_a_round_a_client_sends_the_same_or_pays_again_until_its_cap():
    rule = EarlyStopping(validation=Validation(releases=2))
    secure = made("sga-ldp", rule, source=SecureSource()).validators.validator(0)
    sent = [secure.send(1.0, 1) for _ in range(2)]
    assert sent[0] != sent[1]
    assert len(secure.ledger.entries) == 2
    with pytest.raises(BudgetError):
        secure.send(1.0, 1)
    party = made("sga-ldp", rule).validators.validator(0)
    assert len({party.send(1.0, 1) for _ in range(5)}) == 1
    assert len(party.ledger.entries) == 1


def policy(**values):
    given = {"trust": ("local", "trusted sum", "central"), "secure_source": False, **values}
    return Policy(
        **{"total": Limits(mu=3.0, record_mu=9.0, record_epsilon=90.0, participations=99), **given}
    )


def released(run):
    return [
        len(run.validators.validator(p).ledger.entries) for p in range(len(run.validators.clients))
    ]


@pytest.mark.parametrize("method", ["sga-ldp", "record"])
@pytest.mark.parametrize(
    ("allowed", "times"),
    [
        ({"total": Limits(mu=0.3, participations=99)}, 0),  # the client's loss costs mu 2
        (
            {"total": Limits(record_mu=9.0, participations=99)},
            0,
        ),  # no total of a client's mu is named
        ({"relations": ["zero-out"]}, 0),  # and under replace-one
        ({"total": Limits(mu=3.0, participations=99)}, 2),
        ({"release": Limits(mu=1.9)}, 0),
        ({"methods": ["group"]}, 0),
        ({"total": Limits(mu=99.0, participations=1)}, 1),
        ({"secure_source": True}, 0),
    ],
)
def test_the_policy_of_a_validation_clients_owner_holds(method, allowed, times):
    said = []
    summed = build("record", sum="trusted", examples=6, noise_multiplier=1.0, silos=4)
    options = {"method": summed, "learner": None} if method == "record" else {}
    run = noised(method, policy=policy(**allowed), tell=said.append, **options)
    for round_ in range(1, 5):
        run.validators.validate(run.models, round_)
    assert released(run) == [times] * 6
    assert any("sends no loss" in line for line in said)
    history = run.history([])
    assert times == 0 or history.validation.mu == pytest.approx(2 * times**0.5)


def test_no_policy_allows_a_loss_in_the_clear():
    for name in ("sga-ldp", "vanilla"):
        said = []
        run = made(
            name, EarlyStopping(patience=9, validation=PUBLIC), policy=policy(), tell=said.append
        )
        assert run.validators.validate(run.models, 1) is None
        assert released(run) == [0] * 6
        assert "in the clear" in said[0]


def test_under_central_trust_a_policy_counts_those_who_take_part():
    rule = EarlyStopping(patience=9, validation=Validation(noise_multiplier=0.5, loss_range=2.0))
    for allowed, times in (({"trust": ("local",)}, 0), ({"total": Limits(participations=2)}, 2)):
        run = made("global", rule, policy=policy(**allowed))
        values = [run.validators.validate(run.models, round_) for round_ in (1, 2, 3, 3)]
        assert [v is not None for v in values] == [i < times for i in range(4)]
        assert released(run) == [times] * 6
        assert sum(e.key[1] == "validate" for e in run.server.ledger.entries) == times
        books = {f"validation-{p}": run.validators.validator(p).ledger for p in range(6)}
        assert "validation clients" not in guarantees_of(run.method, books, 1e-5)[1]


def test_budgets_reach_validation_clients_too():
    asked = []

    def budgets(partition):
        asked.append(partition)
        return ParticipationFilter(2 if partition == 5 else 1)

    run = noised(client_budgets=budgets)
    assert set(asked) == set(range(4, 10))  # behind the four that train
    for round_ in range(1, 5):
        run.validators.validate(run.models, round_)
    assert released(run) == [1, 2, 1, 1, 1, 1]
    history = noised(
        client_budgets=lambda p: (
            Filter(epsilon_of_mu(2 * 2**0.5 + 1e-6, 1e-5), 1e-5) if p > 3 else None
        )
    )
    history = history.run(4)
    assert history.validation.mu == pytest.approx(2 * 2**0.5)
    with pytest.raises(FieldError, match="leakage"):  # a loss has none, and could not be held to it
        noised("group", client_budgets=lambda p: LeakageFilter(5.0))


def test_a_lifetime_ledger_holds_a_validation_client_over_all_runs(tmp_path):
    begin_ledger(tmp_path, "validation-0", by="the tests", head=tmp_path / "head")
    rule = EarlyStopping(patience=99, validation=Validation(noise_multiplier=0.5, loss_range=2.0))
    made_in = []
    for study in ("a", "b"):
        with LifetimeLedger(tmp_path, "validation-0", study, head=tmp_path / "head") as mine:

            def kept(party, mine=mine, study=study):
                return (
                    (mine.ledger, mine.store)
                    if party == "validation-0"
                    else (Ledger(study, party), print)
                )

            values = {"policy": policy(secure_source=False), "ledgers": kept, "run_id": study}
            run = made("sga-ldp", rule, validation_clients=HELD[:1], **values)
            for round_ in (1, 2, 3):
                run.validators.validate(run.models, round_)
            made_in.append(len(mine.ledger.entries))
    assert made_in == [2, 0]  # mu 2.83 of 3


SHARED = {
    "the client itself": lambda c: c,
    "its arrays": lambda c: (c.x, c.y),
    "some of its rows, as a view": lambda c: (c.x[2:4], c.y[2:4]),
    "every second row": lambda c: (c.x[::2], c.y[::2]),
    "a copy": lambda c: (c.x.clone(), c.y.clone()),
    "a copy with other labels": lambda c: (c.x.clone(), 1 - c.y),
    "a copy in float64": lambda c: ClientData(c.x.double(), c.y),
    "one row among others": lambda c: (
        torch.cat([HELD[0].x, c.x[:1]]),
        torch.cat([HELD[0].y, c.y[:1]]),
    ),
    "what it holds out": lambda c: (c.test_x.clone(), c.test_y.clone()),
    "what the other holds out": lambda c: (HELD[0].x, HELD[0].y, c.x.clone(), c.y.clone()),
}


@pytest.mark.parametrize("what", SHARED)
def test_a_client_that_trains_lends_nothing_to_one_that_validates(what):
    own = [images(p) for p in range(4)]
    own[2] = replace(own[2], test_x=images(70).x, test_y=images(70).y)
    values = {"clients": own, "validation_clients": [HELD[1], SHARED[what](own[2])]}
    for losses in ("noised", "public"):
        with pytest.raises(FieldError) as refused:
            made("sga-ldp", EarlyStopping(validation=Validation(losses=losses)), **values)
        assert refused.value.field == "stopping.clients[1]"
    alike = what.startswith(
        ("a copy", "one row", "what")
    )  # records of others, if the operator says so
    if alike:
        made("sga-ldp", EarlyStopping(allow_equal_rows=True), **values)
    else:
        with pytest.raises(FieldError, match=r"clients\[2\]"):
            made("sga-ldp", EarlyStopping(allow_equal_rows=True), **values)


def test_rows_of_one_array_that_is_dealt_out_are_different_records():
    x, y = images(0, 40).x, images(0, 40).y
    for parts in (
        [slice(i, None, 5) for i in range(5)],
        [slice(8 * i, 8 * i + 8) for i in range(5)],
    ):
        dealt = [(x[part], y[part]) for part in parts]
        made("sga-ldp", EarlyStopping(), clients=dealt[:4], validation_clients=dealt[4:])


def keeper(books):
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
    with pytest.raises(FieldError, match=r"stopping\.clients"):
        federation("vanilla", stopping=EarlyStopping())
    with pytest.raises(FieldError, match="sample"):
        made("vanilla", EarlyStopping(sample=7))
    with pytest.raises(FieldError, match=r"stopping\.clients"):
        made(
            "vanilla",
            EarlyStopping(),
            validation_clients=[ClientData(HELD[0].x[:0], HELD[0].y[:0])],
        )
    with pytest.raises(FieldError, match="loss_range"):
        Validation(loss_range=0.0)
    with pytest.raises(FieldError, match="every"):
        EarlyStopping(every=0)
    assert Best().waited == 0
