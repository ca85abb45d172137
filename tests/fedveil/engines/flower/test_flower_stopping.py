"""Nodes that only validate: each loss is a release in the node's ledger, and ends the run as embedded ones do."""

import pytest
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedveil.accounting import Limits, ParticipationFilter, Policy
from fedveil.engines.flower.grid import InProcessGrid
from fedveil.engines.messages import REPLY
from fedveil.engines.stopping import EarlyStopping
from fedveil.errors import FieldError
from fedveil.flower import (
    REFUSED,
    FedVeilStrategy,
    begin_ledger,
    from_arrays,
    privacy_mod,
    run_in_process,
    to_arrays,
)
from fedveil.learning import ClientData
from fedveil.methods import build
from fedveil.methods.publishing import Validation
from test_flower_mod import LAYOUT as MOD_LAYOUT
from test_flower_mod import ask
from test_flower_strategy import LAYOUT, app

pytestmark = [pytest.mark.flower]
LOCAL, VANILLA = build("sga-ldp", epsilon_min=1.0, epsilon_max=8.0), build("vanilla")
RULE = EarlyStopping(
    patience=2, validation=Validation(noise_multiplier=2.0, loss_range=4.0, releases=9)
)


def validator(losses, method=VANILLA, validation=RULE.validation, layout=LAYOUT, **options):
    """A client app whose node validates, with the losses of the rounds; an exception is raised."""
    options = {"seed": 5} | options
    client = ClientApp(
        mods=[privacy_mod(layout, method, validation=validation, ledger="run", **options)]
    )

    @client.evaluate()
    def evaluate(message, context):
        loss = losses[min(int(message.content["config"]["server-round"]), len(losses)) - 1]
        if isinstance(loss, Exception):
            raise loss
        return Message(
            RecordDict({"metrics": MetricRecord({"loss": loss, "secret": 4711.0})}),
            reply_to=message,
        )

    @client.train()
    def train(message, context):
        raise AssertionError("a validating node trained")

    return client


def play(losses, rule=RULE, method=VANILLA, rounds=8, trainers=2, **options):
    apps = {p: app(method=method) for p in range(trainers)}
    apps |= {
        100 + i: validator(own, method, rule.validation, **options) for i, own in enumerate(losses)
    }
    grid = InProcessGrid(apps, [{"partition-id": p} for p in apps])
    strategy = FedVeilStrategy(
        method, LAYOUT, rounds=rounds, seed=1, clients=trainers, stopping=rule, evaluate=False
    )
    results, server = [], ServerApp()

    @server.main()
    def main(grid, context):
        results.append(strategy.start(grid, to_arrays(LAYOUT, torch.zeros(6))))

    run_in_process(server, grid=grid)
    return strategy, results[0], grid


def told(result):
    """The validation losses by round."""
    return {
        number: dict(metrics)["loss"]
        for number, metrics in result.evaluate_metrics_clientapp.items()
    }


def ledger(grid, partition):
    record = grid.contexts[partition].state.get("fedveil.ledger")
    return 0 if record is None else len(record["lines"])


def test_in_the_clear_it_stops_after_patience_and_returns_the_best_model():
    rule = EarlyStopping(patience=2, validation=Validation(losses="public"))
    strategy, result, _ = play([[3.0, 1.0, 2.0, 2.0, 0.1], [3.0, 1.0, 2.0, 2.0, 0.1]], rule)
    assert [log.number for log in strategy.history] == [1, 2, 3, 4]
    assert (strategy.best.round, strategy.best.loss) == (2, 1.0)
    assert "round 2" in strategy.stopped
    found = from_arrays(LAYOUT, result.arrays)
    assert torch.equal(found, strategy.best.models[0])
    assert not torch.equal(found, strategy.models[0])
    assert {n: dict(m)["loss"] for n, m in result.evaluate_metrics_clientapp.items()} == {
        1: 3.0,
        2: 1.0,
        3: 2.0,
        4: 2.0,
    }


def test_a_run_that_never_waits_so_long_ends_as_planned():
    rule = EarlyStopping(patience=2, every=2, validation=Validation(losses="public"))
    strategy, result, _ = play([[4.0, 4.0, 9.0, 3.0, 9.0, 2.0]], rule, rounds=6)
    assert (len(strategy.history), strategy.stopped, strategy.best.round) == (6, "", 6)
    assert set(result.evaluate_metrics_clientapp) == {2, 4, 6}


def test_under_local_trust_each_loss_is_noised_on_its_node_and_in_its_ledger():
    rule = EarlyStopping(patience=99, validation=RULE.validation)
    _, result, grid = play([[1.0] * 8, [1.0] * 8], rule, LOCAL, 5)
    losses = list(told(result).values())
    assert len(losses) == 5
    assert len({round(loss, 6) for loss in losses}) == 5
    assert all(abs(loss - 1.0) > 1e-6 for loss in losses)
    assert max(abs(loss - 1.0) for loss in losses) < 6 * 8 / 2**0.5  # two nodes, each z R = 8
    assert [ledger(grid, p) for p in (100, 101)] == [5, 5]
    assert all(
        "fedveil.values" not in grid.contexts[p].state for p in (100, 101)
    )  # nobody trained there


def test_a_node_sends_so_many_losses_at_most_and_others_go_on():
    validation = Validation(noise_multiplier=2.0, loss_range=4.0, releases=2)
    strategy, result, grid = play(
        [[1.0] * 8], EarlyStopping(patience=99, validation=validation), LOCAL, 5
    )
    assert len(strategy.history) == 5
    assert set(result.evaluate_metrics_clientapp) == {1, 2}
    assert ledger(grid, 100) == 2


def test_a_loss_that_cannot_be_had_counts_as_the_largest_and_tells_nothing():
    validation = Validation(noise_multiplier=1e-6, loss_range=4.0)
    rule = EarlyStopping(patience=99, validation=validation)
    for loss in (ValueError("patient-4711"), float("nan"), float("inf"), 1e30):
        _, result, grid = play([[loss] * 3], rule, LOCAL, 2)
        assert [
            dict(m)["loss"] for m in result.evaluate_metrics_clientapp.values()
        ] == pytest.approx([4.0, 4.0], abs=1e-3)
        assert ledger(grid, 100) == 2


def test_under_central_trust_the_server_noises_the_mean_and_pays():
    rule = EarlyStopping(patience=99, validation=Validation(noise_multiplier=2.0, loss_range=4.0))
    method = build("global", noise_multiplier=2.0, clip=1.0)
    strategy, result, grid = play([[1.0] * 8, [3.0] * 8], rule, method, 3)
    entries = [e for e in strategy.server.ledger.entries if e.key[1] == "validate"]
    assert len(entries) == 3
    losses = list(told(result).values())
    assert len(losses) == 3
    assert all(abs(loss - 2.0) > 1e-9 for loss in losses)
    assert [ledger(grid, p) for p in (100, 101)] == [0, 0]


def test_the_sample_is_drawn_from_those_who_validate():
    rule = EarlyStopping(patience=99, sample=2, validation=RULE.validation)
    _, _, grid = play([[1.0] * 8] * 3, rule, LOCAL, 6)
    counts = [ledger(grid, p) for p in (100, 101, 102)]
    assert sum(counts) == 12
    assert sorted(counts)[1] < 6  # not always the same two


def test_validators_speak_for_no_partition_of_those_who_train():
    apps = {0: app(method=LOCAL), 1: app(method=LOCAL), 2: validator([1.0] * 5, LOCAL)}
    strategy = FedVeilStrategy(
        LOCAL, LAYOUT, rounds=1, seed=1, clients=2, stopping=RULE, evaluate=False
    )
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy.start(grid, to_arrays(LAYOUT, torch.zeros(6)))

    configs = [{"partition-id": p} for p in apps]
    run_in_process(server, grid=InProcessGrid(apps, configs))
    assert strategy.history[0].used == (0, 1)
    assert strategy.best.round == 1


def test_data_of_embedded_validation_clients_are_not_taken():
    x = torch.zeros(3, 6)
    with pytest.raises(FieldError, match="stopping"):
        FedVeilStrategy(
            VANILLA,
            LAYOUT,
            rounds=2,
            stopping=EarlyStopping(clients=[ClientData(x, torch.zeros(3).long())]),
        )


# ---- one node


def asked(client, kind="evaluate", node=None, round_=1):
    message = ask(round_=round_) if round_ != 1 else ask()
    message.metadata.__dict__["_message_type"] = kind
    message.content["config"]["server-round"] = round_
    return client(message, node or Context(1, 9, {"partition-id": 2}, RecordDict(), {}))


def strict(**more):
    return validator([1.0] * 9, LOCAL, layout=MOD_LAYOUT, **more)


@pytest.mark.usefixtures("runtime")
def test_a_validating_node_never_trains():
    assert asked(strict(), "train").error.code == REFUSED


@pytest.mark.usefixtures("runtime")
def test_only_the_loss_leaves_with_the_mark():
    reply = asked(strict())
    assert set(reply.content) == {"metrics", REPLY}
    assert set(reply.content["metrics"]) == {"num-examples", "loss"}
    assert reply.content["metrics"]["num-examples"] == 1
    assert reply.content[REPLY]["validates"] is True


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("allowed", "leaves"),
    [
        ({"total": Limits(mu=0.6)}, True),  # one loss costs mu = 1 / z = .5
        ({"total": Limits(mu=0.4)}, False),
        ({"total": Limits(record_epsilon=9.0)}, False),
        ({"total": Limits(mu=9.0), "methods": ["group"]}, False),
        ({"total": Limits(mu=9.0), "trust": ("central",)}, False),
        ({"total": Limits(mu=9.0), "relations": ["zero-out"]}, False),
    ],
)
def test_the_nodes_policy_and_lifetime_ledger_hold(tmp_path, allowed, leaves):
    begin_ledger(tmp_path / "l", 2, by="the tests", head=tmp_path / "h")
    held = {"policy": Policy(**allowed), "ledger": tmp_path / "l", "head": tmp_path / "h"}
    client = ClientApp(mods=[privacy_mod(MOD_LAYOUT, LOCAL, validation=RULE.validation, **held)])
    touched = []

    @client.evaluate()
    def evaluate(message, context):
        touched.append(1)
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)

    for run in (1, 2):  # two runs, one ledger: the second costs 0.5 * sqrt(2) in all
        reply = asked(client, node=Context(run, 9, {"partition-id": 2}, RecordDict(), {}))
        assert reply.has_error() != (leaves and run == 1)
    lines = (tmp_path / "l" / "2.jsonl").read_text().count("\n") - 1
    assert lines == len(touched) == leaves


@pytest.mark.usefixtures("runtime")
def test_a_policy_allows_no_loss_in_the_clear():
    policy = Policy(total=Limits(mu=9.0, participations=9), secure_source=False)
    client = validator([1.0], LOCAL, Validation(losses="public"), MOD_LAYOUT, policy=policy)
    assert asked(client).error.code == REFUSED


@pytest.mark.usefixtures("runtime")
def test_a_budget_of_the_nodes_own_holds():
    client, node = (
        strict(budget=lambda p: ParticipationFilter(1)),
        Context(1, 9, {"partition-id": 2}, RecordDict(), {}),
    )
    assert not asked(client, node=node).has_error()
    assert asked(client, node=node, round_=2).error.code == REFUSED
