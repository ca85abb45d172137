"""Flower strategy with the server's half of every method, for any app whose clients run the privacy mod."""

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
from fedveil.engines.assembly import (
    AnyMethod,
    draw_cohort,
    require_planned,
    require_undrawn,
    resolve_method,
    several,
)
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
    """Flower strategy that runs a method's server side.

    Parameters
    ----------
    method : Method, what `Federation` takes as one, or ServerParty
        Method, the same as in the clients' mod. A `ServerParty` also sets the server's randomness, ledger, public
        scorer (for FedRE) or tutor (for FLTrust).
    layout : Layout, optional
        Layout of the model. A `ServerParty` has its own layout and its own budget.
    rounds : int, optional
        Planned number of rounds, known to every client. Default: the number for which the method's noise was planned.
    initial : Tensor, optional
        [k, d], first hypotheses. Default: the arrays given to `start`. For k > 1 the others are copies with entries
        shuffled within each array, which is as good a start if the arrays are freshly initialised.
    clients : int, optional
        Number of clients of the federation, partitions 0, 1, ...; the first round waits for all. Default: the first
        round begins with `min_clients` clients, and all clients connected then form the federation. It is needed under
        add/remove, whose mean is divided by it; a client that is absent counts as a zero update.
    clients_per_round : int, optional
        Size of a round's cohort, drawn by partition without replacement. Default: all clients. Each round costs each
        client in full, whether it was asked or not; under add/remove a drawn cohort is refused.
    seed : int, optional
        Seed of reproducible cohorts and noise, for experiments. Default: secure noise. A `ServerParty` has its own
        noise.
    budget : SpendFilter, optional
        Budget of the server; the run ends before it is exceeded.
    folder : RunKeeper, optional
        Folder for the server's ledger (one line for each round), the model and a summary:
        ``fedveil.flower.ServerFolder("runs/mine")``. With ``resume=True`` the run in it continues. If `method` is a
        `ServerParty`, its author must have opened the folder.
    evaluate : bool
        Whether to ask clients to evaluate after each round, until none answers. Under local trust they are never asked,
        as no metric may leave.
    done : int
        Number of rounds that an earlier server of this run has done, unless a checkpoint in the folder says it. Then
        give a `ServerParty` with the ledger of those rounds, or the `folder` in which they began. The first arrays, or
        `initial`, must be the models of the last of these rounds. The server's optimiser and `stopping` start anew.
        Under local trust no total is stated, as only the clients' ledgers have the earlier rounds.
    on_round : callable, optional
        Called with each finished `Round`.
    patience : float
        Seconds to wait for clients in the first round.
    min_clients : int
        Least number of usable replies; with fewer the run ends without combining the round. The mean of one reply would
        be that client's model.
    attempts : int
        Most questions in one round of a secure sum. If a site does not answer, the others are asked again without it,
        or with it if they are too few. Each repeated question costs one more release. A site that declined is not asked
        again.
    delta : float
        Delta for the epsilon in the log, unless the budget has its own.
    stopping : EarlyStopping, optional
        Early stopping by the losses of nodes that only validate (``privacy_mod(..., validation=Validation())``). Its
        `clients` are left out, as the nodes hold the data. The first round waits for `sample` of these nodes (default:
        one). `start` then returns the best model as arrays.

    Attributes
    ----------
    best : Best
        Models with the least validation loss, and their round.
    stopped : str
        Reason why the run ended before its last round, or "".
    models : Tensor
        [k, d], last released hypotheses; `start` returns the first one as arrays.
    history : list of Round
        Log of each round.
    broadcast : Broadcast
        Broadcast of the last round; None before the first.
    received : dict of int to Releases
        Releases that arrived in the last round, by partition.
    """

    _least_nodes = 0  # number of nodes for which a round waits

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
        require_planned(clients, planned, "clients")
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
        if isinstance(self.method.server, SecureSum):
            self.method.server.rate()  # refused here, and not after the first round
        self._nodes = Nodes(self.server, self._roster, attempts)
        self._loop = RoundLoop(self._serving, self._nodes)
        self._result = Result()  # Flower's own is lost if a budget ends the run
        self.models = torch.zeros(0, self.layout.size) if initial is None else initial
        self.received: dict[int, Releases] = {}
        self._begun = self._ended = False
        if standing is not None:
            self._go_on(standing)

    def _go_on(self, standing: Standing) -> None:
        """Restore the server to the state in its folder."""
        self.server.resume(standing.models, standing.round, standing.state)
        self.models = standing.models
        self._evaluating.best = self._serving.best = standing.best
        self._serving.partitions = standing.partitions

    @property
    def guarantee(self) -> Guarantee:
        """Promise of all rounds so far together.

        Under central trust it is the server's total. Under local trust it is the quoted total of a client that took
        part in all rounds; the real cost is in the client's own ledger.
        """
        return self._serving.guarantee

    @property
    def broadcast(self) -> Broadcast | None:
        """Broadcast of the last round; None before the first."""
        return self._loop.broadcast

    @property
    def best(self) -> Best:
        """Models with the least validation loss."""
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
        """Run all planned rounds, as Flower's ``Strategy.start`` does; `num_rounds` may be left out.

        A run that goes on counts its rounds from its beginning; `evaluate_fn` and the result have these numbers.

        If a budget is used up after the first round, the run ends normally. The result holds the last model, and
        `stopped` the reason.

        Raises
        ------
        UnprotectedError
            If no client's answer to the greeting shows that it is protected.
        NoReplyError, BudgetError
            If the run cannot continue; `models` and `history` hold the earlier releases.
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

        def measured(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            number = self.done + server_round
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
        """Run Flower's loop over this many rounds; return a result that replaces Flower's, or None."""
        super().start(grid, arrays, rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def _require_shapes(self, arrays: ArrayRecord) -> None:
        """Refuse first arrays of other names or shapes than the layout's, or of a wider number type."""
        shared = self.layout.sent
        for block in self.layout.blocks:
            sent = shared[block.name]
            known = sent if sent in arrays else block.name
            field = f"initial_arrays[{known!r}]"
            if known not in arrays:
                accepted = (
                    f"the layout has the shape {block.shape} there, and these arrays are named "
                )
                accepted += f"{', '.join(map(repr, arrays))}: make both of one model"
                raise FieldError(field, None, accepted)
            given = arrays[known]
            if tuple(given.shape) != block.shape:
                accepted = f"the layout has the shape {block.shape} there: make both of one model"
                raise FieldError(field, tuple(given.shape), accepted)
            if given.dtype == "float64" and block.dtype != torch.float64:
                accepted = "the layout would hand nodes a narrower type, which scikit-learn, for one, refuses: "
                accepted += "Layout.from_shapes(shapes, torch.float64), or begin with float32"
                raise FieldError(field, given.dtype, accepted)

    def _take_beside(self, arrays: ArrayRecord) -> None:
        """Store the unshared arrays of the first arrays; nodes get them unchanged."""
        if self._nodes.beside is None:
            self._nodes.beside = found = records.beside(self.layout, arrays)
            if found:
                told = "FedVeil: beside the model nodes get %s as it began; each keeps its own"
                _LOG.info(told, ", ".join(found))

    def _arrays(self, models: Tensor) -> ArrayRecord:
        """Convert the first of the models [k, d] to arrays, together with the stored unshared arrays."""
        own = records.to_arrays(self.layout, models[0])
        return ArrayRecord({**own, **(self._nodes.beside or {})})

    def _begin(self, grid: Grid) -> None:
        """Record the run's id in its folder, at the first call of any round step."""
        if self._folder is not None and not self._begun:
            self._folder.begin(str(grid.run.run_id), self._serving.delta)
        self._begun = True

    def _end(self, stopped: str = "") -> None:
        """Report the run's result and write it to the folder, once. A run that stopped without any release has none."""
        if self._ended or (stopped and not self.history and self._standing is None):
            return
        self._ended, self.stopped = True, stopped
        self._serving.end(self.models, stopped, len(self._roster.partitions), self.done)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the run if an error in this context means that it cannot continue."""
        try:
            yield
        except (BudgetError, NoReplyError) as error:
            self.stopped = str(error)
            self._end(self.stopped)
            raise

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Greet new nodes, draw the cohort, and make the round's train messages."""
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
            require_undrawn(size, len(self._roster.partitions), self.method)
            self._loop.begin(self.models, number, self.rounds, size, cohort)
            return self._nodes.sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the protected replies by the method, and return the new model's arrays and the metrics."""
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
        self._result.train_metrics_clientapp[log.number] = metrics
        if log.number == self.rounds:  # an app's own loop may not come back
            self._end()
        return self._arrays(self.models), metrics

    def _cohort(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> tuple[int, list[int], ConfigRecord]:
        """Return the size of a round's cohort, its partitions, and further content of its messages."""
        everybody = self._roster.partitions
        size = self._size or len(everybody)
        return size, draw_cohort(self._seed, self.done + server_round, everybody, size), config

    def _stepped(self, server_round: int, released: Tensor) -> Tensor:
        """Return the models [k, d] of the next round; here the released ones."""
        return released

    def _told(self, log: Round) -> Mapping[str, Any]:
        """Return the mean metrics of a round's clients."""
        return self._serving.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make evaluate messages for all connected nodes (none under local trust); with early stopping, for validating nodes."""
        assert self.broadcast is not None  # a round was combined
        broadcast = Broadcast(models=self.models, public=self.broadcast.public)
        nodes = self._evaluating.nodes(self._roster, broadcast.public.round)
        nodes, config = self._evaluators(nodes, server_round, arrays, config)
        return self._nodes.address(broadcast, nodes, config, MessageType.EVALUATE)

    def _evaluators(
        self, nodes: dict[int, int], server_round: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> tuple[dict[int, int], ConfigRecord]:
        """Return the nodes to be asked, by partition, and further content of the messages; here all given nodes."""
        return nodes, config

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean of the clients' metrics, weighted by their counts; None under local trust."""
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
            self._result.evaluate_metrics_clientapp[number] = metrics
        return metrics

    def _evaluated(
        self, server_round: int, released: Mapping[int, Releases], figures: Mapping[str, float]
    ) -> MetricRecord | None:
        """Make the record of an evaluation from the mean metrics `figures`."""
        return MetricRecord(dict(figures))

    def summary(self) -> None:
        """Log the method, the plan and the promise of the run."""
        client, server = self.method.client, self.method.server
        _LOG.info("\t├──> Method: %s, %s trust", self.method.name, client.trust)
        _LOG.info("\t├──> Client side: %s", client)
        _LOG.info("\t├──> Server side: %s", server)
        _LOG.info("\t├──> Rounds: %d, of which done: %d", self.rounds, self.done)
        _LOG.info(
            "\t└──> Shared: %d parameters in %d arrays", self.layout.size, len(self.layout.names)
        )
