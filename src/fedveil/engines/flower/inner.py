"""Wrapper that runs a Flower app's own strategy on FedVeil's noised results: its choice of nodes, optimiser and metrics."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Result,
)
from torch import Tensor

from fedveil.accounting import count_of
from fedveil.engines.flower.grid import SERVER_NODE, InProcessGrid
from fedveil.engines.flower.records import ARRAYS, CONFIG, from_arrays, to_arrays
from fedveil.engines.flower.strategy import Evaluate, FedVeilStrategy
from fedveil.engines.messages import COUNT, METRICS_KEY
from fedveil.engines.server import Round
from fedveil.errors import FieldError, NoReplyError, kind_of
from fedveil.methods import Releases

MEANS = (
    FedAvg,
    FedAvgM,
    FedAdagrad,
    FedAdam,
    FedYogi,
)  # a strategy that inherits its combination from one of these is also a mean
STATELESS = (FedAvg, FedProx)  # no round depends on what an earlier one left in the strategy
SHADOWED = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
STARTED = (
    "grid",
    "initial_arrays",
    "num_rounds",
    "timeout",
    "train_config",
    "evaluate_config",
    "evaluate_fn",
)
KEYS = {"arrayrecord_key": ARRAYS, "configrecord_key": CONFIG, "weighted_by_key": COUNT}
LOOKS = 10  # times to look who is connected, without sending anything


class WrappedStrategy(FedVeilStrategy):
    """Flower strategy that adds a method's protection to an app's own strategy.

    The method combines the protected replies and adds its noise. The inner strategy sees only that release, as a single
    reply; its momentum, steps and state are post-processing, at no cost. The inner strategy keeps:

    - its `start`, with the files that it writes; each of its rounds is one of FedVeil's;
    - its choice of nodes (`fraction_train`, `min_train_nodes`, `min_available_nodes`, `configure_train`, and the same
      for evaluation), and the config of its messages, if that is the same for all nodes;
    - its metric functions, over the metrics of the combined replies; under local trust no metrics leave.

    Sampled cohorts do not reduce the cost: every round costs each client in full, whether it was asked or not.

    A killed run goes on (``resume=True`` of the folder) if the inner strategy is FedAvg or FedProx itself. Others have a
    state that no folder holds.

    Parameters
    ----------
    inner : flwr.serverapp.strategy.FedAvg
        FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam or FedYogi, or a class that combines as one of them does.
    *arguments, **options
        As for `FedVeilStrategy`. With ``clients_per_round`` FedVeil draws the cohorts, not the inner strategy.

    Raises
    ------
    FieldError
        If the inner strategy's rule is not a mean. A median, Krum or a loss-weighted mean has no sensitivity of clip /
        n, and does nothing with a single reply. Choose a rule of `fedveil.aggregation` instead. Also for other
        behaviour that cannot be kept; the error names it.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAdam
    >>> strategy = WrappedStrategy(FedAdam(eta=0.01), method, layout, rounds=10)  # doctest: +SKIP
    """

    def __init__(self, inner: FedAvg, *arguments: Any, **options: Any) -> None:
        _require_kept(inner)
        resumed = {"done": options.get("done"), "resume": _goes_on(options.get("folder"))}
        for name, given in resumed.items():
            if given and not _is_stateless(inner):
                accepted = f"would forget the state of {type(inner).__name__}, which is in no ledger: FedAvg and FedProx "
                accepted += "have none; FedVeilStrategy goes on with a server optimiser of fedveil.aggregation"
                raise FieldError(name, given, accepted)
        super().__init__(*arguments, **options)
        if self.method.server.hypotheses != 1:
            raise FieldError(
                "method", self.method.name, "has several models, and a Flower strategy keeps one"
            )
        self._inner, self._own = inner, dict[str, Any]()
        self._least_nodes = 0 if self._size is not None else inner.min_available_nodes
        self._stopping = options.get("stopping") is not None

    def _play(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        rounds: int,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Evaluate | None,
    ) -> Any:
        """Run the inner strategy's own loop over rounds, with its four round steps replaced by FedVeil's."""
        self.summary()
        given = (grid, arrays, rounds, timeout, train_config, evaluate_config, evaluate_fn)
        start: Any = self._inner.start
        with self._in_its_place():
            result = start(**dict(zip(STARTED, given, strict=True)))
        if not isinstance(result, Result):
            return result
        self._result = _numbered(result, self.done)
        return None

    @contextmanager
    def _in_its_place(self) -> Iterator[None]:
        """Replace the inner strategy's round steps by FedVeil's within this context."""
        held = vars(self._inner)
        before = {name: held[name] for name in SHADOWED if name in held}
        self._own = {name: getattr(self._inner, name) for name in SHADOWED}
        held.update({name: getattr(self, name) for name in SHADOWED})
        try:
            yield
        finally:
            for name in SHADOWED:
                held.pop(name)
            held.update(before)
            self._own = {}

    def _shared(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return only the shared arrays; the inner strategy never gets the others."""
        names = [name for name in self.layout.sent.values() if name in arrays]
        return ArrayRecord({name: arrays[name] for name in names})

    def _step(self, name: str) -> Any:
        """Return the inner strategy's own step of a round."""
        return self._own.get(name) or getattr(self._inner, name)

    def _asked(
        self, step: str, least: int, server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> tuple[dict[int, int], ConfigRecord]:
        """Return the nodes chosen by the inner strategy, by partition, and the config of its messages."""
        arrays, number = self._shared(arrays), self.done + server_round
        connected = self._roster.nodes
        if len(connected) < least:
            why = f"{len(connected)} protected nodes are connected, and {type(self._inner).__name__} asks {least}"
            raise NoReplyError(f"round {number}: {why}")
        shown = _Shown(list(connected.values()))
        messages = list(self._step(f"configure_{step}")(number, arrays, config, shown))
        partitions = {node: partition for partition, node in connected.items()}
        told = [self._config_of(message, step, arrays) for message in messages]
        if any(one != told[0] for one in told):
            raise self._refused(
                f"configure_{step}", "tells nodes different things, and a broadcast is one for all"
            )
        nodes = {partitions[m.metadata.dst_node_id]: m.metadata.dst_node_id for m in messages}
        return dict(sorted(nodes.items())), told[0] if told else config

    def _config_of(self, message: Message, step: str, arrays: ArrayRecord) -> ConfigRecord:
        """Return the config of a message, and refuse any other content."""
        content, name = message.content, f"configure_{step}"
        if others := sorted(content.keys() - {ARRAYS, CONFIG}):
            raise self._refused(
                name, f"sends {others}, and a broadcast has the model and a config alone"
            )
        if message.metadata.message_type != step:
            raise self._refused(
                name, f"sends messages of type {message.metadata.message_type!r}, not {step!r}"
            )
        sent = content.get(ARRAYS)
        if sent is not arrays and sent != arrays:
            raise self._refused(
                name, "sends another model than it is given, and nodes train the released one"
            )
        config = content.get(CONFIG)
        return config if isinstance(config, ConfigRecord) else ConfigRecord()

    def _refused(self, name: str, why: str) -> FieldError:
        return FieldError(
            f"inner.{name}",
            kind_of(self._inner),
            f"{why}: FedVeilStrategy, or leave that out",
        )

    def _cohort(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> tuple[int, list[int], ConfigRecord]:
        inner, drawn = self._inner, self._size is not None
        count = len(self._roster.nodes)
        least = max(
            inner.min_available_nodes, inner.min_train_nodes, int(count * inner.fraction_train)
        )
        if drawn:  # the config is kept, the choice of nodes is ignored
            return self._drawn(server_round, arrays, config, least)
        nodes, told = self._asked("train", least, server_round, arrays, config)
        if not nodes:
            raise self._refused("configure_train", "asks nobody")
        if self.method.noisy is not None:
            self.method.noisy.require_sites(len(nodes), "inner.fraction_train")
        everybody = self._roster.partitions
        if self.method.server.relation == "add/remove" and len(nodes) == len(self._roster.nodes):
            return len(everybody), list(everybody), told  # who is absent counts as a zero update
        return len(nodes), list(nodes), told

    def _drawn(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, least: int
    ) -> tuple[int, list[int], ConfigRecord]:
        arrays, shown = self._shared(arrays), InProcessGrid({}, [{}] * max(least, 1))
        number = self.done + server_round
        messages = list(self._step("configure_train")(number, arrays, config, shown))
        told = self._config_of(messages[0], "train", arrays) if messages else config
        return super()._cohort(server_round, arrays, told)

    def _stepped(self, server_round: int, released: Tensor) -> Tensor:
        """Pass the released model [d] to the inner strategy as a single reply, and return the model that it makes."""
        arrays = to_arrays(self.layout, released[0])
        content = RecordDict(
            {ARRAYS: arrays, METRICS_KEY: MetricRecord({self._inner.weighted_by_key: 1})}
        )
        one = Message(content, SERVER_NODE, MessageType.TRAIN)
        measure, self._inner.train_metrics_aggr_fn = self._inner.train_metrics_aggr_fn, _nothing
        try:  # the metrics of clients are not in this reply
            stepped, _ = self._step("aggregate_train")(self.done + server_round, [one])
        finally:
            self._inner.train_metrics_aggr_fn = measure
        if stepped is None:
            raise FieldError("inner", kind_of(self._inner), "made no model of the released one")
        return from_arrays(self.layout, stepped)[None]

    def _told(self, log: Round) -> Mapping[str, Any]:
        if not self._serving.metrics:
            return {}
        contents = [_metrics_of(self.received[partition]) for partition in log.used]
        return dict(self._inner.train_metrics_aggr_fn(contents, self._inner.weighted_by_key))

    def _evaluators(
        self, nodes: dict[int, int], server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> tuple[dict[int, int], ConfigRecord]:
        if not nodes or self._stopping:
            return nodes, config
        inner, count = self._inner, len(self._roster.nodes)
        if inner.fraction_evaluate == 0.0:
            return {}, config
        least = max(
            inner.min_available_nodes,
            inner.min_evaluate_nodes,
            int(count * inner.fraction_evaluate),
        )
        return self._asked("evaluate", least, server_round, arrays, config)

    def _evaluated(
        self, server_round: int, released: Mapping[int, Releases], figures: Mapping[str, float]
    ) -> MetricRecord | None:
        if self._stopping:
            return super()._evaluated(server_round, released, figures)
        replies = [_metrics_of(releases) for _, releases in sorted(released.items())]
        messages = [Message(content, SERVER_NODE, MessageType.EVALUATE) for content in replies]
        number = self.done + server_round
        metrics: MetricRecord | None = self._step("aggregate_evaluate")(number, messages)
        return metrics


class _Shown(InProcessGrid):
    """Grid that lists nodes but carries no message."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__({}, [])
        self._shown, self._looks = nodes, 0

    def get_node_ids(self) -> Iterable[int]:
        self._looks += 1
        if self._looks > LOOKS:
            raise NoReplyError(
                f"the inner strategy waits for more than the {len(self._shown)} nodes connected"
            )
        return list(self._shown)


def _require_kept(inner: FedAvg) -> None:
    """Refuse an inner strategy with behaviour that FedVeil cannot keep."""
    kind = type(inner)
    if getattr(kind, "aggregate_train", None) not in [mean.aggregate_train for mean in MEANS]:
        known = ", ".join(mean.__name__ for mean in MEANS)
        accepted = f"overrides aggregate_train of {known}: FedVeil combines the replies itself, and this would get only the "
        accepted += "released model. A rule with a bounded sensitivity is in fedveil.aggregation; metrics belong in "
        accepted += (
            "train_metrics_aggr_fn, and what saves or logs a model belongs in evaluate_fn of start"
        )
        raise FieldError("inner", kind.__name__, accepted)
    for name, kept in KEYS.items():
        if getattr(inner, name) != kept:
            raise FieldError(
                f"inner.{name}",
                getattr(inner, name),
                f"must be {kept!r}: the privacy mod reads that",
            )
    if inner.fraction_train == 0.0:
        raise FieldError("inner.fraction_train", 0.0, "asks nobody to train")
    try:
        inspect.signature(kind.start).bind(inner, **dict.fromkeys(STARTED))
    except TypeError as error:
        accepted = f"is not started as Flower's strategies are ({error}): it must take {', '.join(STARTED)}"
        raise FieldError("inner.start", kind.__name__, accepted) from error


def _nothing(contents: list[RecordDict], key: str) -> MetricRecord:
    return MetricRecord()


def _is_stateless(inner: FedAvg) -> bool:
    """Return whether a strategy that begins in a later round does what one does that began in the first."""
    return type(inner) in STATELESS and not vars(inner).keys() & {"start", *SHADOWED}


def _numbered(result: Result, done: int) -> Result:
    """Return a result whose metrics have the numbers of the run's rounds, of which `done` came before."""
    for field in fields(result):
        found = getattr(result, field.name)
        if isinstance(found, dict):
            setattr(result, field.name, {done + number: found[number] for number in found})
    return result


def _goes_on(folder: Any) -> str:
    return str(folder.path) if getattr(folder, "resume", False) else ""


def _metrics_of(releases: Releases) -> RecordDict:
    """Return a reply's metrics as a record for metric functions, without its model."""
    count = count_of(releases)
    metrics = {r.name: float(r.value) for r in releases if r.kind == "metric"}
    return RecordDict(
        {METRICS_KEY: MetricRecord({**metrics, COUNT: 1 if count is None else count})}
    )
