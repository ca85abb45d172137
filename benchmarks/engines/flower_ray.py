"""Flower's simulation on Ray: one run is one process tree, which `benchmarks.alone` starts.

The actors import this module by name, so that a message carries parameters and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import ray  # noqa: F401 - Flower imports it late; without it there is no simulation
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import Lap, Stopwatch
from benchmarks.workloads import WORKLOADS, Workload

ACTORS = 2


class FlowerOnRay:
    """Flower's federated averaging with its server-side fixed clipping.

    Parameters
    ----------
    work : Workload
        What to run.
    """

    def __init__(self, work: Workload) -> None:
        self.work, self.module = work, work.initial()

    def rounds(self, count: int) -> Sequence[Lap]:
        """Start a simulation, do `count` rounds, end it; the first lap holds the start."""
        watch, found = Stopwatch(), {}
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            random.seed(self.work.seed)
            strategy = DifferentialPrivacyServerSideFixedClipping(
                _Clocked(watch, self.work),
                self.work.noise_multiplier,
                self.work.clip,
                self.work.cohort,
            )
            start = ArrayRecord(self.module.state_dict())
            found["result"] = strategy.start(grid, start, num_rounds=count, timeout=600)

        run_simulation(
            server,
            client_app(self.work.name),
            num_supernodes=self.work.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": ACTORS, "logging_level": 50, "log_to_driver": False},
            },
        )
        self.module.load_state_dict(found["result"].arrays.to_torch_state_dict())
        return watch.laps

    def model(self) -> nn.Module:
        """The present model."""
        return self.module


class _Clocked(FedAvg):
    """Ends a lap after each round's aggregation, which is when it is asked whom to let evaluate."""

    def __init__(self, watch: Stopwatch, work: Workload) -> None:
        super().__init__(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=work.clients,
        )
        self._watch = watch

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody evaluates."""
        self._watch.lap()
        return super().configure_evaluate(server_round, arrays, config, grid)


def client_app(name: str) -> ClientApp:
    """The clients of a workload."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        work, module, data = _actor(name)
        x, y = data[int(context.node_config["partition-id"])]
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)
        for rows in torch.randperm(len(x)).split(work.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": 1}),  # the uniform mean of the other engines
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


@cache
def _actor(name: str) -> tuple[Workload, nn.Module, list[tuple[Any, Any]]]:
    """What an actor keeps from one message to the next."""
    torch.set_num_threads(1)
    work = WORKLOADS[name]()
    return (
        work,
        work.build(),
        [tuple(map(torch.from_numpy, pair)) for pair in zip(work.xs, work.ys, strict=True)],
    )
