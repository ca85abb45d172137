"""The secure sum under Flower: embedded's bits, sites that go missing, and what a node refuses."""

import hashlib
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import fedveil as fv
from federation_kit import grouped
from fedveil.accounting import (
    Entry,
    Filter,
    Ledger,
    ParticipationFilter,
    Receipt,
    Release,
    SumPolicy,
    digest,
)
from fedveil.accounting.ledger import nothing
from fedveil.aggregation import FedAvgM
from fedveil.engines.flower import roster
from fedveil.engines.flower.grid import message_identity
from fedveil.engines.flower.mod import CLIENT_FAILED, read_settings
from fedveil.engines.flower.records import read_share, write_broadcast
from fedveil.engines.server import ServerParty
from fedveil.engines.site_keys import bind_key, make_key, read_key
from fedveil.errors import BudgetError, FieldError, NoReplyError
from fedveil.flower import (
    FedVeilStrategy,
    FlowerFederation,
    InProcessGrid,
    privacy_mod,
    run_in_process,
    to_arrays,
)
from fedveil.learning import LocalTraining, PrivateTrainer
from fedveil.mechanisms import source_of
from fedveil.methods import build
from fedveil.methods.publishing import Validation
from fedveil.secure import Site, SiteKey
from site_kit import LAYOUT, Nodes, ProcessGrid, client_app, method, network, set_up, silo, spent

pytestmark = pytest.mark.flower
D = LAYOUT.size


def arguments(n=4, unit="record", **values):
    own = {"examples": 6}
    if unit == "person":
        own = {"unit": "person", "people": 3, "records_per_person": 2}
    shared = {
        **own,
        "sum": "secure",
        "noise_multiplier": 2.0,
        "clip": 0.5,
        "least_sites": 3,
        "rounds": 3,
    }
    built = build("record", FedAvgM(momentum=0.5), **{**shared, **values})
    clients = [silo(i) for i in range(n)]
    return {
        "model": network(),
        "clients": clients,
        "method": built,
        "local": LocalTraining(lr=0.5),
        "seed": 1,
    }


FORTY = [pytest.param(40, unit, marks=pytest.mark.slow) for unit in ("record", "person")]


@pytest.mark.few(2)
@pytest.mark.parametrize(("n", "unit"), [(3, "record"), (3, "person"), (11, "person"), *FORTY])
def test_same_bits_and_ledgers_as_embedded(n, unit):
    embedded = fv.Federation(**arguments(n, unit))
    expected = embedded.run(3)
    found = FlowerFederation(shuffle=5, **arguments(n, unit)).run(3)
    assert torch.equal(found.models, expected.models)
    assert found.guarantees == expected.guarantees
    assert (found.guarantee.unit, found.guarantee.trust) == (unit, "secure sum")
    assert not any(r.zeroed for r in found.rounds)


@pytest.mark.few(2)
@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize(
    "budget", [lambda: ParticipationFilter(1), lambda: Filter(epsilon=2.5, delta=1e-5)]
)
def test_a_site_whose_filter_is_full_leaves_as_it_does_embedded_and_is_asked_no_more(unit, budget):
    given = {
        **arguments(4, unit, retries=1),
        "client_budgets": lambda p: budget() if p == 3 else None,
    }
    models = []

    def ran(federation):
        return federation.run(3, lambda record: models.append(federation.models.clone()))

    expected, found = (
        ran(fv.Federation(**grouped(given))),
        ran(FlowerFederation(shuffle=5, **grouped(given))),
    )
    assert torch.equal(
        models[1], models[4]
    )  # after the round that it left; the third is another question
    assert (
        [r.round.used for r in found.rounds]
        == [r.round.used for r in expected.rounds]
        == [(0, 1, 2, 3), (0, 1, 2), (0, 1, 2)]
    )
    assert all(set(r.round.refused) == {3} for r in found.rounds[1:])
    assert found.guarantee.mu == pytest.approx(
        4**0.5 / 2
    )  # of three rounds, and the question that it left


@pytest.mark.parametrize("full", [(2, 3), (0, 1, 2, 3)])
def test_a_sum_of_too_few_because_budgets_are_spent_ends_the_run_with_the_last_model_as_it_does_embedded(
    full,
):
    given = {
        **arguments(4, retries=1),
        "client_budgets": lambda p: ParticipationFilter(1) if p in full else None,
    }
    expected, found = (
        fv.Federation(**grouped(given)).run(3),
        FlowerFederation(**grouped(given)).run(3),
    )
    assert len(found.rounds) == len(expected.rounds) == 1
    assert found.stopped
    assert expected.stopped
    assert torch.equal(found.models, expected.models)


@pytest.mark.parametrize(
    ("declined", "asked", "ends"),
    [
        ((5,), (0, 1, 2), NoReplyError),
        ((2,), (0, 1, 2), BudgetError),
        ((2,), (0, 2, 3), NoReplyError),
    ],
)
def test_only_sites_that_are_asked_and_would_have_been_enough_end_a_run(declined, asked, ends):
    """Of those asked 0 and 1 are connected; who declined in another round's cohort is not missed in this one."""
    server = SimpleNamespace(method=method(), layout=LAYOUT)
    nodes = roster.Nodes(server, SimpleNamespace(nodes={0: 10, 1: 11}), 3)
    nodes._declined = dict.fromkeys(declined, "its budget is used up")
    with pytest.raises(ends):
        nodes.reach(2, asked)


PERSON = {
    "unit": "person",
    "examples": None,
    "people": 3,
    "records_per_person": 2,
}  # a release has mu = 1 / z = .5


@pytest.mark.parametrize(
    ("values", "total", "answers"),
    [
        (PERSON, "person_mu = 0.75", 2),  # .5, .71, and .87
        (PERSON, "person_epsilon = 3.0", 2),  # 2.0, 2.95 and 3.7 at delta 1e-5
        (
            PERSON,
            "person_mu = 9.0\nrecord_mu = 1.4",
            1,
        ),  # a record of hers who stays moves a sum by up to twice as much
        (PERSON, "person_mu = 9.0\nparticipations = 2", 2),
        (PERSON, "record_mu = 9.0\nparticipations = 2", 0),  # no total for persons
        ({}, "record_mu = 0.75", 2),
        ({}, "person_mu = 9.0", 0),  # nothing is promised to persons
    ],
)
def test_a_nodes_total_holds_for_persons_and_for_every_question(tmp_path, values, total, answers):
    nodes = Nodes(tmp_path, **values)
    policy = tmp_path / "site0" / "policy.toml"
    policy.write_text(
        policy.read_text()
        .replace("total = { record_mu = 5.0, person_mu = 5.0 }", "")
        .replace("[sum]", f"[total]\n{total}\n[sum]")
    )
    seen = [nodes.ask(0, nodes.opened(attempt=attempt)) for attempt in range(3)]
    assert [reply == REFUSAL for reply in seen] == [number >= answers for number in range(3)]
    assert len(spent(tmp_path, 0)) == answers == len(nodes.trained)


# ---- sites as processes of their own


def served(grid, rounds=2, values=None, done=0, **options):
    """Run the strategy over a grid, as if the first models had been released by rounds that are done; returns it."""
    ledger, first = (
        Ledger("memory", "server"),
        digest((Release("model", LAYOUT.read(network())[None]),)),
    )
    receipt = Receipt(run="memory", round=0, asked=0)
    for number in range(1, done + 1):  # of sums that were none of the sites' own
        others = tuple(sorted(f"{number:02d}{site}" + 61 * "0" for site in range(3)))
        receipt = Receipt(
            run="memory",
            round=number,
            asked=3,
            facts=first,
            opened=first,
            model=first,
            previous=receipt.root,
            leaves=others,
        )
        entry = Entry((number, "combine"), 0, first, nothing("local"), receipt=receipt.values())
        ledger.commit(entry)
    server = ServerParty(method(**(values or {})), LAYOUT, ledger, source_of(options.get("seed")))
    strategy = FedVeilStrategy(server, rounds=rounds, done=done, **options)
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy.start(grid, to_arrays(LAYOUT, LAYOUT.read(network())))

    run_in_process(server, grid=grid)
    return strategy


def plain_sum(broadcast, keys, partitions, **values):
    """The integer sum of what the sites trained, noise included, computed without a mask by whoever has all keys."""
    own = method(**values).client
    context = own.question(broadcast, LAYOUT)
    trainer = PrivateTrainer(network(), LAYOUT, LocalTraining(lr=0.5), own.noisy_steps)
    total = torch.zeros(D, dtype=torch.int64)
    for p in partitions:
        source = keys[p].source(context.digest)
        [made] = trainer.train_noisily(broadcast.models, [silo(p)], [(0,)], [source.child("train")])
        mark = int.from_bytes(hashlib.sha256(made.total.numpy().tobytes()).digest(), "big")
        total += made.total + context.terms.noise.sample(D, source=source.child("noise", mark))
    return (total.double() * context.terms.grid / (own.denominator * len(partitions))).float()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    configs = set_up(folder, 4)
    grid = ProcessGrid(configs)
    yield folder, configs, grid
    grid.close()


def test_four_processes_with_key_files_make_the_plain_integer_sum_to_the_bit(processes):
    folder, _, grid = processes
    strategy = served(grid, rounds=1, seed=None)
    keys = {i: read_key(folder / f"site{i}" / "key") for i in range(4)}
    step = plain_sum(strategy.broadcast, keys, range(4))
    assert torch.equal(
        strategy.models[0], strategy.broadcast.models[0] - (0.5 * step.double()).float()
    )
    assert strategy.guarantee.trust == "secure sum"
    for answer in grid.seen:
        assert set(answer) <= {"fedveil.share", "fedveil.reply", "metrics"}
        assert dict(answer.get("metrics", {})) in ({}, {"num-examples": 1})
    for i in range(4):
        assert len(spent(folder, i)) == 1


@pytest.mark.parametrize("n", [3, 11, pytest.param(40, marks=pytest.mark.slow)])
def test_sites_with_key_files_make_the_plain_integer_sum_of_persons_to_the_bit(tmp_path, n):
    """Three processes; more sites are nodes of one process, each with key, policy, ledger and head of its own."""
    configs = set_up(tmp_path, n)
    apart = n == 3
    grid = (
        ProcessGrid(configs, **PERSON)
        if apart
        else InProcessGrid(client_app(method=method(**PERSON)), configs)
    )
    strategy = served(grid, rounds=1, values=PERSON)
    keys = {i: read_key(tmp_path / f"site{i}" / "key") for i in range(n)}
    step = plain_sum(strategy.broadcast, keys, range(n), **PERSON)
    assert torch.equal(
        strategy.models[0], strategy.broadcast.models[0] - (0.5 * step.double()).float()
    )
    assert (strategy.guarantee.unit, strategy.guarantee.mu) == ("person", 0.5)
    assert [len(spent(tmp_path, i)) for i in range(n)] == [1] * n
    grid.close() if apart else None


def test_a_process_that_is_gone_is_left_out_and_the_others_answer_and_pay_anew(processes):
    folder, _, grid = processes
    before = [len(spent(folder, i)) for i in range(4)]
    grid.gone = {3: 1}
    strategy = served(grid, rounds=1)
    [log] = strategy.history
    assert (log.used, set(log.failed)) == ((0, 1, 2), {3})
    keys = {i: read_key(folder / f"site{i}" / "key") for i in range(4)}
    step = plain_sum(strategy.broadcast, keys, range(3))
    assert torch.equal(
        strategy.models[0], strategy.broadcast.models[0] - (0.5 * step.double()).float()
    )
    assert [len(spent(folder, i)) - b for i, b in enumerate(before)] == [2, 2, 2, 0]
    assert strategy.guarantee.mu == pytest.approx(2**0.5 / 2)  # two full releases of z = 2


def test_sites_without_which_there_is_no_sum_are_asked_anew_when_they_are_back(processes):
    folder, _, grid = processes
    before = [len(spent(folder, i)) for i in range(4)]
    grid.gone = {2: 1, 3: 2}
    strategy = served(
        grid, rounds=2, done=1
    )  # all are asked, all again, and then those who are there
    [log] = strategy.history
    assert (log.used, set(log.failed), strategy.broadcast.public.attempt) == ((0, 1, 2), {3}, 2)
    assert [len(spent(folder, i)) - b for i, b in enumerate(before)] == [3, 3, 2, 0]


def test_a_site_that_failed_is_not_asked_anew_at_the_cost_of_the_others(processes):
    folder, _, grid = processes
    before = [len(spent(folder, i)) for i in range(4)]
    heads = [folder / f"site{i}" / "head" for i in (2, 3)]
    for head in heads:
        head.rename(head.with_name("away"))
    with pytest.raises(NoReplyError):
        served(grid, rounds=3, done=2)
    for head in heads:
        head.with_name("away").rename(head)
    assert [len(spent(folder, i)) - b for i, b in enumerate(before)] == [1, 1, 0, 0]


# ---- nodes that keep files, in one process


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path)


REFUSAL = (901, "the site takes no part in this sum")


def test_a_site_refuses_in_one_word_before_its_data_are_touched(nodes):
    stranger = SiteKey(bytes(range(64))).public
    for asked in (
        nodes.opened(nodes.keys[1:]),  # without it
        nodes.opened(nodes.keys[:2]),  # below the least roster
        nodes.opened([*nodes.keys[:3], stranger]),  # a swapped key
        nodes.opened([*nodes.keys, stranger]),  # grown
        nodes.opened([nodes.keys[0], *nodes.keys[:3]]),  # a key twice
    ):
        assert nodes.ask(0, asked) == REFUSAL
    for lie in (
        {"attempt": -1},
        {"attempt": 2**63},
        {"roster": [5_000_000_000]},
        {"roster": 7},
        {"terms": 1},
    ):
        assert nodes.ask(0, nodes.opened(), **lie) in ((902, CLIENT_FAILED), REFUSAL)
    assert not nodes.trained
    assert not spent(nodes.folder, 0)


def test_attempts_end_where_the_policy_says(nodes):
    answers = [nodes.ask(0, nodes.opened(attempt=a)) for a in (5, 0, 9, 1, 2)]
    assert [a == REFUSAL for a in answers] == [False, False, False, True, True]
    assert len(spent(nodes.folder, 0)) == 3


def test_runs_under_other_names_get_no_more_answers_than_the_total_holds(tmp_path):
    """Attempts are counted by round and run; over all runs each answer is charged, with a policy's total or without."""
    nodes = Nodes(tmp_path)
    policy = tmp_path / "site0" / "policy.toml"
    policy.write_text(
        policy.read_text().replace("record_mu = 5.0", "record_mu = 1.25")
    )  # .5 each, and so six of them
    answers = []
    for number in range(12):
        asked = nodes.opened(attempt=number % 2, run=f"run {number}")
        answers.append(nodes.ask(0, asked, run=100 + number // 2) != REFUSAL)
    assert answers == [True] * 6 + [False] * 6
    assert len(spent(tmp_path, 0)) == len(nodes.trained) == 6
    again = Nodes(
        tmp_path / "planned"
    )  # three rounds, and no total: what is planned is all that leaves
    app = client_app(
        again.trained,
        ledger=again.configs[1]["privacy.ledger"],
        head=again.configs[1]["privacy.head"],
        site=site_of(again, 1),
    )
    again.app, again.configs[1] = app, {"partition-id": 1}
    answers = [again.ask(1, again.opened(run=f"run {i}"), run=200 + i) != REFUSAL for i in range(5)]
    assert answers == [True] * 3 + [False] * 2


def site_of(nodes, i):
    key = read_key(nodes.folder / f"site{i}" / "key")
    return Site(key, SumPolicy(peers=[k.hex() for k in nodes.keys if k != key.public]))


def test_the_same_question_gives_the_same_bits_or_nothing(nodes):
    asked = nodes.opened()
    first = nodes.ask(0, asked)
    again = nodes.ask(0, asked)
    assert torch.equal(*(read_share(found)[0].value for found in (first, again)))
    nodes.contexts.clear()  # the node was started again, and what it sent is gone
    assert nodes.ask(0, asked) == (902, "the client failed; its own log says why")
    assert nodes.ask(0, asked, run=2) == REFUSAL  # another run of Flower's, the same question
    assert len(spent(nodes.folder, 0)) == 1


WRONG = {  # what is wrong at a site, as it names it in its own log
    "no key": "keys new",
    "open key": "chmod 600",
    "damaged key": "agree on a new key",
    "no peers": "policy.sum",
    "a peer without a key": "fedveil keys show",
    "a key twice": "each once",
    "own key as a peer": "name the others alone",
    "two sites": "least_sites",
    "one peer": "at least 2 other sites",
    "larger rosters": "least_sites",
    "more colluding": "colluding",
    "larger rosters than there are peers": "contract names 4",
    "more colluding than there are peers": "contract names 4",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_site_that_is_not_set_up_for_a_sum_says_how_to_in_its_own_log_alone(nodes, wrong, caplog):
    caplog.set_level("ERROR", "flwr")
    config, own = nodes.configs[0], nodes.folder / "site0"
    key, policy = own / "key", own / "policy.toml"
    text, publics = policy.read_text(), [k.hex() for k in nodes.keys]
    if wrong == "no key":
        del config["privacy.key"]
    elif wrong == "open key":
        key.chmod(0o644)
    elif wrong == "damaged key":
        key.write_text("fedveil site key 1\n")
    edits = {
        "a peer without a key": (publics[1], ""),
        "a key twice": (publics[1], publics[2]),
        "own key as a peer": (publics[1], publics[0]),
        "one peer": (f"'{publics[1]}', '{publics[2]}', ", ""),
        "two sites": ("least_sites = 3", "least_sites = 2"),
        "larger rosters": ("least_sites = 3", "least_sites = 4"),
        "more colluding": ("colluding = 1", "colluding = 2"),
        "larger rosters than there are peers": ("least_sites = 3", "least_sites = 5"),
        "more colluding than there are peers": ("colluding = 1", "colluding = 3"),
    }
    if wrong == "no peers":
        policy.write_text(text.partition("[sum]")[0])
    elif wrong in edits:
        policy.write_text(text.replace(*edits[wrong]))
    assert nodes.ask(0, nodes.opened()) in ((902, CLIENT_FAILED), REFUSAL)
    assert not nodes.trained
    assert not spent(nodes.folder, 0)
    assert WRONG[wrong] in caplog.text


@pytest.mark.parametrize(
    "other", [{"clip": 0.6}, {"noise_multiplier": 1.0}, {"least_sites": 4}, {"examples": 5}]
)
def test_sites_that_disagree_on_terms_train_nothing(nodes, other, caplog):
    caplog.set_level("ERROR", "flwr")
    asked = nodes.opened(terms=method(**other).client.agreed(D))
    assert nodes.ask(0, asked) == REFUSAL
    assert not nodes.trained
    assert not spent(nodes.folder, 0)
    assert next(iter(other)).replace("examples", "denominator") in caplog.text


def test_a_layout_that_changed_is_refused_before_data(nodes):
    content = nodes.opened(model=torch.zeros(D))
    assert nodes.ask(
        0,
        replace(content, models=torch.zeros(1, D), public=replace(content.public, dimension=D + 1)),
    ) == (
        902,
        CLIENT_FAILED,
    )
    assert not nodes.trained


def test_a_grid_that_would_overflow_is_refused_before_there_is_a_run():
    with pytest.raises(FieldError, match="overflow"):
        method(noise_multiplier=1e-9)


@pytest.mark.parametrize("many", [{"clients": 2}, {"clients": 9, "clients_per_round": 2}])
def test_a_server_that_plans_too_few_sites_does_not_begin(many):
    with pytest.raises(FieldError) as refused:
        FedVeilStrategy(method(), LAYOUT, rounds=1, **many)
    assert refused.value.field == list(many)[-1]


def test_a_node_that_only_validates_is_in_no_sum_and_needs_no_key(nodes):
    app = ClientApp(mods=[privacy_mod(LAYOUT, nodes.method, validation=Validation())])

    @app.train()
    def train(message, context):
        raise AssertionError

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=message)

    config = {
        k: v for k, v in nodes.configs[0].items() if k not in ("privacy.key", "privacy.policy")
    }
    with message_identity():
        message = Message(write_broadcast(nodes.opened(), LAYOUT), 7, MessageType.EVALUATE)
        reply = app(message, Context(1, 7, config, RecordDict(), {}))
    assert not reply.has_error()
    assert len(spent(nodes.folder, 0)) == 1  # of the loss


def test_a_node_that_validates_without_a_policy_sends_so_many_losses_over_all_runs(nodes):
    """Whoever is the server begins the runs."""
    app = ClientApp(mods=[privacy_mod(LAYOUT, nodes.method, validation=Validation(releases=2))])
    app.train()(lambda message, context: None)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=message)

    config, sent = (
        {k: v for k, v in nodes.configs[0].items() if k not in ("privacy.key", "privacy.policy")},
        [],
    )
    with message_identity():
        for run in (1, 2, 3, 4):
            message = Message(write_broadcast(nodes.opened(), LAYOUT), 7, MessageType.EVALUATE)
            sent.append(not app(message, Context(run, 7, config, RecordDict(), {})).has_error())
    assert sent == [True, True, False, False]
    assert len(spent(nodes.folder, 0)) == 2


def test_a_run_cannot_name_the_key():
    config = {"privacy.key": "/nowhere", "privacy.method": "record", "privacy.sum": "secure"}
    context = Context(1, 7, {"partition-id": 0}, RecordDict(), config)
    with pytest.raises(FieldError, match=r"privacy\.key"):
        read_settings(context, None, ledger="run")


class Died(Exception):
    """The process ends."""


def test_a_resumed_run_ends_in_the_same_bits():
    whole = FlowerFederation(**arguments(3)).run(3)
    books = {}

    def ledgers(party):
        return books.setdefault(party, Ledger("memory", party)), lambda line: None

    first, second = (
        FlowerFederation(**grouped(arguments(3) | {"ledgers": ledgers})) for _ in range(2)
    )

    def die(record):
        raise Died

    with pytest.raises(Died):
        first.run(3, die)
    assert first.round == 1
    second.restore(first.models, 1, first.server.state, first.client_states())
    assert torch.equal(second.run(3).models, whole.models)


@pytest.mark.parametrize("left", [1, 5, 30, -1])
def test_a_key_whose_process_died_while_it_was_bound_is_bound_by_the_next(tmp_path, left):
    """Half a line was written: nothing was answered from any ledger."""
    make_key(tmp_path / "key")
    before = (tmp_path / "key").read_bytes()
    bind_key(tmp_path / "key", "a" * 64)
    line = (tmp_path / "key").read_bytes()[len(before) :]
    (tmp_path / "key").write_bytes(before + line[:left])
    assert read_key(tmp_path / "key")
    with pytest.raises(FieldError, match="another ledger") if left == -1 else nullcontext():
        bind_key(tmp_path / "key", "b" * 64)
    read_key(tmp_path / "key")
    with pytest.raises(FieldError, match="another ledger"):
        bind_key(tmp_path / "key", "c" * 64)
