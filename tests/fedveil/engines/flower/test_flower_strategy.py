"""The strategy: fails closed, maps nodes to partitions, goes on when clients fail."""

import importlib
import logging
import subprocess
import sys

import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import fedveil as fv
from fedveil.accounting import Filter
from fedveil.aggregation import FLTrust
from fedveil.engines import memory
from fedveil.engines.flower.records import write_mark
from fedveil.engines.server import ServerParty
from fedveil.errors import FedVeilError, FieldError, NoReplyError
from fedveil.flower import (
    FACTS,
    FedVeilStrategy,
    FlowerFederation,
    InProcessGrid,
    ServerFolder,
    UnprotectedError,
    from_arrays,
    learner_client_app,
    read_broadcast,
    run_in_process,
    to_arrays,
)
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import build
from fedveil_lab.runs import Summary
from flower_cases import CLIENTS, METHODS, arguments, digits, observe

pytestmark = pytest.mark.flower
LAYOUT = Layout.from_shapes({"weight": (6,)})
VANILLA = build("vanilla")


def run(strategy, client_app, partitions=3, start=None, evaluate_fn=None, **options):
    results = []
    server = ServerApp()

    @server.main()
    def main(grid, context):
        arrays = to_arrays(LAYOUT, torch.zeros(6) if start is None else start)
        results.append(strategy.start(grid, arrays, evaluate_fn=evaluate_fn))

    run_in_process(server, client_app, partitions, **options)
    return results[0]


def app(change=lambda reply, partition: None, mods=None, method=VANILLA):
    """Each client adds 1 + its partition."""
    client = ClientApp(
        mods=[fv.flower.privacy_mod(LAYOUT, method, ledger="run")] if mods is None else mods
    )

    @client.train()
    def train(message, context):
        partition = context.node_config["partition-id"]
        vector = from_arrays(LAYOUT, message.content["arrays"]) + 1 + partition
        content = RecordDict(
            {"arrays": to_arrays(LAYOUT, vector), "metrics": MetricRecord({"num-examples": 1})}
        )
        change(content, partition)
        return Message(content, reply_to=message)

    @client.evaluate()
    def evaluate(message, context):
        partition = context.node_config["partition-id"]
        loss = float(from_arrays(LAYOUT, message.content["arrays"])[0]) + partition
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 1 + partition, "loss": loss})}),
            reply_to=message,
        )

    return client


def outermost(change):
    """A mod that tampers with what has been protected."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if "arrays" in message.content:
            change(reply.content, context.node_config["partition-id"])
        return reply

    return [mod, fv.flower.privacy_mod(LAYOUT, VANILLA)]


def test_fltrust_follows_the_update_that_the_server_trained_itself():
    method = build("vanilla", FLTrust())
    told = []

    def tutor(model, round_):
        told.append(round_)
        return model + torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0, 0.0])

    def turned(reply, partition):  # of three clients the last one sends the opposite
        if partition == 2:
            reply["arrays"] = to_arrays(LAYOUT, -from_arrays(LAYOUT, reply["arrays"]))

    server = ServerParty(method, LAYOUT, source=ReproducibleSource(0), tutor=tutor)
    strategy = FedVeilStrategy(server, rounds=1, clients=3, seed=0)
    run(strategy, app(turned, method=method))
    assert told == [1]
    torch.testing.assert_close(
        strategy.models[0], torch.full((6,), 2 / 6**0.5)
    )  # the honest direction, its own length
    with pytest.raises(FieldError, match="public_data"):
        FedVeilStrategy(method, LAYOUT, rounds=1)


def test_what_a_given_server_brings_itself_is_not_given_beside_it(tmp_path):
    server, folder = ServerParty("vanilla", LAYOUT), ServerFolder(tmp_path / "o")
    assert server._source.deployable
    for name, value in {"layout": LAYOUT, "budget": Filter(1.0, 1e-5), "folder": folder}.items():
        with pytest.raises(FieldError, match=name):
            FedVeilStrategy(server, rounds=1, **{name: value})
    assert not (tmp_path / "o").exists()
    with pytest.raises(FieldError, match="layout"):
        FedVeilStrategy("vanilla", rounds=1)
    assert FedVeilStrategy(server, rounds=1).server is server
    source = ReproducibleSource(0)
    ledger, store = folder.open(VANILLA, LAYOUT, 1, source, "flower")
    kept = ServerParty(
        VANILLA, LAYOUT, ledger, source, store=store, tutor=lambda model, number: model
    )
    run(FedVeilStrategy(kept, rounds=1, folder=folder, seed=0), app())
    assert len((tmp_path / "o" / "ledger" / "server.jsonl").read_text().splitlines()) == 2
    assert Summary.read(tmp_path / "o").values["rounds"] == 1


def test_rounds_metrics_and_central_evaluation():
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=2)
    seen = []

    def evaluate_fn(round_, arrays):
        seen.append((round_, float(from_arrays(LAYOUT, arrays)[0])))
        return MetricRecord({"accuracy": 0.5})

    result = run(strategy, app(), evaluate_fn=evaluate_fn)
    assert torch.equal(from_arrays(LAYOUT, result.arrays), torch.full((6,), 4.0))
    assert torch.equal(strategy.models, torch.full((1, 6), 4.0))
    assert [r.number for r in strategy.history] == [1, 2]
    assert seen == [(0, 0.0), (1, 2.0), (2, 4.0)]
    assert result.evaluate_metrics_serverapp[2]["accuracy"] == 0.5
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(
        2 + (0 * 1 + 1 * 2 + 2 * 3) / 6
    )
    assert result.train_metrics_clientapp[1]["used"] == 3


def test_clients_that_cannot_evaluate_are_asked_once_and_told_in_a_line(caplog):
    client = ClientApp(mods=[fv.flower.privacy_mod(LAYOUT, fv.GlobalDP(noise_multiplier=1.0))])
    client.train()(lambda message, context: Message(message.content, reply_to=message))
    asked = []

    class Counting(InProcessGrid):
        def ask_node(self, message):
            asked.append(message.metadata.message_type)
            return super().ask_node(message)

    with caplog.at_level(logging.INFO, logger="flwr"):
        nodes = [{"partition-id": i} for i in range(3)]
        run(
            FedVeilStrategy(fv.GlobalDP(noise_multiplier=1.0), LAYOUT, rounds=4),
            client,
            grid=Counting(client, nodes),
        )
    assert asked.count("evaluate") == 3
    [line] = [
        r.getMessage()
        for r in caplog.records
        if "evaluat" in r.getMessage() and "No evaluate" in r.getMessage()
    ]
    assert "none is asked again" in line


def test_nobody_is_asked_to_evaluate_under_local_trust():
    strategy = FedVeilStrategy(build("group", hypotheses=1), LAYOUT, rounds=1)
    result = run(strategy, app(method=build("group", hypotheses=1)))
    assert not result.evaluate_metrics_clientapp


@pytest.mark.parametrize("name", METHODS)
def test_clients_without_the_mod_end_the_run_loudly(name):
    federation = FlowerFederation(**arguments(name))
    layout, bare = federation.layout, ClientApp()

    @bare.train()
    def train(message, context):
        models = read_broadcast(message.content, layout).models
        return Message(RecordDict({"arrays": to_arrays(layout, models[0] + 1)}), reply_to=message)

    federation.courier.grid._app = bare
    with pytest.raises(UnprotectedError, match="privacy_mod"):
        federation.run(1)


def test_one_client_without_the_mod_never_trains_and_ends_nothing():
    trained = []

    def tolerant(message, context):
        trained.append("arrays" in message.content)
        return Message(RecordDict({"arrays": to_arrays(LAYOUT, torch.ones(6))}), reply_to=message)

    bare = ClientApp()
    bare.train()(tolerant)
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=2, clients=3)
    run(strategy, {0: app(), 1: bare, 2: app()})
    assert [r.used for r in strategy.history] == [(0, 2)] * 2
    assert [set(r.failed) for r in strategy.history] == [{1}] * 2
    assert trained == [False, False]  # it was greeted, never sent a model


def lose(content, partition):
    del content["fedveil.reply"]


def keep(content, partition):
    content[FACTS] = ConfigRecord({"chosen": 0})


def claim(content, partition):
    content["fedveil.reply"] = write_mark(0, VANILLA.client, True)


def misname(content, partition):
    content["fedveil.reply"] = ConfigRecord(
        {"partition-id": partition, "side": "GroupPrivacy", "trust": "local"}
    )


def unnumber(content, partition):
    content["fedveil.reply"] = ConfigRecord({**content["fedveil.reply"], "partition-id": "one"})


def shrink(content, partition):
    content["arrays"] = ArrayRecord([torch.ones(2).numpy()])


def poison(content, partition):
    content["arrays"] = to_arrays(LAYOUT, torch.full((6,), torch.nan))


def crowd(content, partition):
    content["metrics"] = MetricRecord({"num-examples": 1, **{f"m{i}": 1.0 for i in range(10_000)}})


def shout(content, partition):
    content["metrics"] = MetricRecord({"num-examples": 1, "\x1b[2J" * 30: 1.0})


def overcount(content, partition):
    content["metrics"] = MetricRecord({"num-examples": 10**300})


HOSTILE = [lose, keep, claim, misname, unnumber, shrink, poison, crowd, shout, overcount]


@pytest.mark.parametrize("change", HOSTILE)
def test_what_one_client_sends_is_its_failure_and_not_the_runs_end(change):
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=2)
    run(strategy, {0: app(), 1: app(mods=outermost(change)), 2: app()})
    for log in strategy.history:
        assert log.used == (0, 2)
        (reason,) = {**log.failed, **log.invalid}.values()
        assert reason.isprintable()
        assert len(reason) < 250


@pytest.mark.parametrize("change", [lose, misname])
def test_a_round_of_nothing_but_unprotected_replies_ends_loudly(change):
    with pytest.raises(NoReplyError, match="no usable reply"):
        run(
            FedVeilStrategy(build("global", noise_multiplier=0.01), LAYOUT, rounds=1),
            app(mods=outermost(change)),
        )


@pytest.mark.parametrize(("free", "fits"), [(527, False), (528, True)])
def test_answers_that_do_not_fit_into_memory_are_refused_before_anybody_trains(
    free, fits, monkeypatch
):
    monkeypatch.setattr(memory, "WORTH_ASKING", 0)
    monkeypatch.setattr(memory, "available", lambda: free)
    trained = []  # models of 24 bytes: three as messages, three as models, room for sixteen
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=1)
    client = app(change=lambda content, partition: trained.append(partition))
    if fits:
        run(strategy, client)
        assert sorted(trained) == [0, 1, 2]
        return
    with pytest.raises(FieldError) as refused:
        run(strategy, client)
    assert (refused.value.field, refused.value.value) == ("clients_per_round", 3)
    assert trained == strategy.history == []


def test_clients_with_another_method_never_train():
    with pytest.raises(UnprotectedError, match="give both the same method"):
        run(FedVeilStrategy(build("sga-ldp"), LAYOUT, rounds=1), app())


BAD_FIGURES = [
    {"num-examples": 10**300, "loss": 1.0},
    {"num-examples": -5, "loss": 1.0},
    {"num-examples": 5, "loss": float("nan")},
    {"num-examples": 5, "loss": float("inf")},
]


@pytest.mark.parametrize("figures", BAD_FIGURES)
def test_evaluate_replies_are_checked_like_others(figures):
    def spoil(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "evaluate":
            reply.content["metrics"] = MetricRecord(figures)
        return reply

    def unmark(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "evaluate":
            del reply.content["fedveil.reply"]
        return reply

    spoiling, unmarked = (
        app(mods=[mod, fv.flower.privacy_mod(LAYOUT, VANILLA)]) for mod in (spoil, unmark)
    )
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=1)
    result = run(strategy, {0: app(), 1: spoiling, 2: unmarked, 3: app()}, partitions=4)
    # the mean model is 2.5; clients 0 and 3 measure 2.5 on one example and 5.5 on four
    assert result.evaluate_metrics_clientapp == {1: {"loss": pytest.approx((2.5 + 4 * 5.5) / 5)}}


def test_error_texts_of_clients_are_bounded_and_plain():
    class Shouting(InProcessGrid):
        def ask_node(self, message):
            reply = super().ask_node(message)
            if self._partitions[message.metadata.dst_node_id] == 1 and "arrays" in message.content:
                return Message(Error(2, "\x1b[2J\n" + "x" * 10**6), reply_to=message)
            return reply

    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=1, evaluate=False)
    run(strategy, None, grid=Shouting(app(), [{"partition-id": i} for i in range(3)]))
    (reason,) = strategy.history[0].failed.values()
    assert reason.isprintable()
    assert "[2J" in reason
    assert len(reason) < 250


@pytest.mark.parametrize("name", ["group", "fedre-normalised"])
def test_facts_never_reach_the_server(name):
    federation = FlowerFederation(**arguments(name))
    _, sent = observe(federation)
    federation.run(2)
    assert len(sent) == 3 * CLIENTS  # the greeting and two rounds
    assert all(set(r.content) <= {"arrays", "metrics", "fedveil.reply"} for r in sent)


class Replaying(InProcessGrid):
    """Delivers partition 1 twice, partition 2 never."""

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if not replies or "arrays" not in replies[0].content:
            return replies
        return [replies[0], replies[1], replies[1]]


def test_two_replies_of_one_partition_are_refused_and_a_missing_one_is_counted():
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=1, evaluate=False, min_clients=1)
    run(strategy, None, grid=Replaying(app(), [{"partition-id": i} for i in range(3)]))
    assert strategy.history[0].used == (0,)
    assert strategy.history[0].failed == {
        1: "sent two replies in one round",
        2: "did not reply in time",
    }


def test_two_nodes_of_one_partition_are_refused():
    class Doubled(InProcessGrid):
        def get_node_ids(self):
            return [*super().get_node_ids(), 5]

        def ask_node(self, message):
            if message.metadata.dst_node_id == 5:
                return Message(
                    RecordDict({"fedveil.reply": write_mark(0, VANILLA.client)}), reply_to=message
                )
            return super().ask_node(message)

    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=1, min_clients=1)
    run(strategy, None, grid=Doubled(app(), [{"partition-id": 0}, {"partition-id": 1}]))
    assert 1 in strategy.history[0].used  # one of the two that claim 0 is heard at the most


class Leaving(InProcessGrid):
    """Partition 1 is gone after the first round, and back under another node id in the third."""

    round = 0

    def get_node_ids(self):
        self.round += 1
        nodes = list(self._partitions)
        if self.round == 3:
            self._partitions[4242] = self._partitions.pop(nodes[1])
            nodes = list(self._partitions)
        return [n for n in nodes if self.round != 2 or self._partitions[n] != 1]


def test_nodes_that_leave_are_counted_and_may_come_back():
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=3, evaluate=False)
    run(strategy, None, grid=Leaving(app(), [{"partition-id": i} for i in range(3)]))
    assert [r.used for r in strategy.history] == [(0, 1, 2), (0, 2), (0, 1, 2)]
    assert strategy.history[1].failed == {1: "is not connected"}


def test_too_few_clients_are_said_and_end_the_wait(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    with pytest.raises(FedVeilError, match="3 of 4 clients"):
        run(FedVeilStrategy(VANILLA, LAYOUT, rounds=1, clients=4, patience=0.01), app())
    assert sum("3 of 4 clients" in record.getMessage() for record in caplog.records) == 1
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=1, clients=2)
    run(strategy, app())  # partition 2 is not planned, and not heard
    assert strategy.history[0].used == (0, 1)


def test_partitions_may_have_any_numbers():
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=1, clients_per_round=2, seed=3)
    run(strategy, None, grid=InProcessGrid(app(), [{"partition-id": p} for p in (40, 7, 12)]))
    assert set(strategy.history[0].used) < {40, 7, 12}
    assert len(strategy.history[0].used) == 2


def test_all_clients_failing_is_an_error_that_keeps_the_last_model():
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=3)
    rounds = []

    def fail_later(content, partition):
        rounds.append(partition)
        if len(rounds) > 3:
            raise RuntimeError("broken")

    with pytest.raises(NoReplyError, match="round 2: no usable reply from 3 clients"):
        run(strategy, app(fail_later))
    assert torch.equal(strategy.models, torch.full((1, 6), 2.0))
    assert len(strategy.history) == 1


def test_wrong_plans_are_refused():
    with pytest.raises(FieldError, match=r"\[k, d\]"):
        FedVeilStrategy(VANILLA, LAYOUT, rounds=1, initial=torch.zeros(2, 6))
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=2)
    with pytest.raises(FieldError, match="num_rounds"):
        strategy.start(None, to_arrays(LAYOUT, torch.zeros(6)), num_rounds=3)
    with pytest.raises(FieldError, match="clients_per_round"):
        run(FedVeilStrategy(VANILLA, LAYOUT, rounds=1, clients_per_round=9), app())
    with pytest.raises(FieldError, match="public_data"):
        FedVeilStrategy(build("fedre"), LAYOUT, rounds=1)
    run(strategy, app())
    with pytest.raises(FieldError, match="has run"):
        run(strategy, app())


@pytest.mark.parametrize(
    ("arrays", "field", "said"),
    [
        ({"0": torch.zeros(6)}, "weight", "named '0'"),
        ({"weight": torch.zeros(5)}, "weight", r"\(5,\)"),
        ({"weight": torch.zeros(6, dtype=torch.float64)}, "weight", "torch.float64"),
    ],
)
def test_first_arrays_of_other_names_shapes_or_wider_types_are_refused(arrays, field, said):
    first = ArrayRecord({name: Array(value.numpy()) for name, value in arrays.items()})
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=1)
    with pytest.raises(FieldError, match=f"{field}.*{said}"):
        strategy.start(InProcessGrid(app(), [{}] * 3), first)


def test_several_hypotheses_stay_on_the_strategy():
    federation = fv.Federation(**arguments("group"))
    method, layout = METHODS["group"], federation.layout
    strategy = FedVeilStrategy(
        method, layout, rounds=2, initial=federation.models, seed=11, clients=CLIENTS
    )
    results, server = [], ServerApp()

    @server.main()
    def main(grid, context):
        results.append(strategy.start(grid, to_arrays(layout, federation.models[0])))

    client = learner_client_app(
        federation.learner, federation.clients, method, seed=11, source=federation.source
    )
    run_in_process(server, client, CLIENTS)
    expected = federation.run(2)
    assert torch.equal(strategy.models, expected.models)
    assert torch.equal(from_arrays(layout, results[0].arrays), expected.models[0])


def test_secure_by_default():
    noisy = build("global", noise_multiplier=1.0)
    client = app(method=noisy)
    runs = [FedVeilStrategy(noisy, LAYOUT, rounds=1) for _ in range(2)]
    for strategy in runs:
        run(strategy, client)
    assert not torch.equal(runs[0].models, runs[1].models)


def test_the_learners_app_evaluates_under_central_trust():
    federation = FlowerFederation(**arguments("vanilla", clients=digits(test=8)))
    strategy = FedVeilStrategy(METHODS["vanilla"], federation.layout, rounds=1, seed=11)
    results, server = [], ServerApp()

    @server.main()
    def main(grid, context):
        results.append(strategy.start(grid, to_arrays(federation.layout, federation.models[0])))

    run_in_process(server, grid=federation.courier.grid)
    expected = fv.Federation(**arguments("vanilla", clients=digits(test=8))).run(1).metrics
    found = results[0].evaluate_metrics_clientapp[1]
    assert found["loss"] == pytest.approx(expected["loss"])
    assert found["accuracy"] == pytest.approx(expected["accuracy"])


def test_flower_is_imported_only_when_asked_for(monkeypatch):
    code = "import sys, fedveil; assert not any(m.split('.')[0] == 'flwr' for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "fedveil.flower")
    with pytest.raises(ImportError, match=r'pip install "fedveil\[flower\]"'):
        importlib.import_module("fedveil.flower")


def test_the_grid_copies_and_turns_exceptions_into_errors():
    client = ClientApp()

    @client.query()
    def query(message, context):
        message.content["a"]["x"] = 5
        if context.node_config["partition-id"] == 1:
            raise ValueError("no")
        context.state["seen"] = ConfigRecord({"n": 1})
        return Message(message.content, reply_to=message)

    got, server = [], ServerApp()

    @server.main()
    def main(grid, context):
        content = RecordDict({"a": ConfigRecord({"x": 1})})
        messages = [Message(content, node, "query") for node in grid.get_node_ids()]
        got.extend(grid.send_and_receive(messages))
        ids = grid.push_messages(messages)
        got.extend(grid.pull_messages(ids))
        assert content["a"]["x"] == 1

    grid = InProcessGrid(client, [{"partition-id": i} for i in range(2)])
    context = run_in_process(server, grid=grid)
    assert isinstance(context, Context)
    assert [m.has_error() for m in got] == [False, True, False, True]
    assert got[1].error == Error(2, "<class 'ValueError'>:<'no'>")
    assert ("seen" in grid.contexts[0].state, "seen" in grid.contexts[1].state) == (True, False)
    with pytest.raises(RuntimeError, match="TaskIdentity"):
        Message(RecordDict(), 1, "query")  # outside a run, as Flower has it


def test_a_flower_without_what_the_grid_needs_is_refused_by_that_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.supercore.task_identity", None)
    with pytest.raises(ImportError, match="task_identity"):
        run(FedVeilStrategy(VANILLA, LAYOUT, rounds=1), app())
