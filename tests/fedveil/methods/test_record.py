"""Record-level privacy in the silos: what is promised, sized and refused, through the parties and the engine."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from core_kit import Deployed, assert_deviation
from fedveil.accounting import (
    Gaussian,
    Ledger,
    ParticipationFilter,
    Poisson,
    Release,
    StepFilter,
    epsilon,
)
from fedveil.aggregation import FedAvg, FedAvgM, FedMedian, Krum
from fedveil.engines import Budgets, Execution, Federation, ServerParty, Shared
from fedveil.engines.answers import RoundAnswers
from fedveil.engines.client import ClientParty
from fedveil.errors import BudgetError, FieldError, NoReplyError
from fedveil.gdp import epsilon_of_mu, mu_of_epsilon
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.mechanisms import ReproducibleSource, SecureSource
from fedveil.methods import (
    Broadcast,
    ClientFacts,
    Method,
    Plain,
    PublicFacts,
    RecordDP,
    Refusal,
    build,
)
from fedveil_lab.attacks import bound

DELTA = 1e-5


def silos(n=4, examples=6, d=8):
    generator = torch.Generator().manual_seed(3)
    made = []
    for _ in range(n):
        x = torch.rand(examples, d, generator=generator)
        made.append(ClientData(x, (x.sum(1) > d / 2).long()))
    return made


def federation(sum_, clients=None, *, rule=None, rounds=3, budgets=None, **values):
    base = {"examples": 6, "rounds": rounds, "clip": 0.5}
    if "noise_multiplier" not in values:
        base["epsilon"] = 4.0
    if sum_ == "trusted":
        base["silos"] = 4
    built = build("record", rule or FedAvgM(), sum=sum_, **{**base, **values})
    torch.manual_seed(0)
    return Federation(
        model=nn.Linear(8, 2),
        clients=clients or silos(),
        method=built,
        local=LocalTraining(lr=0.5),
        seed=1,
        budgets=budgets,
    )


def trainer_of(client, d=18):
    """Of a silo of d parameters."""
    model = nn.Linear(d, 1, bias=False)
    return PrivateTrainer(model, Layout.from_module(model), LocalTraining(), client.noisy_steps)


def opened(round_=1, cohort=4, rounds=3, d=18):
    public = PublicFacts(round=round_, rounds=rounds, cohort=cohort, dimension=d)
    return Broadcast(models=torch.zeros(1, d), public=public)


@pytest.mark.parametrize("method", ["none", "trusted"])
@pytest.mark.parametrize("relation", ["zero-out", "add/remove", "replace-one"])
def test_a_run_spends_what_it_planned(method, relation):
    history = federation(method, relation=relation).run(3)
    assert set(history.guarantees) == {"0", "1", "2", "3"}  # each silo has a ledger of its own
    for guarantee in history.guarantees.values():
        assert guarantee.unit == "record"
        assert guarantee.relation == relation
        assert guarantee.trust == ("local" if method == "none" else "trusted sum")
        assert guarantee.public_size == (relation != "add/remove")
        assert guarantee.epsilon(DELTA) == pytest.approx(4.0)
        assert guarantee.status == "conditional"


def test_sampled_steps_are_composed_by_their_loss_distribution():
    fed = federation("none", noise_multiplier=4.4, rate=0.5, steps=2)
    history = fed.run(3)
    assert history.guarantee.bound.events == ((Poisson(0.5, Gaussian(4.4)), 6),)
    assert history.guarantee.epsilon(DELTA) == pytest.approx(
        epsilon([(Poisson(0.5, Gaussian(4.4)), 6)], DELTA)
    )


def test_local_steps_cost_what_they_are():
    one = build("record", examples=6, noise_multiplier=2.0).client
    four = build("record", examples=6, noise_multiplier=2.0, steps=4).client
    assert one.quote(opened(), one.init()).guarantee.mu == 0.5
    assert four.quote(opened(), four.init()).guarantee.mu == 1.0


@pytest.mark.parametrize(("n", "t"), [(4, 1), (10, 1), (10, 3), (2, 1)])
def test_any_n_minus_t_shares_make_up_the_noise(n, t):
    method = RecordDP(
        sum="trusted", examples=6, clip=0.5, noise_multiplier=2.0, silos=n, tolerated=t
    )
    share = method.noisy_steps.deviation
    assert share * math.sqrt(n - t) == pytest.approx(2.0 * 0.5)
    assert method.quote(opened(cohort=n), method.init()).guarantee.mu == pytest.approx(
        0.5
    )  # of the sum, not of a share


def test_shares_sized_without_a_curious_silo_would_promise_too_much():
    """Issue 15: four silos share the noise of epsilon 4 evenly; one that subtracts its own share is left with 4.72."""
    mu = mu_of_epsilon(4, DELTA)
    assert epsilon_of_mu(mu / math.sqrt(3 / 4), DELTA) == pytest.approx(4.72, abs=0.01)
    with pytest.raises(FieldError, match="tolerated"):
        RecordDP(sum="trusted", examples=6, noise_multiplier=1.0, silos=4, tolerated=0)
    with pytest.raises(FieldError, match="tolerated"):
        RecordDP(sum="trusted", examples=6, noise_multiplier=1.0, silos=4, tolerated=4)


def test_a_sum_of_many_local_steps_is_refused():
    with pytest.raises(FieldError, match="steps"):
        build("record", sum="trusted", examples=6, noise_multiplier=1.0, silos=4, steps=2)


def test_shares_that_are_not_summed_each_step_promise_too_much():
    """Issue 15: 20 local steps at ten silos turn a claimed mu of 4.47 into 11.7, in a linear example.

    One silo's loss is flat: its record moves every step by C, and every share it adds stays. The others' losses are
    steep: each step forgets the ones before (learning rate times curvature is 1), so only their last share is left.
    """
    steps, n, z = 20, 10, 1.0
    kept = np.array([1.0] + [0.0] * (n - 1))  # what is left of a silo's model after one more step
    shift, variance = np.zeros(n), np.zeros(n)
    for _ in range(steps):
        shift = kept * shift + np.array([1.0] + [0.0] * (n - 1))
        variance = kept**2 * variance + z**2 / n
    assert math.sqrt(steps) / z == pytest.approx(
        4.47, abs=0.01
    )  # claimed, as if every step were summed
    assert shift.sum() / math.sqrt(variance.sum()) == pytest.approx(11.7, abs=0.05)


def test_a_sum_wants_rules_that_read_nothing_but_the_sum():
    for rule in (FedMedian(), Krum(), FedAvg(weighting="examples")):
        with pytest.raises(FieldError, match=r"aggregator|weighting"):
            build("record", rule, examples=6, noise_multiplier=1.0, sum="trusted", silos=4)
    build(
        "record", FedMedian(), examples=6, noise_multiplier=1.0
    )  # without trust, any rule is post-processing


def test_noise_on_a_sum_is_what_the_shares_promise():
    clients = [
        ClientData(torch.zeros(6, 3000), torch.zeros(6, dtype=torch.int64)) for _ in range(4)
    ]
    method = build(
        "record",
        FedAvg(),
        examples=6,
        noise_multiplier=2.0,
        clip=1e-6,
        sum="trusted",
        silos=4,
        tolerated=2,
    )
    fed = Federation(
        model=nn.Linear(3000, 2),
        clients=clients,
        method=method,
        local=LocalTraining(lr=6.0),
        seed=1,
    )
    before = fed.models.clone()
    fed.run(1)
    summed = (fed.models - before) * 4  # lr over the denominator is 1
    assert_deviation(summed.double().numpy(), 2.0 * 1e-6 * math.sqrt(4 / 2))


def test_a_dropped_silo_releases_nothing_unless_it_was_planned_for():
    def half(tolerated):
        budgets = Budgets(clients=lambda partition: _Never() if partition == 3 else None)
        return federation("trusted", tolerated=tolerated, budgets=budgets)

    fed = half(1)
    before = fed.models.clone()
    with pytest.raises(NoReplyError, match="1 of 4 silos dropped out"):
        fed.run(3)
    assert torch.equal(fed.models, before)
    assert half(2).run(3).guarantee.epsilon(DELTA) == pytest.approx(4.0)


class _Never(ParticipationFilter):
    def __init__(self):
        super().__init__(1)

    def admit_spend(self, spend):
        return False


def share(value=0.0, **values):
    """What a silo sends that was trained on these terms."""
    client = RecordDP(
        sum="trusted", **{"examples": 6, "noise_multiplier": 2.0, "clip": 0.5, "silos": 3, **values}
    )
    facts = ClientFacts(broadcast=opened(cohort=3), layout=None, noised=client.noisy_steps)
    model = Release("model", torch.full((18,), value))
    return client.protect((model,), facts, client.init(), ReproducibleSource(0)).releases


@pytest.mark.parametrize(
    "change", [{"clip": 1.0}, {"noise_multiplier": 3.0}, {"examples": 7}, {"tolerated": 1}, None]
)
def test_a_silo_on_other_terms_is_left_out_and_the_others_go_on(change):
    """It counts as one that dropped out, whichever silo it is; the run ends only where that is one too many."""
    other = share(9.0)[:1] if change is None else share(9.0, **{"tolerated": 2, **change})
    for tolerated in (2, 1):
        method = build(
            "record",
            FedAvg(),
            sum="trusted",
            **{**SHARES, "silos": 3, "rounds": None, "tolerated": tolerated},
        )
        layout = Layout.from_shapes({"w": (18,)})
        server = ServerParty(method, layout, Ledger("run", "server"), ReproducibleSource(0))
        replies = {p: share(1.0, tolerated=tolerated) for p in (1, 2)} | {0: other}
        if tolerated == 2:
            released, log = server.combine(opened(cohort=3), RoundAnswers(replies))
            assert log.used == (1, 2)
            assert set(log.invalid) == {0}
            torch.testing.assert_close(released.models, torch.ones(1, 18))
        elif change != {"tolerated": 1}:
            with pytest.raises(NoReplyError, match="1 of 3"):
                server.combine(opened(cohort=3), RoundAnswers(replies))


def test_shares_for_another_number_of_silos_are_declined():
    client = RecordDP(sum="trusted", examples=6, noise_multiplier=2.0, silos=5)
    assert isinstance(client.quote(opened(cohort=4), client.init()), Refusal)
    with pytest.raises(FieldError, match="clients = 4: must be silos = 5"):
        federation("trusted", silos=5)


def test_a_model_without_the_noise_does_not_leave():
    client = RecordDP(examples=6, noise_multiplier=2.0)
    other = RecordDP(examples=6, noise_multiplier=1.0)
    for mark in (None, other.noisy_steps):
        facts = ClientFacts(broadcast=opened(), layout=None, noised=mark)
        with pytest.raises(FieldError, match="noised"):
            client.protect(
                (Release("model", torch.zeros(18)),), facts, client.init(), ReproducibleSource(0)
            )


def test_nothing_but_the_model_leaves_a_silo():
    client = RecordDP(examples=6, noise_multiplier=2.0)
    facts = ClientFacts(broadcast=opened(), layout=None, noised=client.noisy_steps)
    given = (
        Release("model", torch.zeros(18)),
        Release("count", torch.tensor(6.0)),
        Release("metric", torch.tensor(0.3), "train_loss"),
    )
    assert [
        r.kind for r in client.protect(given, facts, client.init(), ReproducibleSource(0)).releases
    ] == ["model"]
    assert client.protect(given[1:], facts, client.init(), ReproducibleSource(0)).releases == ()


def test_no_more_than_the_planned_steps_are_admitted():
    fed = federation("none", rounds=2)
    history = fed.run(5)
    assert len(history.rounds) == 2
    assert "beyond" in history.stopped
    assert history.guarantee.epsilon(DELTA) == pytest.approx(4.0)


def test_a_server_that_repeats_a_round_gets_the_same_bits_and_a_new_one_meets_the_filter():
    client = RecordDP(examples=6, epsilon=4.0, rounds=2)
    layout = Layout.from_shapes({"w": (18,)})
    filter_ = client.budget()
    made = Method("record", client, Plain())
    party = ClientParty(
        made, layout, Ledger("run", "0"), SecureSource(), budget=filter_, trainer=trainer_of(client)
    )
    facts = ClientFacts(broadcast=opened(), layout=layout, noised=client.noisy_steps)
    assert party.admit(opened()) is None
    first = party.release((Release("model", torch.randn(18)),), facts)
    assert torch.equal(party.admit(opened())[0].value, first[0].value)
    assert filter_.spent == 1
    assert party.admit(opened(2)) is None
    other = ClientParty(
        Method("record", RecordDP(examples=6, noise_multiplier=client.multiplier), Plain()),
        layout,
        party.ledger,
        SecureSource(),
        budget=client.budget(),
        trainer=trainer_of(client),
    )
    assert isinstance(
        other.admit(opened(3)), Refusal
    )  # two of two steps are in the ledger, whoever asks


SHARES = {"examples": 6, "noise_multiplier": 2.0, "clip": 0.5, "silos": 4, "rounds": 2}


def silo(source, ledger=None, lines=None, d=3000, **values):
    """A party of a trusted sum of d parameters, and what trains it."""
    client = RecordDP(sum="trusted", **{**SHARES, **values})
    method = build("record", FedAvg(), sum="trusted", **{**SHARES, **values})
    model = nn.Linear(d, 1, bias=False)
    trainer = PrivateTrainer(
        model, Layout.from_module(model), LocalTraining(lr=6.0, loss="mse"), client.noisy_steps
    )
    store = (lambda line: None) if lines is None else lines.append
    ledger = Ledger("run", "0") if ledger is None else ledger
    party = ClientParty(
        method, trainer.layout, ledger, source, budget=client.budget(), store=store, trainer=trainer
    )
    data = ClientData(torch.ones(6, d) / d, torch.zeros(6, 1))
    return party, lambda round_: answered(party, trainer, data, round_, d)


def answered(party, trainer, data, round_, d):
    """A silo's answer: its vector, or why it declines."""
    asked = opened(round_, rounds=2, d=d)
    verdict = party.admit(asked)
    if isinstance(verdict, Refusal):
        return verdict
    if verdict is None:
        [found] = trainer.train_noisily(
            asked.models, [data], [(0,)], [party.training_source(round_)]
        )
        facts = ClientFacts(broadcast=asked, layout=party.layout, noised=found.noised)
        verdict = party.release((Release("model", found.model),), facts)
    return verdict[0].value.double()


@pytest.mark.parametrize("source", [SecureSource, lambda: ReproducibleSource(5)])
def test_a_share_is_never_handed_out_twice_and_a_second_one_is_a_release_more(source):
    """Otherwise the difference of two sums, one without this silo, is its share, with z C / sqrt(n - t) of noise."""
    lines = []
    party, ask = silo(source(), lines=lines)
    first, second = ask(1), ask(1)
    assert_deviation(
        (first - second).numpy(), math.sqrt(2) * party.method.noisy.noisy_steps.deviation
    )
    assert [(e.key, e.attempt) for e in party.ledger.entries] == [
        ((1, "protect"), 0),
        ((1, "protect"), 1),
    ]
    assert party.budget.spent == 2
    assert isinstance(ask(1), Refusal)  # two steps were planned, whichever round asks for them
    assert isinstance(ask(2), Refusal)
    again, ask_again = silo(source(), Ledger.parse("run", "0", lines))
    assert again.budget.spent == 2
    if again._source.deployable:
        assert isinstance(ask_again(1), Refusal)


def test_a_second_share_has_a_lot_of_its_own():
    party, ask = silo(Deployed(0), rate=0.5)
    ask(1)
    lots = [party.training_source(1).child("lots").uniform(50)]
    party.admit(opened(1, rounds=2, d=3000))
    lots.append(party.training_source(1).child("lots").uniform(50))
    assert not torch.equal(*lots)


def test_after_a_crash_an_experiment_draws_its_share_again_and_a_deployment_does_not():
    lines, kept = [], []
    for source in (ReproducibleSource(5), Deployed(5)):
        lines.clear()
        first = silo(source, lines=lines)[1](1)
        party, ask = silo(source, Ledger.parse("run", "0", lines), lines)
        assert torch.equal(ask(1), first) != source.deployable
        kept.append([e.attempt for e in party.ledger.entries])
        if not source.deployable:  # it has handed the share out by now
            assert not torch.equal(ask(1), first)
    assert kept == [[0], [0, 1]]


def test_a_process_that_died_while_it_trained_anew_answers_with_noise_of_its_own():
    lines = []
    first = silo(Deployed(5), lines=lines, rounds=3)[1](1)
    party, _ = silo(Deployed(5), Ledger.parse("run", "0", lines), lines, rounds=3)
    assert party.admit(opened(1, rounds=2, d=3000)) is None  # and here it dies
    party, ask = silo(Deployed(5), Ledger.parse("run", "0", lines), lines, rounds=3)
    second = ask(1)
    deviation = party.method.noisy.noisy_steps.deviation
    assert_deviation(second.numpy(), deviation)  # a zero update
    assert_deviation((ask(1) - second).numpy(), math.sqrt(2) * deviation)
    assert_deviation((second - first).numpy(), math.sqrt(2) * deviation)
    assert [e.attempt for e in party.ledger.entries] == [0, 1, 2]


@pytest.mark.parametrize("name", ["trusted", "none"])
def test_the_server_of_a_trusted_sum_makes_one_sum_a_round(name):
    """Without one silo a second sum shows that silo's share; a sum of models that nobody is trusted with may differ."""
    values = {k: v for k, v in SHARES.items() if name == "trusted" or k != "silos"}
    method = build(
        "record",
        FedAvg(),
        sum=name,
        **{**values, **({"tolerated": 2} if name == "trusted" else {})},
    )
    layout = Layout.from_shapes({"w": (18,)})
    server = ServerParty(method, layout, Ledger("run", "server"), ReproducibleSource(0))
    replies = {p: share(float(p), silos=4, tolerated=2) for p in range(4)}
    first, _ = server.combine(opened(), RoundAnswers(replies))
    same, _ = server.combine(opened(), RoundAnswers(replies))
    assert torch.equal(first.models, same.models)
    without = {p: r for p, r in replies.items() if p < 3}
    if name == "none":
        assert not torch.equal(
            server.combine(opened(), RoundAnswers(without))[0].models, first.models
        )
        return
    with pytest.raises(BudgetError, match="recorded"):
        server.combine(opened(), RoundAnswers(without))
    assert len(server.ledger.entries) == 1


def test_a_deployed_sum_that_a_crash_took_ends_the_run_before_anybody_pays_for_another():
    def begun(source, books):
        def ledgers(party):
            return books.setdefault(party, Ledger("run", party)), lambda line: None

        fed = federation("trusted")
        values = {
            "model": nn.Linear(8, 2),
            "clients": silos(),
            "method": fed.method,
            "local": LocalTraining(lr=0.5),
        }
        return Federation(
            **values, seed=1, source=source, execution=Execution(ledgers=ledgers, run_id="run")
        )

    whole = begun(ReproducibleSource(1), {}).run(3).models
    for source in (ReproducibleSource(1), Deployed(1)):
        books = {}
        begun(source, books).run(1)
        entries = [len(book.entries) for book in books.values()]
        history = begun(source, books).run(3)  # no checkpoint of round 1 was written
        if source.deployable:
            assert "recorded a sum" in history.stopped
            assert [len(book.entries) for book in books.values()] == entries
        else:
            assert torch.equal(history.models, whole)


def test_weights_that_would_round_a_share_away_are_refused_before_data_in_every_round():
    fed = federation("trusted")
    fed.run(1)
    party, asked = fed.party(0), opened(2)
    lines = len(party.ledger.entries)
    with pytest.raises(FieldError, match="rounding"):
        party.admit(replace(asked, models=torch.full((1, 18), 1e30)))
    assert len(party.ledger.entries) == lines
    assert party.admit(replace(asked, models=fed.models)) is None


@pytest.mark.parametrize("method", ["none", "trusted"])
def test_a_silo_that_fails_answers_with_the_noise_of_its_training(method):
    """Whatever fails, and wherever: what is sent is what a silo without examples sends, its whole share included."""
    silo = ClientData(torch.zeros(6, 3000), torch.zeros(6, dtype=torch.int64))
    values = {"silos": 4} if method == "trusted" else {}
    built = build(
        "record", FedAvg(), sum=method, examples=6, noise_multiplier=2.0, clip=0.5, **values
    )
    fed = Federation(
        model=nn.Linear(3000, 2),
        clients=[silo] * 4,
        method=built,
        local=LocalTraining(lr=6.0),
        seed=1,
    )
    fed.begin(1)
    fed.embedded.learned([RuntimeError("no memory")] * 4)
    sent = fed.embedded.collect()
    assert set(sent.zeroed) == set(sent.replies) == {0, 1, 2, 3}
    updates = torch.stack(
        [sent.replies[p][0].value - fed.models[0] for p in range(4)]
    )  # lr over the denominator is 1
    for update in updates:
        assert_deviation(update.double().numpy(), built.client.noisy_steps.deviation)
    assert_deviation(updates.double().sum(0).numpy(), 2 * built.client.noisy_steps.deviation)
    for reply in sent.replies.values():
        assert {r.name for r in reply[1:]} == ({r.name for r in share()[1:]} if values else set())
    with pytest.raises(FieldError, match="trainer"):  # said before data are touched
        ClientParty(built, fed.layout, Ledger("run", "9"), fed.source).admit(
            fed.embedded.asked.broadcast
        )


def test_a_step_whose_examples_all_fail_takes_nothing_from_the_other_steps():
    """One record with a bad label, alone in a sampled step, used to take away what the silo's other steps had added."""
    model = nn.Linear(1, 2, bias=False).double()
    method = RecordDP(
        examples=4, noise_multiplier=1e-3, rate=0.3, steps=40, relation="add/remove", clip=1.0
    )
    trainer = PrivateTrainer(
        model, Layout.from_module(model), LocalTraining(lr=0.01), method.noisy_steps
    )
    x, y = torch.ones(2, 1, dtype=torch.float64), torch.tensor([1, 7])  # there are classes 0 and 1
    start, moved = torch.zeros(1, 2, dtype=torch.float64), []
    for n in (1, 2):
        [found] = trainer.train_noisily(start, [ClientData(x[:n], y[:n])], [(0,)], [Fixed(0)])
        moved.append(found.model)
        assert found.failure is None
    assert (moved[0] - moved[1]).abs().max() < 1e-12 < 1e-2 < moved[0].abs().max()


class Fixed(ReproducibleSource):
    """Draws of lots that are the same for an example, however many there are."""

    def __init__(self, seed, _key=()):
        super().__init__(seed, _key=_key)
        self.drawn = 0

    def child(self, *key):
        return Fixed(self._seed, _key=(*self._key, *key))

    def uniform(self, size):
        self.drawn += 1
        return ReproducibleSource(self._seed + self.drawn).uniform(2)[:size]


@pytest.mark.parametrize(
    "values",
    [
        {"examples": 0},
        {"clip": 0.0},
        {"rate": 0.0},
        {"rate": 1.5},
        {"steps": 0},
        {"noise_multiplier": None},
        {"epsilon": 1.0},
        {"noise_multiplier": None, "epsilon": 1.0},
        {"noise_multiplier": None, "epsilon": 1e-12, "delta": 1e-15, "rounds": 10},
        {"noise_multiplier": None, "epsilon": 1e-9, "rounds": 10},
        {"relation": "nothing"},
    ],
)
def test_bad_values_are_refused(values):
    with pytest.raises(FieldError):
        RecordDP(**{"examples": 6, "noise_multiplier": 1.0, **values})


def test_odd_silos_are_served_or_refused_with_a_word():
    one = [*silos(3), *silos(1, examples=1)]
    for method, few in (("none", 0), ("none", 1), ("trusted", 1)):
        with pytest.raises(FieldError, match=r"examples of silo 3 = .* join the silo"):
            federation(method, [*silos(3), *silos(1, examples=few)])
    assert (
        federation("none", one, relation="add/remove").run(1).rounds
    )  # nothing may follow sizes that are private
    two = [*silos(3), *silos(1, examples=2)]
    with pytest.raises(FieldError, match="lot of 3"):
        federation("none", two, rate=0.5, noise_multiplier=1.0)
    federation("none", two, rate=0.5, noise_multiplier=1.0, relation="add/remove")
    with pytest.raises(FieldError, match="BatchNorm1d"):
        Federation(
            model=nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
            clients=silos(),
            method=build("record", examples=6, noise_multiplier=1.0),
            shared=Shared(buffers="keep"),
        )


def test_two_relations_of_one_run_stand_side_by_side_and_are_never_added():
    from fedveil.accounting import total

    record = federation("none").run(1).guarantee
    method = build("global", FedAvg(), noise_multiplier=1.0)
    client = (
        Federation(model=nn.Linear(8, 2), clients=silos(), method=method, seed=1).run(1).guarantee
    )
    assert (record.unit, client.unit) == ("record", "client")
    with pytest.raises(FieldError, match="unit"):
        total([record, client])


@pytest.mark.parametrize("method", ["none", "trusted"])
def test_a_resumed_silo_draws_the_same_bits_or_pays_again(method):
    whole = federation(method)
    whole.run(3)
    again = federation(method)
    again.run(3)
    assert torch.equal(whole.models, again.models)
    fed = federation(method)
    fed.source = fed.parties.source = SecureSource()
    fed.parties.resume({})
    first = fed.party(0).training_source(1)
    assert not torch.equal(first.normal(4), fed.party(0).training_source(1).normal(4))


# The game: one record more or less in one silo, the strongest adversary sees all silos' data but that record.
RUNS = 600


def world(method, with_record, source, shares=0):
    """Scores [RUNS]: what one silo's step releases along the record's direction, plus shares of other silos."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    x = torch.ones(3 + with_record, 1, dtype=torch.float64)
    y = torch.tensor([0.0, 0.0, 0.0, 50.0][: 3 + with_record], dtype=torch.float64)
    trainer = PrivateTrainer(
        model, Layout.from_module(model), LocalTraining(lr=1.0, loss="mse"), method.noisy_steps
    )
    sources = [source.child(with_record, run) for run in range(RUNS)]
    starts = torch.zeros(RUNS, 1, dtype=torch.float64)
    found = trainer.train_noisily(starts, [ClientData(x, y)] * RUNS, [(0,)] * RUNS, sources)
    share = method.noisy_steps.deviation / method.noisy_steps.denominator
    others = source.child("others", with_record).normal(RUNS * max(shares, 1)).view(RUNS, -1).sum(1)
    return np.array([float(f.model) for f in found]) + (share * others.numpy() if shares else 0.0)


def played(method, shares=0):
    source = ReproducibleSource(0)
    return bound(world(method, 1, source, shares), world(method, 0, source, shares))


def test_one_silos_release_keeps_its_promise():
    method = RecordDP(examples=4, noise_multiplier=0.8, relation="add/remove", clip=0.3)
    claimed = method.quote(opened(), method.init()).guarantee.mu
    result = played(method)
    assert 0.3 * claimed < result.mu_lower <= claimed == 1.25
    half = RecordDP(examples=4, noise_multiplier=0.4, relation="add/remove", clip=0.3)
    assert played(half).mu_lower > claimed  # the game would have found half of the noise


@pytest.mark.few(0)
def test_a_sum_keeps_its_promise_against_a_curious_silo_and_a_single_share_does_not():
    method = RecordDP(
        sum="trusted", examples=4, noise_multiplier=0.8, relation="add/remove", clip=0.3, silos=4
    )
    claimed = method.quote(opened(), method.init()).guarantee.mu
    sum_without_the_curious = played(
        method, shares=2
    )  # 4 silos: the record's own, two others, and the curious one
    assert 0.3 * claimed < sum_without_the_curious.mu_lower <= claimed
    assert played(method).mu_lower > claimed  # whoever sees a single share is trusted


@pytest.mark.few(0)
def test_a_sampled_release_keeps_its_promise():
    method = RecordDP(examples=4, noise_multiplier=0.5, relation="add/remove", clip=0.3, rate=0.5)
    guarantee = method.quote(opened(), method.init()).guarantee
    source = ReproducibleSource(1)
    first, second = (world(method, w, source) for w in (0, 1))
    threshold = (
        method.noisy_steps.deviation / method.noisy_steps.denominator * 2.326
    )  # 1% false positives
    alarms, hits = float((first > threshold).mean()), float((second > threshold).mean())
    best = guarantee.meaning().power[0]
    assert alarms < 0.03
    assert best * 0.7 < hits < best * 1.3  # the trade-off curve is met, and not crossed


def test_a_step_filter_is_the_default_of_an_engine():
    assert isinstance(federation("none").parties.budget(0), StepFilter)
    assert federation("none", noise_multiplier=1.0, rounds=None).parties.budget(0) is None


def test_a_silo_with_a_learning_rate_of_its_own_joins_no_sum():
    """Issue 15: the noise of a share is scaled by it. One silo of ten at ten times the others, z = 1: mu is 2.9."""
    rates, n = (
        np.array([10.0] + [1.0] * 8),
        10,
    )  # one of the nine others is curious, and knows its own share
    assert 10 / math.sqrt((rates**2).sum() / (n - 1)) == pytest.approx(2.89, abs=0.01)

    model = nn.Linear(6, 3)
    layout = Layout.from_module(model)
    method = build("record", FedAvg(), sum="trusted", examples=6, noise_multiplier=2.0, silos=3)

    def sent(partition, lr):
        trainer = PrivateTrainer(model, layout, LocalTraining(lr=lr), method.client.noisy_steps)
        source, broadcast = (
            ReproducibleSource(partition),
            Broadcast(models=layout.read(model)[None], public=public),
        )
        idle = trainer.idle(broadcast.models[0], source)
        facts = ClientFacts(broadcast=broadcast, layout=layout, noised=idle.noised)
        return method.client.protect(
            (Release("model", idle.model),), facts, method.client.init(), source
        ).releases

    public = PublicFacts(round=1, rounds=1, cohort=3, dimension=layout.size)
    broadcast = Broadcast(models=layout.read(model)[None], public=public)
    for rate, alike in ((0.5, True), (5.0, False)):
        server = ServerParty(method, layout, Ledger("run", "server"), ReproducibleSource(0))
        replies = {p: sent(p, rate if p == 2 else 0.5) for p in range(3)}
        if alike:
            server.combine(broadcast, RoundAnswers(replies))
        else:
            with pytest.raises(NoReplyError, match="lr"):
                server.combine(broadcast, RoundAnswers(replies))
            assert not server.ledger.entries


def test_a_parameter_without_axes_is_trained_like_any_other():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.by = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return super().forward(x) * self.by

    model, steps = (
        Scaled(),
        build("record", noise_multiplier=1.0, clip=1.0, examples=8, rounds=1).client.noisy_steps,
    )
    trainer = PrivateTrainer(model, Layout.from_module(model), LocalTraining(lr=0.1), steps)
    client = ClientData(torch.randn(8, 4), torch.arange(8) % 2)
    start = trainer.layout.read(model)[None]
    [trained] = trainer.train_noisily(start, [client], [(0, 1, 0)], [ReproducibleSource(0)])
    assert trained.failure is None
    assert trained.loss > 0
