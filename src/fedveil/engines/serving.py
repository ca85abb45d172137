"""Server of a deployed run with its records: rounds, cost, failures, log, and folder."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from logging import Logger
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fedveil.accounting import (
    Filter,
    Guarantee,
    Ledger,
    Spend,
    SpendFilter,
    count_of,
    total,
    unprotected,
)
from fedveil.accounting.bounds import Heuristic
from fedveil.engines.answers import Collected
from fedveil.engines.assembly import AnyMethod, resolve_method
from fedveil.engines.history import Best, total_of
from fedveil.engines.party import SERVER, LineStore, forget
from fedveil.engines.server import Round, Scorer, ServerParty, Tutor
from fedveil.engines.warning import Warnings
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.logs import escaping
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, Method, Releases
from fedveil.secure import PublicKey

QUOTED_BEFORE = "rounds before this server's are in the clients' own ledgers alone, and those count"


@dataclass(frozen=True, eq=False)
class Standing:
    """Saved state of a run after a round; another server can continue from it.

    Attributes
    ----------
    round : int
        Number of rounds done.
    models : Tensor
        [k, d], models released in that round.
    state : object
        State of the method's server side.
    best : Best
        Models with the least validation loss.
    partitions : tuple of int
        Partitions of the federation.
    """

    round: int
    models: Tensor
    state: Any
    best: Best
    partitions: tuple[int, ...]


class RunKeeper(Protocol):
    """Interface for the storage of a deployed run, such as `fedveil.evidence.ServerFolder`.

    Attributes
    ----------
    path : Path
        Path of the folder.
    opened : bool
        Whether a run was begun or resumed in it.
    resume : bool
        Whether a run is to be resumed in it.
    standing : Standing, optional
        State of the resumed run, after opening; None before the end of its first round.
    """

    path: Path
    opened: bool
    resume: bool
    standing: Standing | None

    def open(
        self,
        method: Method,
        layout: Layout,
        rounds: int,
        source: Source,
        engine: str,
        done: int = 0,
    ) -> tuple[Ledger, LineStore]:
        """Begin a run, or resume it after `done` rounds; return the server's ledger and its line store."""

    def begin(self, run: str, delta: float) -> None:
        """Record the framework's id of the run, which clients' ledgers also have, before any client is asked."""

    def record(self, broadcast: Broadcast, replies: Mapping[int, Releases], models: Tensor) -> None:
        """Store the parts of a round that the user asked to keep."""

    def finish_round(self, log: Round, metrics: Mapping[str, float], standing: Standing) -> None:
        """Write a round to the disk before its models are sent."""

    def keep(self, standing: Standing) -> None:
        """Replace the saved state of the run."""

    def finish(self, models: Tensor, serving: "Serving", stopped: str, clients: int) -> None:
        """Write the result of the run, and unlock the folder."""

    def leave(self) -> None:
        """Unlock the folder, however the run ended."""


def served(
    method: AnyMethod | ServerParty,
    layout: Layout | None,
    rounds: int,
    source: Source,
    budget: SpendFilter | None,
    folder: RunKeeper | None,
    engine: str,
    done: int = 0,
    scorer: Scorer | None = None,
    tutor: Tutor | None = None,
) -> ServerParty:
    """Make the server for a method, with its ledger in a folder or in memory; a given server is returned.

    `scorer` and `tutor` are those of `ServerParty`.

    Raises
    ------
    FieldError
        If a method comes without a layout, an argument duplicates one of the given server, or its ledger lacks done
        rounds.
    """
    if folder is not None and folder.resume and done:
        raise FieldError("done", done, f"leave it out: {folder.path} knows how far the run came")
    if done >= rounds:
        raise FieldError(
            "done", done, f"must be below rounds = {rounds}: the rounds before, of so many in all"
        )
    if isinstance(method, ServerParty):
        for name, value in {"layout": layout, "budget": budget}.items():
            if value is not None:
                raise FieldError(name, value, "is the server's own: build the ServerParty with it")
        if folder is not None and not folder.opened:
            accepted = "keeps the server's ledger: open it, and build the ServerParty with what that returns"
            raise FieldError("folder", str(folder.path), accepted)
        method.require_rounds(done, "done")
        return method
    if layout is None:
        raise FieldError(
            "layout", None, "is what the model shares: fedveil.Layout.from_module(model)"
        )
    method = resolve_method(method)
    if done and folder is None:
        accepted = "needs the ledger of those rounds, or the total would forget them: give folder=, in which the run "
        accepted += "was begun, or in the method's place a ServerParty with that ledger"
        raise FieldError("done", done, accepted)
    ledger: Ledger = Ledger(engine, SERVER)
    store: LineStore = forget
    if folder is not None:
        ledger, store = folder.open(method, layout, rounds, source, engine, done)
    try:
        server = ServerParty(
            method, layout, ledger, source, budget=budget, store=store, scorer=scorer, tutor=tutor
        )
        server.require_rounds(done, "done")
    except BaseException:
        if folder is not None:
            folder.leave()
        raise
    return server


class Serving:
    """Rounds of a deployed run at the server, with their cost as far as a server can know it.

    Parameters
    ----------
    server : ServerParty
        Server that combines the rounds; its ledger and budget count under central trust.
    rounds : int
        Planned number of rounds.
    delta : float
        Delta of the stated epsilon, unless the budget has its own.
    folder : RunKeeper, optional
        Opened storage of the run.
    least : int
        Least number of usable replies.
    log : Logger
        Log of the framework.

    Attributes
    ----------
    server : ServerParty
        Server, as given.
    history : list of Round
        Log of each round.
    metrics : dict of str to float
        Mean metrics of the clients in the last round.
    best : Best
        Models with the least validation loss.
    partitions : tuple of int
        Partitions of the federation.
    """

    def __init__(
        self,
        server: ServerParty,
        rounds: int,
        delta: float,
        folder: RunKeeper | None,
        least: int,
        log: Logger,
    ) -> None:
        self.server, self.rounds, self._folder = server, rounds, folder
        self._least, self._log = least, escaping(log)
        self.delta = delta
        if server.budget is not None and server.budget.terms is not None:
            self.delta = server.budget.terms["delta"]
        self._central = server.method.client.trust == "central"
        # clients were asked before, at a cost that is not known here
        self._earlier = bool(server.ledger.entries) or (folder is not None and folder.resume)
        self.best, self.partitions = Best(), tuple[int, ...]()
        self._quotes: list[Spend] = []
        self._asked: list[Spend] = []
        self.history: list[Round] = []
        self.metrics: dict[str, float] = {}
        self.warnings = Warnings(
            server.method, server.layout, lambda text: log.warning("FedVeil: %s", text)
        )

    @property
    def guarantee(self) -> Guarantee:
        """Promise of all rounds so far together; under local trust, to a client that took part in all of them.

        If an earlier server did some rounds, this server does not know their cost and states no total under local
        trust; each client's own ledger has it. A question without collected answers counts, because clients may have
        paid for it.
        """
        if self._central:
            return total_of(self.server.ledger) if self.server.ledger.entries else unprotected()
        if self._earlier:
            return replace(
                unprotected(self.server.method.client.trust),
                bound=Heuristic(QUOTED_BEFORE),
                scope="total",
            )
        quotes = [*self._quotes, *self._asked]
        if not quotes:
            return unprotected("local")
        return total(spend.guarantee for spend in quotes)

    def require_unsummed(self, round_: int) -> None:
        """See `ServerParty.require_unsummed`."""
        self.server.require_unsummed(round_)

    def open(
        self,
        models: Tensor,
        round_: int,
        rounds: int,
        cohort: int,
        roster: Sequence[PublicKey] = (),
        attempt: int = 0,
    ) -> Broadcast:
        """Open a round, and note the quoted cost that each asked client pays."""
        broadcast = self.server.open(models, round_, rounds, cohort, roster, attempt)
        broadcast = self.server.receipted(broadcast)
        side = self.server.method.client
        quoted = side.quote(broadcast, side.init())
        if isinstance(quoted, Spend):
            self._asked.append(quoted)
        return broadcast

    def asked(self, answers: Collected) -> None:
        """Count a question unless all clients declined. Clients that answered have paid, even if the round then fails."""
        if answers.replies or answers.failed:
            self._quotes += self._asked
        self._asked = []

    def close(self, broadcast: Broadcast, answers: Collected) -> tuple[Tensor, Round]:
        """Combine, store and report a round; return the next models [k, d] and the log of the round."""
        opened, log = self.server.combine(broadcast, answers, self._least)
        self.history.append(log)
        self.warnings.planned(self.rounds, broadcast.public.cohort)
        used = {partition: answers.replies[partition] for partition in log.used}
        self.warnings.combined(broadcast.models[0], list(used.values()), log.report)
        self.metrics = mean_metrics(used)
        without = {**log.failed, **log.invalid, **log.refused}
        for partition, why in without.items():
            self._log.warning("client %d: %s", partition, why)
        done = f"round {log.number} of {self.rounds}"
        self._log.info(
            "FedVeil: %s: %d of %d clients; %s",
            done,
            len(used),
            len(used) + len(without),
            self._spent(log),
        )
        if self._folder is not None:
            self._folder.record(broadcast, answers.replies, opened.models)
            self._folder.finish_round(log, self.metrics, self._standing(log.number, opened.models))
        return opened.models, log

    def validated(self, best: Best, round_: int, models: Tensor) -> None:
        """Store the result of a round's validation."""
        self.best = best
        if self._folder is not None:
            self._folder.keep(self._standing(round_, models))

    def _standing(self, round_: int, models: Tensor) -> Standing:
        return Standing(round_, models, self.server.state, self.best, self.partitions)

    def end(self, models: Tensor, stopped: str, clients: int, done: int = 0) -> None:
        """Report the result of the run, and write it to the folder."""
        if stopped:
            self._log.warning("FedVeil ended the run early: %s", stopped)
        for partition, why in self.always_failed().items():
            self._log.warning(
                "client %d failed in every round in which it was asked: %s", partition, why
            )
        self._log.info(
            "FedVeil: %d of %d rounds; %s", done + len(self.history), self.rounds, self._spent()
        )
        if self._folder is not None:
            self._folder.finish(models, self, stopped, clients)
            self._log.info("written to %s", self._folder.path)

    def always_failed(self) -> dict[int, str]:
        """Return the clients that failed whenever they were asked, with the last reason.

        Under local trust a failed client answers with a zero update, so the server sees only failures of whole nodes.
        """
        lost: dict[int, str] = {}
        for log in self.history:
            lost |= {**log.failed, **log.invalid}
        well: set[int] = set()
        for log in self.history:
            well |= {*log.used, *log.refused}
        return {partition: why for partition, why in sorted(lost.items()) if partition not in well}

    def _spent(self, log: Round | None = None) -> str:
        """Describe the spent budget after a round, and how much is left."""
        spent = self.guarantee.describe(self.delta)
        if not self._central:
            return (
                f"spent by a client that took part in every round: {spent}; its own ledger counts"
            )
        left = "" if log is None else self._rounds_left(log)
        return f"spent: {spent}{left}"

    def _rounds_left(self, log: Round) -> str:
        """Return how many more rounds like the last one the server's budget allows, as text."""
        budget, planned = self.server.budget, self.rounds - log.number
        if budget is None:
            return ""
        copy, more = deepcopy(budget), 0
        while more < planned and copy.admit_spend(log.spend):
            more += 1
        of = ""
        if isinstance(budget, Filter) and budget.terms:
            of = f" of epsilon {budget.terms['epsilon']:g}"
        return f"; left{of}: {more} of the {planned} rounds to come"


def mean_metrics(replies: Mapping[int, Releases]) -> dict[str, float]:
    """Return the mean of each metric over the clients that sent it, weighted by their counts (1 without a count)."""
    sent = dict[str, list[tuple[float, float]]]()
    for partition in sorted(replies):
        count = count_of(replies[partition])
        weight = 1.0 if count is None else count
        for release in replies[partition]:
            if release.kind == "metric" and isfinite(float(release.value)):
                sent.setdefault(release.name, []).append((weight, float(release.value)))
    return {name: _mean(one) for name, one in sent.items() if sum(w for w, _ in one) > 0}


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the weighted mean of pairs (weight, value), without overflow."""
    weights = sum(weight for weight, _ in weighted)
    mean = sum(weight * value for weight, value in weighted) / weights
    if isfinite(mean):
        return mean
    return sum(weight / weights * value for weight, value in weighted)
