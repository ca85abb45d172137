"""The strategy: the server's half of every method, for any Flower app whose clients run the privacy mod."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from logging import getLogger
from math import isfinite
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedveil.accounting import Ledger, SpendFilter, count_of
from fedveil.engines.assembly import draw_cohort
from fedveil.engines.flower.records import (
    REFUSED,
    from_arrays,
    read_mark,
    read_releases,
    to_arrays,
    write_broadcast,
)
from fedveil.engines.flower.roster import Roster
from fedveil.engines.history import SERVER
from fedveil.engines.party import Round, Scorer, ServerParty, Store
from fedveil.errors import FedVeilError, FieldError, ReplyError, cleaned, require_count
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource, SecureSource, Source
from fedveil.methods import Broadcast, Method, Releases, check_figures

_LOG = getLogger("flwr")


class FedVeilStrategy(Strategy):
    """Run a method's server side under Flower.

    Parameters
    ----------
    method : Method
        Both sides; the clients' mod must run the same client side.
    layout : Layout
        What the model shares.
    rounds : int
        Rounds planned, known to every client.
    initial : Tensor, optional
        [k, d], the first hypotheses. Needed for k > 1; otherwise the arrays given to `start` are used.
    clients : int, optional
        Clients of the federation, partitions 0, 1, ...; the first round waits for them. Default: whoever is
        connected when it begins.
    clients_per_round : int, optional
        Size of a round's cohort, drawn by partition without replacement. Default: everybody.
    seed : int, optional
        Reproducible cohorts and noise, for experiments. Default: secure noise.
    source : Source, optional
        Randomness of the noise, if it is not to follow from `seed`.
    budget : SpendFilter, optional
        Ends the run before the server exceeds it.
    scorer : callable, optional
        Public layer scores of received models, for FedRE's server.
    ledger, store : Ledger and callable, optional
        The server's ledger, and what makes a line of it durable. Default: in memory.
    server : ServerParty, optional
        Instead of one built from the four above and `source`.
    evaluate : bool
        Whether to ask clients to evaluate; under local trust they are never asked, as no metric may leave.
    done : int
        Rounds done before (resumed runs).
    on_round : callable, optional
        Called with each finished `Round`.
    patience : float
        Seconds to wait for clients in the first round.

    Attributes
    ----------
    models : Tensor
        [k, d], the last released hypotheses; `start` returns the first one as arrays.
    history : list of Round
        What happened in each round.
    broadcast : Broadcast
        What opened the last round; None before the first.
    received : dict of int to Releases
        What arrived in the last round, by partition.
    """

    def __init__(
        self,
        method: Method,
        layout: Layout,
        rounds: int,
        *,
        initial: Tensor | None = None,
        clients: int | None = None,
        clients_per_round: int | None = None,
        seed: int | None = None,
        source: Source | None = None,
        budget: SpendFilter | None = None,
        scorer: Scorer | None = None,
        ledger: Ledger | None = None,
        store: Store = lambda line: None,
        server: ServerParty | None = None,
        evaluate: bool = True,
        done: int = 0,
        on_round: Callable[[Round], None] | None = None,
        patience: float = 600.0,
    ) -> None:
        self.method, self.layout, self.rounds = method, layout, require_count("rounds", rounds)
        if initial is None and method.server.hypotheses > 1:
            raise FieldError("initial", None, f"{method.server.hypotheses} hypotheses need [k, d] first models")
        if initial is not None and initial.shape != (method.server.hypotheses, layout.size):
            wanted = (method.server.hypotheses, layout.size)
            raise FieldError("initial", tuple(initial.shape), f"must be [k, d] = {wanted}")
        self._initial, self._size = initial, clients_per_round and require_count("clients_per_round", clients_per_round)
        self._seed = secrets.randbits(62) if seed is None else seed
        source = source or (SecureSource() if seed is None else ReproducibleSource(seed))
        ledger = ledger or Ledger("flower", SERVER)
        self.server = server or ServerParty(method, layout, ledger, source, budget=budget, store=store, scorer=scorer)
        self.done, self.evaluate, self._on_round = done, evaluate, on_round
        self._roster = Roster(method.client, clients, patience)
        self._timeout = 3600.0
        self._asked: dict[int, int] = {}  # partition of each node that was asked in this round
        self._absent: dict[int, str] = {}
        self.models = torch.zeros(0, layout.size) if initial is None else initial
        self.broadcast: Broadcast | None = None
        self.history: list[Round] = []
        self.received: dict[int, Releases] = {}

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all planned rounds, as ``Strategy.start`` does; `num_rounds` may be left out.

        Raises
        ------
        UnprotectedError
            If no client answers the greeting as one that protects.
        NoReplyError, BudgetError
            If the run cannot go on; `models` and `history` hold what was released before.
        """
        if num_rounds not in (None, self.rounds):
            raise FieldError("num_rounds", num_rounds, f"the clients are told of {self.rounds} rounds; leave it out")
        if self.history:
            raise FieldError("start", len(self.history), "this strategy has run: build another one")
        self._timeout = timeout
        left = self.rounds - self.done
        return super().start(grid, initial_arrays, left, timeout, train_config, evaluate_config, evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Greet new nodes, draw the cohort, broadcast."""
        if self.broadcast is None and self._initial is None:
            self.models = from_arrays(self.layout, arrays)[None]
        self._roster.meet(grid, self._timeout)
        number, everybody = self.done + server_round, self._roster.partitions
        size = self._size or len(everybody)
        if size > len(everybody):
            raise FieldError("clients_per_round", size, f"there are only {len(everybody)} clients")
        cohort = draw_cohort(self._seed, number, everybody, size)
        self.broadcast = self.server.open(self.models, number, self.rounds, size)
        self._asked = {self._roster.nodes[p]: p for p in cohort if p in self._roster.nodes}
        self._absent = {p: "is not connected" for p in cohort if p not in self._roster.nodes}
        content = write_broadcast(self.broadcast, self.layout, config)
        return [Message(content, node, MessageType.TRAIN) for node in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the protected replies, whatever their order."""
        if self.broadcast is None:
            raise FedVeilError("aggregate_train was called before configure_train")
        released, failed, refused = self._sort(replies)
        self.received, broadcast = released, self.broadcast
        opened, log = self.server.combine(broadcast, released, {**self._absent, **failed}, refused)
        self.models = opened.models
        self.history.append(log)
        metrics = _mean({p: released[p] for p in log.used})
        counts = {"used": len(log.used), "failed": len(log.failed), "invalid": len(log.invalid)}
        report: dict[str, Any] = {**metrics, **log.report, **counts, "refused": len(log.refused)}
        if self._on_round is not None:
            self._on_round(log)
        return to_arrays(self.layout, self.models[0]), MetricRecord(report)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask everybody who is connected; nobody under local trust."""
        self._asked = {}
        if not self.evaluate or self.method.client.trust != "central" or self.broadcast is None:
            return []
        broadcast = Broadcast(models=self.models, public=self.broadcast.public)
        self._asked = {node: partition for partition, node in sorted(self._roster.nodes.items())}
        content = write_broadcast(broadcast, self.layout, config)
        return [Message(content, node, MessageType.EVALUATE) for node in self._asked]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Mean of the clients' metrics, weighted by their counts; None under local trust."""
        if self.method.client.trust != "central":
            return None
        released, failed, _ = self._sort(replies)
        for partition, found in list(released.items()):
            try:
                check_figures(found)
            except ReplyError as error:
                failed[partition] = cleaned(error)
                del released[partition]
        for partition, reason in failed.items():
            _LOG.info("client %s did not evaluate: %s", partition, reason)
        return MetricRecord(dict(_mean(released))) if released else None

    def summary(self) -> None:
        """Log what will run, and what it is worth."""
        client, server = self.method.client, self.method.server
        _LOG.info("\t├──> Method: %s, %s trust", self.method.name, client.trust)
        _LOG.info("\t├──> Client side: %s", client)
        _LOG.info("\t├──> Server side: %s", server)
        _LOG.info("\t├──> Rounds: %d, of which done: %d", self.rounds, self.done)
        _LOG.info("\t└──> Shared: %d parameters in %d arrays", self.layout.size, len(self.layout.names))

    def _sort(self, replies: Iterable[Message]) -> tuple[dict[int, Releases], dict[int, str], dict[int, str]]:
        """Releases, failures and refusals by partition; a partition that answers twice, or as another one, fails."""
        released: dict[int, Releases] = {}
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        silent = set(self._asked.values())
        for reply in replies:
            partition = self._asked.get(reply.metadata.src_node_id)
            if partition is None:
                _LOG.warning("a reply of node %d, which was not asked, is ignored", reply.metadata.src_node_id)
            elif partition not in silent:
                released.pop(partition, None)
                refused.pop(partition, None)
                failed[partition] = "sent two replies in one round"
            elif reply.has_error():
                target = refused if reply.error.code == REFUSED else failed
                target[partition] = cleaned(reply.error.reason)
            else:
                try:
                    claimed, counted = read_mark(reply.content, self.method.client)
                    if claimed != partition:
                        raise FieldError("partition-id", claimed, f"the node spoke for partition {partition} before")
                    released[partition] = read_releases(reply.content, self.layout, counted)
                except Exception as error:  # whatever a client sends is that client's failure
                    failed[partition] = cleaned(f"{type(error).__name__}: {error}")
            silent.discard(-1 if partition is None else partition)
        return released, failed | dict.fromkeys(sorted(silent), "did not reply in time"), refused


def _mean(replies: Mapping[int, Releases]) -> dict[str, float]:
    """Mean of each metric over the clients that sent it, weighted by counts (each 1 where there is none)."""
    sums: dict[str, tuple[float, float]] = {}
    for partition in sorted(replies):
        count = count_of(replies[partition])
        weight = 1.0 if count is None else count
        for release in replies[partition]:
            if release.kind == "metric" and isfinite(float(release.value)):
                total, weights = sums.get(release.name, (0.0, 0.0))
                sums[release.name] = (total + weight * float(release.value), weights + weight)
    return {name: total / weights for name, (total, weights) in sums.items() if weights > 0}
