"""An app's own strategy keeps what it does, or is refused by the name of what cannot be kept.

Its structure is that of many an app: rounds of its own, fractions, a learning rate that falls, files that it writes.
"""

import json

import flwr.serverapp.strategy as flower
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedveil.errors import FieldError, NoReplyError
from fedveil.flower import (
    InProcessGrid,
    WrappedStrategy,
    from_arrays,
    privacy_mod,
    run_in_process,
    to_arrays,
)
from fedveil.methods import build
from test_flower_strategy import LAYOUT

pytestmark = pytest.mark.flower
QUIET = build("global", noise_multiplier=1e-3, clip=100.0)
LOCAL = build("sga-ldp", similarity="released", clip=1.0)


class OwnStrategy(flower.FedAvg):
    """Decays the learning rate, keeps the best model, and writes both down, in rounds of its own."""

    def __init__(self, folder, **options):
        super().__init__(**options)
        self.folder, self.best = folder, 0.0

    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 2 == 0:
            config["lr"] = float(config["lr"]) / 2
        return super().configure_train(server_round, arrays, config, grid)

    def start(
        self,
        grid,
        initial_arrays,
        num_rounds=3,
        timeout=3600,
        train_config=None,
        evaluate_config=None,
        evaluate_fn=None,
    ):
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        arrays, result, written = initial_arrays, flower.Result(), []
        for number in range(1, num_rounds + 1):
            asked = self.configure_train(number, arrays, train_config, grid)
            replies = grid.send_and_receive(messages=asked, timeout=timeout)
            arrays, metrics = self.aggregate_train(number, replies)
            result.arrays, result.train_metrics_clientapp[number] = arrays, metrics
            asked = self.configure_evaluate(number, arrays, evaluate_config, grid)
            measured = self.aggregate_evaluate(
                number, grid.send_and_receive(messages=asked, timeout=timeout)
            )
            figure = evaluate_fn(number, arrays)["accuracy"]
            if figure > self.best:
                self.best = figure
                torch.save(arrays.to_torch_state_dict(), self.folder / f"best-{number}.pt")
            written.append(
                {"train": dict(metrics), "evaluate": dict(measured or {}), "central": figure}
            )
            (self.folder / "results.json").write_text(json.dumps(written))
        return result


def worst(contents, key):
    """A function of metrics of the app's own."""
    return MetricRecord(
        {
            "worst": max(float(c["metrics"]["train_loss"]) for c in contents),
            "replies": len(contents),
        }
    )


def widest(contents, key):
    return MetricRecord(
        {"widest": max(float(c["metrics"]["spread"]) for c in contents), "measured": len(contents)}
    )


def clients(method, trained, evaluated):
    app = ClientApp(mods=[privacy_mod(LAYOUT, method, ledger="run")])

    @app.train()
    def train(message, context):
        partition = context.node_config["partition-id"]
        trained.append(
            (
                message.content["config"]["server-round"],
                partition,
                message.content["config"].get("lr"),
            )
        )
        vector = from_arrays(LAYOUT, message.content["arrays"]) + 1
        metrics = MetricRecord({"num-examples": 5, "train_loss": float(partition)})
        return Message(
            RecordDict({"arrays": to_arrays(LAYOUT, vector), "metrics": metrics}), reply_to=message
        )

    @app.evaluate()
    def evaluate(message, context):
        evaluated.append(context.node_config["partition-id"])
        metrics = MetricRecord(
            {"num-examples": 5, "spread": float(context.node_config["partition-id"])}
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def play(inner, method=QUIET, nodes=6, rounds=4, **options):
    """Who trained (round, partition, learning rate), who evaluated, the strategy and what it returned."""
    trained, evaluated, results = [], [], []
    strategy = WrappedStrategy(
        inner, method, LAYOUT, rounds=rounds, seed=1, patience=0.1, **options
    )
    server = ServerApp()

    @server.main()
    def main(grid, context):
        start, config = to_arrays(LAYOUT, torch.zeros(6)), ConfigRecord({"lr": 0.4})
        accuracy = lambda number, arrays: MetricRecord(  # noqa: E731
            {"accuracy": number / 10 if number < 4 else 0.0}
        )
        results.append(strategy.start(grid, start, train_config=config, evaluate_fn=accuracy))

    run_in_process(server, clients(method, trained, evaluated), nodes)
    return trained, evaluated, strategy, results[0]


def own(folder, **options):
    shared = {"fraction_train": 0.5, "fraction_evaluate": 0.34, "train_metrics_aggr_fn": worst}
    return OwnStrategy(folder, **{**shared, "evaluate_metrics_aggr_fn": widest, **options})


def test_nodes_rates_metrics_and_files_are_those_of_the_apps_own_strategy(tmp_path):
    trained, evaluated, strategy, result = play(own(tmp_path))
    by_round = [[(p, lr) for number, p, lr in trained if number == n] for n in (1, 2, 3, 4)]
    assert [len(asked) for asked in by_round] == [3, 3, 3, 3]  # half of six
    assert [{lr for _, lr in asked} for asked in by_round] == [{0.4}, {0.2}, {0.2}, {0.1}]
    assert len(evaluated) == 4 * 2
    written = json.loads((tmp_path / "results.json").read_text())
    assert [one["train"]["replies"] for one in written] == [3] * 4
    assert [one["train"]["worst"] for one in written] == [
        max(p for p, _ in asked) for asked in by_round
    ]
    assert [one["evaluate"]["measured"] for one in written] == [2] * 4
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["best-1.pt", "best-2.pt", "best-3.pt"]
    best = torch.load(tmp_path / "best-3.pt")["weight"]
    torch.testing.assert_close(best, torch.full((6,), 3.0), atol=0.5, rtol=0)
    assert torch.equal(from_arrays(LAYOUT, result.arrays), strategy.models[0])
    assert len(result.train_metrics_clientapp) == 4
    assert [len(log.used) for log in strategy.history] == [3] * 4


def test_the_cost_is_that_of_the_cohorts_that_were_asked(tmp_path):
    _, _, strategy, _ = play(own(tmp_path))
    assert [log.spend.scale for log in strategy.history]
    assert strategy.guarantee.proven
    assert len(strategy.server.ledger.entries) == 4


class Coins(flower.FedAvg):
    """Asks each node by a coin of its own: a Poisson draw, of at least one node."""

    def configure_train(self, server_round, arrays, config, grid):
        asked = list(super().configure_train(server_round, arrays, config, grid))
        coins = torch.rand(len(asked), generator=torch.Generator().manual_seed(server_round)) < 0.5
        return [one for one, heads in zip(asked, coins.tolist(), strict=True) if heads] or asked[:1]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: flower.FedAvg(fraction_train=0.5), {}),
        (lambda: flower.FedAvg(), {"clients_per_round": 3}),
        (Coins, {}),
    ],
    ids=["fraction", "size", "coins"],
)
def test_no_draw_of_clients_lowers_the_cost(make, options):
    """Colluders who sat out know who was asked, and a drawn client moves a mean over fewer."""
    trained, _, strategy, _ = play(make(), **options)
    assert len(trained) < 4 * 6
    for log in strategy.history:
        [sigma] = log.spend.scale
        assert sigma == pytest.approx(1e-3 * 100 / len(log.used))
    assert strategy.guarantee.mu == pytest.approx(4**0.5 / 1e-3)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_under_add_remove_a_drawn_cohort_is_refused(fraction):
    method = build("global", noise_multiplier=1e-3, clip=100.0, relation="add/remove")
    drawn = {"clients_per_round": 3} if fraction == 1.0 else {}
    with pytest.raises(FieldError, match="relation"):
        play(flower.FedAvg(fraction_train=fraction), method, clients=6, **drawn)


class Leaving(InProcessGrid):
    """A grid whose last node leaves after the first round."""

    rounds = ()

    def get_node_ids(self):
        connected = sorted(super().get_node_ids())
        return connected[:-1] if self.rounds else connected


def test_under_add_remove_the_mean_is_over_the_clients_that_are_planned():
    """One who leaves changes neither divisor nor noise; of whoever is connected, both would change."""
    method = build("global", noise_multiplier=1e-3, clip=100.0, relation="add/remove")
    trained, server = [], ServerApp()
    strategy = WrappedStrategy(
        flower.FedAvg(), method, LAYOUT, rounds=3, seed=1, patience=0.1, clients=4
    )
    grid = Leaving(clients(method, trained, []), [{"partition-id": i} for i in range(4)])
    grid.rounds = strategy.history

    @server.main()
    def main(grid, context):
        strategy.start(
            grid, to_arrays(LAYOUT, torch.zeros(6)), train_config=ConfigRecord({"lr": 1.0})
        )

    run_in_process(server, grid=grid)
    assert [len(log.used) for log in strategy.history] == [4, 3, 3]
    assert [log.spend.scale for log in strategy.history] == [(pytest.approx(1e-3 * 100 / 4),)] * 3
    assert strategy.guarantee.proven
    with pytest.raises(FieldError, match="clients"):
        WrappedStrategy(flower.FedAvg(), method, LAYOUT, rounds=3)


def test_under_local_trust_no_metric_leaves_and_nobody_evaluates(tmp_path):
    trained, evaluated, strategy, _ = play(own(tmp_path), LOCAL)
    assert len(trained) == 12
    assert not evaluated
    written = json.loads((tmp_path / "results.json").read_text())
    assert not any("worst" in one["train"] or one["evaluate"] for one in written)
    assert strategy.guarantee.proven


def test_a_cohort_that_is_said_is_fedveils(tmp_path):
    trained, _, _, _ = play(own(tmp_path), clients_per_round=4)
    assert len(trained) == 16
    assert {lr for _, _, lr in trained} == {0.4, 0.2, 0.1}


def test_too_few_nodes_end_the_run_and_wait_for_nobody_for_ever(tmp_path):
    with pytest.raises(NoReplyError, match="7"):
        play(own(tmp_path, min_train_nodes=7))


def test_a_strategy_that_only_counts_rounds_of_flowers_own_loop_is_kept_too():
    trained, evaluated, _, result = play(flower.FedAdam(fraction_train=0.5, fraction_evaluate=0.5))
    assert len(trained) == len(evaluated) == 12
    assert len(result.evaluate_metrics_clientapp) == 4


def test_rounds_are_those_that_the_noise_was_planned_for():
    planned = build("global", epsilon=8.0, rounds=4, clip=1.0)
    strategy = WrappedStrategy(flower.FedAvg(), planned, LAYOUT)
    assert strategy.rounds == 4
    with pytest.raises(FieldError, match="rounds"):
        WrappedStrategy(flower.FedAvg(), QUIET, LAYOUT)


class PerNode(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        for node, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": float(node)})})
            yield Message(content, message.metadata.dst_node_id, "train")


class MoreRecords(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content["control"] = ArrayRecord()
        return messages


class OtherModel(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        return super().configure_train(server_round, to_arrays(LAYOUT, torch.ones(6)), config, grid)


class OtherKind(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        for message in super().configure_train(server_round, arrays, config, grid):
            yield Message(message.content, message.metadata.dst_node_id, "train.other")


class OtherStart(flower.FedAvg):
    def start(self, grid, initial_arrays, num_rounds, folder):
        raise AssertionError


class Saving(flower.FedAvg):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (PerNode, "configure_train"),
        (MoreRecords, "configure_train.*control"),
        (OtherModel, "configure_train"),
        (OtherKind, "configure_train.*other"),
        (OtherStart, "start"),
        (Saving, "aggregate_train"),
        (lambda: flower.FedAvg(arrayrecord_key="weights"), "arrayrecord_key"),
        (lambda: flower.FedAvg(configrecord_key="settings"), "configrecord_key"),
        (lambda: flower.FedAvg(weighted_by_key="patients"), "weighted_by_key"),
        (lambda: flower.FedAvg(fraction_train=0.0), "fraction_train"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_name_before_anybody_trains(make, field):
    trained = []
    with pytest.raises(FieldError, match=field):
        trained, *_ = play(make())
    assert not trained
