"""The strategy: the server's half of every method, for any Flower app whose clients run the privacy mod."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedveil.accounting import Guarantee, SpendFilter
from fedveil.engines.assembly import AnyMethod, draw_cohort, resolve_method, several
from fedveil.engines.flower import records
from fedveil.engines.flower.roster import Nodes, Roster
from fedveil.engines.flower.validation import Evaluating
from fedveil.engines.history import Best
from fedveil.engines.rounds import RoundLoop
from fedveil.engines.server import Round, ServerParty
from fedveil.engines.serving import RunKeeper, Serving, Standing, served
from fedveil.engines.stopping import EarlyStopping
from fedveil.errors import (
    BudgetError,
    FedVeilError,
    FieldError,
    NoReplyError,
    require_count,
    require_rounds,
)
from fedveil.layout import Layout
from fedveil.logs import logger
from fedveil.mechanisms import source_of
from fedveil.methods import Broadcast, Releases, SecureSum
from fedveil.ranges import require_within

_LOG = logger("flwr")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class FedVeilStrategy(Strategy):
    """Run a method's server side under Flower.

    Parameters
    ----------
    method : Method, what `Federation` takes as one, or ServerParty
        The clients' mod must be given the same. A `ServerParty` where more is to be said of the server: its randomness,
        ledger, public scorer (for FedRE) or tutor (for FLTrust).
    layout : Layout, optional
        What the model shares. A ServerParty has its own, and its own budget.
    rounds : int, optional
        Rounds planned, known to every client. Default: those that the method's noise was planned for.
    initial : Tensor, optional
        [k, d], the first hypotheses. Default: the arrays given to `start`, and for k > 1 beside them copies whose
        entries are shuffled within each array, which is as good a start if the arrays are freshly initialised.
    clients : int, optional
        Clients of the federation, partitions 0, 1, ...; the first round waits for them. Default: whoever is
        connected when it begins, which is when there are `min_clients`.
    clients_per_round : int, optional
        Size of a round's cohort, drawn by partition without replacement. Default: everybody.
    seed : int, optional
        Reproducible cohorts and noise, for experiments. Default: secure noise. A ServerParty's noise is its own.
    budget : SpendFilter, optional
        Ends the run before the server exceeds it.
    folder : RunKeeper, optional
        Keeps the server's ledger, one line a round, the model and a summary:
        ``fedveil.flower.ServerFolder("runs/mine")``. With ``resume=True`` the run in it goes on where it stood. Beside
        a ServerParty, opened by whoever built that.
    evaluate : bool
        Whether to ask clients to evaluate, until none of them does; under local trust they are never asked, as no
        metric may leave.
    done : int
        Rounds that an earlier server of this run has done, of `rounds` in all, where no folder's checkpoint knows it:
        give a `ServerParty` with the ledger of those rounds, or the `folder` in which they were begun. The first
        arrays, or `initial`, are the models of the last of them. An optimiser of the server begins anew, as does
        `stopping`. Under local trust no total is stated, as the earlier rounds stand in the clients' own ledgers alone.
    on_round : callable, optional
        Called with each finished `Round`.
    patience : float
        Seconds to wait for clients in the first round.
    min_clients : int
        Usable replies without which a round is not combined and the run ends: the mean of one is its model.
    attempts : int
        Questions of one round at the most, of a secure sum: where a site does not answer, the others are asked anew
        without it, or with it if they are too few, and each pays one more release. A site that declined is asked no
        more.
    delta : float
        At which the log states an epsilon, unless the budget names its own.
    stopping : EarlyStopping, optional
        Ends the run by the losses of nodes that only validate (``privacy_mod(..., validation=Validation())``), which
        hold the data: it names no clients, and `sample` says how many nodes the first round waits for (default: one).
        `start` then returns the best model as arrays.

    Attributes
    ----------
    best : Best
        The models with the least validation loss, and when that was.
    stopped : str
        Why the run ended before its last round, or "".
    models : Tensor
        [k, d], the last released hypotheses; `start` returns the first one as arrays.
    history : list of Round
        What happened in each round.
    broadcast : Broadcast
        What opened the last round; None before the first.
    received : dict of int to Releases
        What arrived in the last round, by partition.
    """

    _least_nodes = 0  # for which a round waits

    def __init__(
        self,
        method: AnyMethod | ServerParty,
        layout: Layout | None = None,
        *,
        rounds: int | None = None,
        initial: Tensor | None = None,
        clients: int | None = None,
        clients_per_round: int | None = None,
        seed: int | None = None,
        budget: SpendFilter | None = None,
        folder: RunKeeper | None = None,
        evaluate: bool = True,
        done: int = 0,
        on_round: Callable[[Round], None] | None = None,
        patience: float = 600.0,
        min_clients: int = 2,
        attempts: int = 3,
        delta: float = 1e-5,
        stopping: EarlyStopping | None = None,
    ) -> None:
        planned = method.method if isinstance(method, ServerParty) else resolve_method(method)
        self.rounds = require_rounds("rounds", planned.planned if rounds is None else rounds)
        self.done, self._on_round = require_count("done", done, least=0), on_round
        self.server = served(
            method, layout, self.rounds, source_of(seed), budget, folder, "flower", self.done
        )
        self.method, self.layout = self.server.method, self.server.layout
        standing = self._standing = None if folder is None else folder.standing
        if standing is not None:
            self.done = standing.round
        wanted = (self.method.server.hypotheses, self.layout.size)
        if initial is not None and initial.shape != wanted:
            raise FieldError("initial", tuple(initial.shape), f"must be [k, d] = {wanted}")
        self._size = clients_per_round and require_count("clients_per_round", clients_per_round)
        self._seed = secrets.randbits(62) if seed is None else seed
        self._evaluating = Evaluating(self.server, stopping, self._seed, evaluate)
        delta, least = (
            require_within("delta", "delta", delta),
            require_count("min_clients", min_clients),
        )
        self._folder = folder
        self._serving = Serving(self.server, self.rounds, delta, folder, least, _LOG)
        self.stopped, self.history = "", self._serving.history
        validators = 0 if stopping is None else stopping.sample or 1
        before = () if standing is None else standing.partitions
        self._roster = Roster(self.method.client, clients, patience, validators, before, least)
        sites = clients_per_round or clients
        if self.method.noisy is not None and sites is not None:
            self.method.noisy.require_sites(
                sites, "clients_per_round" if clients_per_round else "clients"
            )
        if isinstance(self.method.server, SecureSum) and self.method.server.lr is None:
            raise FieldError(
                "lr",
                None,
                'is needed: the step is the server\'s; build("record", sum="secure", lr=0.5)',
            )
        self._nodes = Nodes(self.server, self._roster, attempts)
        self._loop = RoundLoop(self._serving, self._nodes)
        self._result = Result()  # Flower's own is lost where a budget ends the run
        self.models = torch.zeros(0, self.layout.size) if initial is None else initial
        self.received: dict[int, Releases] = {}
        self._begun = self._ended = False
        if standing is not None:
            self._go_on(standing)

    def _go_on(self, standing: Standing) -> None:
        """Put the server back to where its folder says that it stood."""
        self.server.resume(standing.models, standing.round, standing.state)
        self.models = standing.models
        self._evaluating.best = self._serving.best = standing.best
        self._serving.partitions = standing.partitions

    @property
    def guarantee(self) -> Guarantee:
        """Promise of the rounds so far together.

        Under central trust the trusted server's total. Under local trust that of a client that took part in all of
        them, by its own quotes: what each one really spent stands in its own ledger.
        """
        return self._serving.guarantee

    @property
    def broadcast(self) -> Broadcast | None:
        """Broadcast of the last round; None before the first."""
        return self._loop.broadcast

    @property
    def best(self) -> Best:
        """The models with the least validation loss."""
        return self._evaluating.best

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run all planned rounds, as ``Strategy.start`` does; `num_rounds` may be left out.

        A budget that is used up after the first round ends the run as if it had been planned so: the result holds the
        last model, `stopped` says why.

        Raises
        ------
        UnprotectedError
            If no client answers the greeting as one that protects.
        NoReplyError, BudgetError
            If the run cannot go on; `models` and `history` hold what was released before.
        """
        if num_rounds not in (None, self.rounds):
            raise FieldError(
                "num_rounds",
                num_rounds,
                f"the clients are told of {self.rounds} rounds; leave it out",
            )
        if self.history or self._ended:
            raise FieldError("start", len(self.history), "this strategy has run: build another one")
        if not len(self.models):
            self._require_shapes(initial_arrays)
        self._nodes.timeout = timeout
        self._take_beside(initial_arrays)

        def measured(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = None if evaluate_fn is None else evaluate_fn(number, arrays)
            if metrics is not None:
                self._result.evaluate_metrics_serverapp[number] = metrics
            return metrics

        more, evaluate, failure, played = (
            self.rounds - self.done,
            evaluate_fn and measured,
            None,
            None,
        )
        first = self._arrays(self.models) if len(self.models) else initial_arrays
        try:
            self._begin(grid)
            played = self._play(grid, first, more, timeout, train_config, evaluate_config, evaluate)
            self._end()
        except (BudgetError, NoReplyError) as error:
            failure = error
        finally:
            if self._folder is not None:
                self._folder.leave()
        released = bool(self.history) or self._standing is not None
        if failure is not None and (isinstance(failure, NoReplyError) or not released):
            raise failure
        if released:
            models = self.models if self.best.models is None else self.best.models
            self._result.arrays = self._arrays(models)
        return self._result if played is None else played

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
        """Play so many rounds; what is to be returned in the place of this strategy's own result."""
        super().start(grid, arrays, rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def _require_shapes(self, arrays: ArrayRecord) -> None:
        """Refuse first arrays of another model than the layout's."""
        for own, name in self.layout.sent.items():
            known = name if name in arrays else own
            given, shape = (
                tuple(arrays[known].shape) if known in arrays else None,
                self.layout.shapes[own],
            )
            if given != shape:
                accepted = f"the layout has the shape {shape} there: make both of one model"
                raise FieldError(f"initial_arrays[{known!r}]", given, accepted)

    def _take_beside(self, arrays: ArrayRecord) -> None:
        """Note what the first arrays have beside those that are shared; nodes get it as it is."""
        if self._nodes.beside is None:
            self._nodes.beside = found = records.beside(self.layout, arrays)
            if found:
                told = "FedVeil: beside the model nodes get %s as it began; each keeps its own"
                _LOG.info(told, ", ".join(found))

    def _arrays(self, models: Tensor) -> ArrayRecord:
        """The first of the models [k, d] as arrays, with what the first arrays had beside it."""
        own = records.to_arrays(self.layout, models[0])
        return ArrayRecord({**own, **(self._nodes.beside or {})})

    def _begin(self, grid: Grid) -> None:
        """Bind the run in its folder, whoever calls the rounds."""
        if self._folder is not None and not self._begun:
            self._folder.begin(str(grid.run.run_id), self._serving.delta)
        self._begun = True

    def _end(self, stopped: str = "") -> None:
        """Tell what the run came to, and write it, once; nothing of a run that released nothing and was stopped."""
        if self._ended or (stopped and not self.history and self._standing is None):
            return
        self._ended, self.stopped = True, stopped
        self._serving.end(self.models, stopped, len(self._roster.partitions), self.done)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the run where it cannot go on, whoever calls the rounds."""
        try:
            yield
        except (BudgetError, NoReplyError) as error:
            self.stopped = str(error)
            self._end(self.stopped)
            raise

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Greet new nodes, draw the cohort, broadcast."""
        with self._ending():
            self._begin(grid)
            if self._evaluating.stopped:
                raise BudgetError(self._evaluating.stopped)
            self._take_beside(arrays)
            if not len(self.models):
                start, k = records.from_arrays(self.layout, arrays), self.method.server.hypotheses
                self.models = several(start, self.layout, k, self._seed)
            number = self.done + server_round
            if number > self.rounds:
                raise FieldError(
                    "server_round",
                    number,
                    f"the clients are told of {self.rounds} rounds: plan them all",
                )
            self.server.require_rounds(number - 1)
            if self.done and not self.history:
                self.server.resume(self.models, self.done, self.server.state)
            self._nodes.grid = grid
            self._roster.meet(
                grid, self._nodes.timeout, max(self.method.least_sites, self._least_nodes)
            )
            self._serving.partitions = tuple(self._roster.partitions)
            size, cohort, self._nodes.config = self._cohort(server_round, arrays, config)
            self._loop.begin(self.models, number, self.rounds, size, cohort)
            return self._nodes.sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the protected replies, whatever their order."""
        if self.broadcast is None:
            raise FedVeilError("aggregate_train was called before configure_train")
        with self._ending():
            self._nodes.take(replies)
            answers, released, log = self._loop.end()
            self.models = self._stepped(server_round, released)
        self.received = answers.replies
        counts = {
            name: len(getattr(log, name)) for name in ("used", "failed", "invalid", "refused")
        }
        if self._on_round is not None:
            self._on_round(log)
        metrics = MetricRecord({**self._told(log), **log.report, **counts})
        self._result.train_metrics_clientapp[server_round] = metrics
        if log.number == self.rounds:  # a loop of an app's own may not come back
            self._end()
        return self._arrays(self.models), metrics

    def _cohort(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> tuple[int, list[int], ConfigRecord]:
        """Size of a round's cohort, its partitions, and what else its clients are told."""
        everybody = self._roster.partitions
        size = self._size or len(everybody)
        return size, draw_cohort(self._seed, self.done + server_round, everybody, size), config

    def _stepped(self, server_round: int, released: Tensor) -> Tensor:
        """The next models [k, d], of those that were released."""
        return released

    def _told(self, log: Round) -> Mapping[str, Any]:
        """What the metrics of a round's clients come to."""
        return self._serving.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask everybody who is connected, nobody under local trust; with early stopping those who validate."""
        assert self.broadcast is not None  # a round was combined
        broadcast = Broadcast(models=self.models, public=self.broadcast.public)
        nodes = self._evaluating.nodes(self._roster, broadcast.public.round)
        nodes, config = self._evaluators(nodes, server_round, arrays, config)
        return self._nodes.address(broadcast, nodes, config, MessageType.EVALUATE)

    def _evaluators(
        self, nodes: dict[int, int], server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> tuple[dict[int, int], ConfigRecord]:
        """Whom to ask of the nodes that may be asked, by partition, and what else they are told."""
        return nodes, config

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean of the clients' metrics, weighted by their counts; None under local trust."""
        if not self._nodes.asked:
            return None
        released, failed, refused, _ = self._nodes.sorted(replies)
        number, best = self.done + server_round, self.best
        figures = self._evaluating.figures(released, failed | refused, number, self.models)
        if self.best is not best:
            self._serving.validated(self.best, number, self.models)
        if not figures:
            return None
        metrics = self._evaluated(server_round, released, figures)
        if metrics is not None:
            self._result.evaluate_metrics_clientapp[server_round] = metrics
        return metrics

    def _evaluated(
        self, server_round: int, released: Mapping[int, Releases], figures: Mapping[str, float]
    ) -> MetricRecord | None:
        """What clients' evaluations come to: `figures`, their means."""
        return MetricRecord(dict(figures))

    def summary(self) -> None:
        """Log what will run, and what it is worth."""
        client, server = self.method.client, self.method.server
        _LOG.info("\t├──> Method: %s, %s trust", self.method.name, client.trust)
        _LOG.info("\t├──> Client side: %s", client)
        _LOG.info("\t├──> Server side: %s", server)
        _LOG.info("\t├──> Rounds: %d, of which done: %d", self.rounds, self.done)
        _LOG.info(
            "\t└──> Shared: %d parameters in %d arrays", self.layout.size, len(self.layout.names)
        )
