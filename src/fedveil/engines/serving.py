"""What a server keeps of a deployed run beside its party: rounds, cost, log, folder."""

from collections.abc import Mapping
from logging import Logger
from math import isfinite
from pathlib import Path
from typing import Protocol

from torch import Tensor

from fedveil.accounting import Ledger, count_of
from fedveil.engines.account import Account
from fedveil.engines.party import LineStore, Round, ServerParty
from fedveil.engines.warning import Warnings
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, Method, Releases


class RunKeeper(Protocol):
    """Where a deployed run is kept; `fedveil.runs.deployed.ServerFolder` is one.

    Attributes
    ----------
    run : str
        The framework's id of the run, by which clients' own ledgers know it.
    """

    run: str

    @property
    def path(self) -> Path:
        """Of the folder."""

    @property
    def opened(self) -> bool:
        """Whether a run was begun in it."""

    def open(
        self, method: Method, layout: Layout, rounds: int, source: Source, engine: str
    ) -> tuple[Ledger, LineStore]:
        """Begin a run: the server's ledger, and what makes a line of it durable."""

    def finish_round(self, log: Round, metrics: Mapping[str, float]) -> None:
        """Make a round durable."""

    def finish(self, models: Tensor, spent: Account, stopped: str, clients: int) -> None:
        """Write what the run came to, and let go of the folder."""


class Serving:
    """The rounds of a deployed run.

    Parameters
    ----------
    server : ServerParty
        Combines them.
    account : Account
        Of the same server.
    folder : RunKeeper, optional
        Opened, where the run is to be kept.
    least : int
        Usable replies that a round needs.
    log : Logger
        The framework's.

    Attributes
    ----------
    history : list of Round
        What happened in each round.
    """

    def __init__(
        self, server: ServerParty, account: Account, folder: RunKeeper | None, least: int, log: Logger
    ) -> None:
        self._server, self._account, self._folder = server, account, folder
        self._least, self._log = least, log
        self.history: list[Round] = []
        self.warnings = Warnings(server.method, server.layout, lambda text: log.warning("FedVeil: %s", text))

    def close(
        self,
        broadcast: Broadcast,
        released: Mapping[int, Releases],
        failed: Mapping[int, str],
        refused: Mapping[int, str],
    ) -> tuple[Tensor, Round, dict[str, float]]:
        """Combine a round, keep and tell it: the next models [k, d], the round, the clients' mean metrics."""
        opened, log = self._server.combine(broadcast, released, failed, refused, self._least)
        self.history.append(log)
        self.warnings.planned(self._account.rounds, broadcast.public.cohort)
        self.warnings.combined(broadcast.models[0], [released[p] for p in log.used], log.report)
        metrics = mean_metrics({p: released[p] for p in log.used})
        for partition, why in {**log.failed, **log.invalid, **log.refused}.items():
            self._log.warning("client %d: %s", partition, why)
        self._log.info("FedVeil: %s", self._account.closed(log))
        if self._folder is not None:
            self._folder.finish_round(log, metrics)
        return opened.models, log, metrics

    def end(self, models: Tensor, stopped: str, clients: int, done: int = 0) -> None:
        """Tell what the run came to."""
        if stopped:
            self._log.warning("FedVeil ended the run early: %s", stopped)
        for partition, why in self._account.always_failed().items():
            self._log.warning("client %d failed in every round in which it was asked: %s", partition, why)
        made, planned = done + len(self.history), self._account.rounds
        self._log.info("FedVeil: %d of %d rounds; %s", made, planned, self._account.spent())
        if self._folder is not None:
            self._folder.finish(models, self._account, stopped, clients)
            self._log.info("written to %s", self._folder.path)


def mean_metrics(replies: Mapping[int, Releases]) -> dict[str, float]:
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
