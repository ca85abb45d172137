"""A Flower strategy's optimiser behind FedVeil's noise: it is handed one reply, the released mean, and nothing else."""

from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

from fedveil.engines.flower.grid import SERVER_NODE, InProcessGrid
from fedveil.engines.flower.records import ARRAYS
from fedveil.engines.flower.strategy import FedVeilStrategy
from fedveil.engines.messages import METRICS
from fedveil.errors import FieldError

MEANS = (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)  # whatever inherits how one of them combines is a mean, too


class WrappedStrategy(FedVeilStrategy):
    """FedVeil's strategy with the optimiser of one of Flower's strategies behind the noise.

    The method combines the protected replies and adds its noise. What it released is the one reply that the inner
    strategy sees; its momentum, its steps and its state are post-processing, at no cost.

    Parameters
    ----------
    inner : flwr.serverapp.strategy.FedAvg
        FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam or FedYogi, or a class that combines as one of them does. How many
        nodes it asks is not looked at.
    *arguments, **options
        As for `FedVeilStrategy`.

    Raises
    ------
    FieldError
        If the inner strategy's rule is no mean: of a median, of Krum or of loss-weighted means the sensitivity is not
        bounded by clip / n, and of one reply they are the identity. Choose a rule of `fedveil.aggregation` instead.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAdam
    >>> strategy = WrappedStrategy(FedAdam(eta=0.01), method, layout, rounds=10)  # doctest: +SKIP
    """

    def __init__(self, inner: FedAvg, *arguments: Any, **options: Any) -> None:
        combining = getattr(type(inner), "aggregate_train", None)
        if combining not in [mean.aggregate_train for mean in MEANS]:
            known = ", ".join(mean.__name__ for mean in MEANS)
            accepted = f"combines otherwise than {known}: with unknown sensitivity. Take a rule of fedveil.aggregation"
            raise FieldError("inner", type(inner).__name__, accepted)
        super().__init__(*arguments, **options)
        if self.method.server.hypotheses != 1:
            raise FieldError("method", self.method.name, "has several models, and a Flower strategy keeps one")
        self._inner = inner

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `FedVeilStrategy`, with what the inner strategy tells its clients (FedProx's proximal-mu)."""
        most = max(self._inner.min_available_nodes, self._inner.min_train_nodes, 1)
        nobody = InProcessGrid({}, [{}] * most)  # the inner strategy's messages are not sent
        list(self._inner.configure_train(server_round, arrays, config, nobody))
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine and noise, and hand the result to the inner strategy."""
        released, metrics = super().aggregate_train(server_round, replies)
        assert released is not None
        content = RecordDict({ARRAYS: released, METRICS: MetricRecord({self._inner.weighted_by_key: 1})})
        one = Message(content, SERVER_NODE, MessageType.TRAIN)
        arrays, _ = self._inner.aggregate_train(server_round, [one])
        if arrays is None:
            raise FieldError("inner", type(self._inner).__name__, "made no model of the released one")
        stepped = {n: torch.from_numpy(array.numpy()).to(self.layout.dtype) for n, array in arrays.items()}
        self.models = self.layout.flatten(stepped)[None]
        return ArrayRecord(self.layout.unflatten(self.models[0])), metrics
