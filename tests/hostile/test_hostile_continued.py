"""A server that dies again and again, and goes on in any documented way: no total is below what was released."""

import random

import pytest
import torch
from flwr.app import Message as Reply
from flwr.app import MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedveil.accounting import Ledger
from fedveil.engines.server import ServerParty
from fedveil.flower import (
    FedVeilStrategy,
    ServerFolder,
    from_arrays,
    privacy_mod,
    read_broadcast,
    run_in_process,
    to_arrays,
)
from fedveil.gdp import compose_mu, epsilon_of_mu
from fedveil.layout import Layout
from fedveil.methods import build

pytestmark = pytest.mark.flower
LAYOUT, ROUNDS, DELTA = Layout.from_shapes({"weight": (6,)}), 6, 1e-5
GLOBAL = build("global", epsilon=8.0, rounds=ROUNDS, clip=1.0)
WAYS = ("folder", "party", "another ledger", "no ledger", "all rounds again")


class Killed(BaseException):
    """The server's process ends: nothing catches it."""


def sites():
    client = ClientApp(mods=[privacy_mod(LAYOUT, GLOBAL, ledger="run")])

    @client.train()
    def train(message, context):
        model = read_broadcast(message.content, LAYOUT).models[0] + 1
        metrics = MetricRecord({"num-examples": 1})
        return Reply(
            RecordDict({"arrays": to_arrays(LAYOUT, model), "metrics": metrics}), reply_to=message
        )

    return client


class Game:
    """One run, whoever serves it; counts every model that was released from the clients' data."""

    def __init__(self, path):
        self.path, self.ledger, self.released = path, Ledger("game", "server"), []
        self.models = {0: torch.zeros(6)}

    def strategy(self, way, done):
        given = {"rounds": ROUNDS, "evaluate": False, "done": done, "on_round": self.note}
        self.folder = None
        if way == "folder":
            self.folder = ServerFolder(self.path)
            return FedVeilStrategy(GLOBAL, LAYOUT, folder=self.folder, **given)
        if way == "no ledger":
            return FedVeilStrategy(GLOBAL, LAYOUT, **given)
        if way == "all rounds again":
            given["done"] = 0
        ledger = Ledger("game", "server") if way == "another ledger" else self.ledger
        return FedVeilStrategy(ServerParty(GLOBAL, LAYOUT, ledger), **given)

    def note(self, log):
        self.released.append(log.spend.guarantee.mu)

    def serve(self, strategy, dies):
        """Go on until the server dies after so many more rounds, or the run ends; whether it ended."""
        start, server = self.models[strategy.done], ServerApp()

        def seen(number, arrays):
            self.models[number] = from_arrays(LAYOUT, arrays)
            if number == strategy.done + dies:
                raise Killed

        @server.main()
        def main(grid, context):
            strategy.start(grid, to_arrays(LAYOUT, start), evaluate_fn=seen)

        try:
            run_in_process(server, sites(), 3)
        except Killed:
            if self.folder is not None:
                self.folder.leave()  # as the end of its process does
            return False
        return True


def play(seed, path):
    """One game; the number of servers that went on."""
    rng, game, went_on = random.Random(seed), Game(path), 0
    kept = rng.choice(["folder", "party"])
    strategy, last = game.strategy(kept, 0), 0
    while not game.serve(strategy, rng.randint(1, 3)):
        last = max(strategy.done + len(strategy.history), 1)
        done = rng.choice([last, last, max(1, last - 1)])
        tried = [way for way in WAYS if way in (kept, "another ledger", "no ledger")]
        if kept == "party":
            tried.append("all rounds again")
        for way in rng.sample(tried, len(tried)):
            if done >= ROUNDS:
                return went_on
            try:
                strategy = game.strategy(way, done)
            except ValueError:
                assert way in ("another ledger", "no ledger"), (seed, way)
                continue
            assert way not in ("another ledger", "no ledger"), (seed, way)
            went_on += 1
            break
        if went_on > 8:
            break
    least = epsilon_of_mu(compose_mu(game.released), DELTA)
    assert strategy.guarantee.epsilon(DELTA) >= least * (1 - 1e-9), (seed, least)
    return went_on


def test_no_total_of_a_run_that_went_on_is_below_what_was_released(tmp_path):
    assert sum(play(seed, tmp_path / str(seed)) for seed in range(8)) >= 8


@pytest.mark.slow
def test_no_total_of_many_runs_that_went_on_is_below_what_was_released(tmp_path):
    assert sum(play(seed, tmp_path / str(seed)) for seed in range(8, 120)) >= 100
