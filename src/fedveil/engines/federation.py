"""A whole federation in one process, for experiments: the embedded engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any
from warnings import warn

from torch import Tensor, nn

from fedveil.accounting import Ledger
from fedveil.checks import suggesting
from fedveil.data.overview import oddities
from fedveil.engines import assembly
from fedveil.engines.assembly import AnyMethod
from fedveil.engines.client import ClientParty
from fedveil.engines.embedded import Cohort, ObservedServer
from fedveil.engines.fit import read_clients, same_examples, task_for
from fedveil.engines.history import Best, History, RoundRecord, publishable, totals_of
from fedveil.engines.malicious import Behaviour, MaliciousCohort
from fedveil.engines.options import Budgets, Evaluation, Execution, PerClient, Shared
from fedveil.engines.parties import Parties
from fedveil.engines.party import SERVER
from fedveil.engines.resuming import asked_until, require_books, require_lines, require_validated
from fedveil.engines.rounds import Courier, RoundLoop
from fedveil.engines.seams import Seen, probed
from fedveil.engines.server import ServerParty
from fedveil.engines.stopping import EarlyStopping
from fedveil.engines.validators import Validators
from fedveil.engines.warning import RunWarning, Warnings
from fedveil.errors import BudgetError, FieldError, kind_of, require_a, require_rounds
from fedveil.layout import Layout
from fedveil.learning import ClientData, Figures, LocalTraining
from fedveil.learning.answers import TaskKind
from fedveil.learning.clients import as_client
from fedveil.learning.learner import Learner
from fedveil.learning.metrics import metric_names
from fedveil.mechanisms import ReproducibleSource, Source
from fedveil.wrapped import COMPILED, uncompiled


class Federation:
    """Train one model on the data of several clients, with a privacy method, all in one process.

    Parameters
    ----------
    model : torch.nn.Module or callable
        Model whose parameters start the run, or a function without arguments that builds one. Several hypotheses need a
        function, as each is built with its own seed.
    clients : sequence of ClientData or of tuples of tensors or arrays
        ``(x, y)`` or ``(x, y, test_x, test_y)`` for each client.
    method : str, Aggregator, ServerSide, ClientSide, Method or PerClient, optional
        Protection of the clients: a wrapped rule such as ``MetricPrivacy(FedAvg())``, a client side such as
        ``SGALDP(epsilon_max=8)``, both, a name in `fedveil.methods.METHODS`, or a rule alone (no privacy). `PerClient`
        gives some clients their own parameters. Default: FedAvg.
    local : LocalTraining, optional
        Options of a client's training in a round.
    seed : int
        Seed of initial models, cohorts, training and (reproducible) noise.
    source : Source, optional
        Randomness of the noise. Default: reproducible from `seed`, for experiments. Give a `SecureSource` to deploy.
    clients_per_round : int, optional
        Size of each round's cohort, drawn without replacement. Default: all clients.
    shared : Shared, optional
        Values shared by all parties besides the model: first hypotheses, public data, the sensitive region, and the
        treatment of buffers.
    budgets : Budgets, optional
        Budgets of the server and of each client, and the policy of the clients' owners.
    evaluation : Evaluation, optional
        Metrics, their publication, and early stopping.
    behaviours : mapping of int to Behaviour, optional
        Behaviour of malicious clients, by partition.
    execution : Execution, optional
        Trainer, threads, and place of the ledgers.

    Examples
    --------
    >>> private = fv.GlobalDP(noise_multiplier=2.0, clip=1.0)
    >>> federation = fv.Federation(model=model, clients=clients, method=private, seed=1)
    >>> history = federation.run(2)
    >>> history.guarantee.describe(1e-5)
    'formal eps=2.944 at delta=1e-05 (zero-out, client, central, total)'
    """

    @suggesting
    def __init__(
        self,
        *,
        model: nn.Module | Callable[[], nn.Module],
        clients: Sequence[ClientData | Sequence[Any]],
        method: AnyMethod | PerClient | None = None,
        local: LocalTraining | None = None,
        seed: int = 0,
        source: Source | None = None,
        clients_per_round: int | None = None,
        shared: Shared | None = None,
        budgets: Budgets | None = None,
        evaluation: Evaluation | None = None,
        behaviours: Mapping[int, Behaviour] | None = None,
        execution: Execution | None = None,
    ) -> None:
        shared, budgets, evaluation = (
            shared or Shared(),
            budgets or Budgets(),
            evaluation or Evaluation(),
        )
        self.execution = execution or Execution()
        _require_arguments(seed, source, behaviours)
        self.seed, self.source = int(seed), source or ReproducibleSource(seed)
        self.clients, self.behaviours = read_clients(clients), dict(behaviours or {})
        self.probes = list(evaluation.probes)
        each = method if isinstance(method, PerClient) else PerClient(method)
        self.method = assembly.resolve_method(each.method)
        self.client_sides = assembly.client_sides_of(self.method, each.sides, len(self.clients))
        compiled: list[str] = []
        module = self._build_model(model, shared, compiled)
        self._make_learner(module, local, shared)
        if self.execution.learner is None:
            for line in (*compiled, *oddities(self.clients), *same_examples(self.clients)):
                self.warnings.say(line, line)
        self.method = assembly.with_local_rate(self.method, self.learner.local)
        self.metrics = metric_names(evaluation.metrics, self.task)
        self.cohort_size = assembly.cohort_size(clients_per_round, len(self.clients), self.method)
        self._make_parties(budgets)
        self._make_server(budgets, evaluation, shared.public_data)
        self.validators: Validators | None = None
        if evaluation.stopping is not None:
            self.validators = self._validating(evaluation.stopping)
        self._connect()

    def _build_model(
        self, model: nn.Module | Callable[[], nn.Module], shared: Shared, compiled: list[str]
    ) -> nn.Module:
        """Build the model and the first hypotheses [k, d]; a warning about a compiled model is added to `compiled`."""
        plain = uncompiled(model, partial(compiled.append, COMPILED))
        hypotheses = self.method.server.hypotheses
        module, starts = assembly.initial_broadcast(
            plain, hypotheses, self.seed, shared.buffers, shared.initial
        )
        self.models, self.round = starts, 0
        self.layout = Layout.from_module(module, buffers=shared.buffers)
        return module

    def _make_learner(self, module: nn.Module, local: LocalTraining | None, shared: Shared) -> None:
        """Make the clients' learner, and the receiver of its warnings."""
        execution = self.execution
        self.learner: Learner = execution.learner or assembly.learner_of(
            module,
            self.layout,
            local,
            self.method,
            self.clients,
            shared.region,
            execution.trainer,
            execution.workers,
        )
        self.task: TaskKind = task_for(module, self.clients, self.learner.local.loss)
        if self.learner.private_trainer is not None:
            self.learner.private_trainer.check_sizes(
                self.clients, least=1 if execution.single_examples else 2
            )
        tell = execution.tell or partial(warn, category=RunWarning, stacklevel=5)
        self.warnings: Warnings = Warnings(self.method, self.layout, tell)

    def _make_parties(self, budgets: Budgets) -> None:
        """Make the clients' parties, with their ledgers."""
        self.parties = Parties(
            self.clients,
            self.method,
            self.client_sides,
            self.layout,
            self.learner,
            self.source,
            self.seed,
            budgets,
            self.execution,
        )

    def _make_server(self, budgets: Budgets, evaluation: Evaluation, public_data: Any) -> None:
        """Make the server, with its ledger and a scorer and trainer on the public data."""
        scorer = tutor = None
        if public_data is not None:
            public = as_client(public_data, "public_data")
            scorer = partial(self.learner.public_scores, public=public)
            tutor = partial(self._trained_on, public)
        ledger, store = self.parties.ledger(SERVER)
        self.server = ServerParty(
            self.method,
            self.layout,
            ledger,
            self.source,
            budget=budgets.server,
            store=store,
            scorer=scorer,
            tutor=tutor,
            publishing=evaluation.publishing,
        )

    def _validating(self, rule: EarlyStopping) -> Validators:
        """Make the validation clients, which never train."""
        if self.own_buffers:
            accepted = "validation clients never train, and so have no statistics: use fedveil.learning.mend(model)"
            raise FieldError("buffers", "keep", accepted)
        return Validators(rule, self.parties, self.server, partial(self.warnings.say, "validation"))

    def _connect(self) -> None:
        """Make the loop over rounds, with this process's clients as courier unless `execution` names another courier."""
        make: Callable[..., Cohort] = Cohort
        if self.behaviours:
            make = partial(MaliciousCohort, behaviours=self.behaviours)
        self.embedded = make(
            self.parties,
            server=self.server,
            warnings=self.warnings,
            lookers=self.probes,
            workers=self.execution.workers,
        )
        self.courier: Courier = self.embedded
        if self.execution.courier is not None:
            self.courier = self.execution.courier(self)
        self._loop = RoundLoop(
            ObservedServer(self.server, self.parties, self.warnings), self.courier
        )

    @property
    def own_buffers(self) -> frozenset[str]:
        """Names of the statistics and counters (buffers) that each client keeps for itself."""
        names = {name for name, _ in self.learner.model.named_buffers()}
        return frozenset(names & set(self.layout.kept))

    @property
    def stopped(self) -> str:
        """Reason why no further round follows; "" if the run may continue."""
        return "" if self.validators is None else self.validators.stopped

    def run(
        self, rounds: int | None = None, on_round: Callable[[RoundRecord], None] | None = None
    ) -> History:
        """Train until `rounds` rounds are done in total, and return their records.

        Parameters
        ----------
        rounds : int
            Number of rounds in total, including those already done.
        on_round : callable, optional
            Called after each round.

        Returns
        -------
        History
            Records of the rounds done by this call.

        Raises
        ------
        NoReplyError
            If a round has no usable reply.
        """
        rounds = require_rounds("rounds", rounds)
        if on_round is not None and not callable(on_round):
            raise FieldError(
                "on_round",
                kind_of(on_round),
                "must be a function of a round: lambda record: ...",
            )
        records: list[RoundRecord] = []
        stopped = ""
        try:
            for record in self.rounds(rounds):
                records.append(record)
                if on_round is not None:
                    on_round(record)
        except BudgetError as error:
            stopped = str(error)
        return self.history(records, stopped or self.stopped)

    def rounds(self, rounds: int) -> Iterator[RoundRecord]:
        """Yield the record of each further round, up to `rounds` in total or until `stopped`."""
        rounds = require_rounds("rounds", rounds)
        while self.round < rounds and not self.stopped:
            self.begin(rounds)
            yield self.end()

    def begin(self, rounds: int) -> None:
        """Open the next of `rounds` rounds, and ask each client of its cohort whether it takes part.

        Raises
        ------
        BudgetError
            If the round's trusted sum was already released and must not be made again.
        """
        self._began = perf_counter()
        number = self.round + 1
        self._loop.begin(self.models, number, rounds, self.cohort_size, self.cohort(number))

    def end(self) -> RoundRecord:
        """Finish the round: train, combine, measure, publish, and pass the record to the probes.

        Raises
        ------
        NoReplyError
            If no reply can be used, or every client that trained failed. (A real server under local trust could not see
            the latter.)
        BudgetError
            If no reply can be used because clients have used up their budgets.
        """
        answers, self.models, log = self._loop.end()
        self.round = log.number
        single, pooled = self.evaluate()
        record = RoundRecord(
            log,
            pooled,
            single,
            answers.scales,
            published=self._publish(single),
            validation=self._validate(),
            seconds=perf_counter() - self._began,
            zeroed=answers.zeroed,
        )
        assert self._loop.broadcast is not None  # the round was begun
        return probed(
            self.probes, Seen(self, self._loop.broadcast, answers.replies, self.models, record)
        )

    def _publish(self, single: Sequence[Figures]) -> dict[str, float]:
        """Publish the clients' metrics to the clients, if publishing is on."""
        if self.server.publishing.metrics == "off":
            return {}
        shown = self.server.publish(self.round, *publishable(single))
        return {release.name: float(release.value) for release in shown}

    def _validate(self) -> float | None:
        """Return the validation clients' loss; None if the round is not validated."""
        if self.validators is None:
            return None
        return self.validators.validate(self.models, self.round)

    def _trained_on(self, public: ClientData, model: Tensor, round_: int) -> Tensor:
        """Train a model [d] on public data as a client would, with random numbers of its own (partition -1)."""
        (learned,) = self.learner.learn(model[None], [public], [(self.seed, round_, -1)])
        if isinstance(learned, Exception):
            raise learned
        return learned.trained.model

    def cohort(self, round_: int) -> list[int]:
        """Draw the partitions of a round's cohort, ascending; they depend only on seed and round."""
        return assembly.draw_cohort(self.seed, round_, range(len(self.clients)), self.cohort_size)

    def party(self, partition: int) -> ClientParty:
        """Return the party of one client."""
        return self.parties.party(partition)

    def evaluate(self) -> tuple[list[Figures], Figures | None]:
        """Measure the current models on held-out examples: metrics of each client (with its best hypothesis), and pooled."""
        return self.parties.evaluate(self.models, self.metrics)

    def books(self) -> dict[str, Ledger]:
        """Return the ledgers of the server and of every client, by name."""
        return self.parties.books()

    def history(self, records: Sequence[RoundRecord], stopped: str = "") -> History:
        """Return the history of the run so far."""
        totals = totals_of(self.method.client.trust, self._all_books())
        guarantees = totals.clients
        if self.method.client.trust == "central":
            guarantees = {SERVER: totals.worst}
        source = self.source.kind
        if not self.source.deployable:
            source = f"{source}, not for deployment"
        return History(
            records,
            self.models,
            [self.layout.state_dict(self.learner.model, model) for model in self.models],
            totals.worst,
            {**guarantees, **totals.validators},
            stopped,
            source,
            None if self.validators is None else self.validators.best,
            totals.validation,
        )

    def client_states(self) -> dict[int, Any]:
        """Return the state of every client that has one, by partition."""
        return self.parties.states()

    def restore(
        self,
        models: Tensor,
        round_: int,
        server_state: Any,
        client_states: Mapping[int, Any],
        best: Best | None = None,
        lines: Mapping[str, int] | None = None,
    ) -> None:
        """Continue from a checkpoint; `best` is the state of early stopping, if there is one.

        `lines` is the number of lines of each ledger at that time, by party. Without it, a ledger may lack a round only
        if its client would decline the round.

        Raises
        ------
        FieldError
            If the checkpoint is of another model. Also if a ledger is missing, because a budget would start over.
        LedgerError
            If the models are not the released ones of that round in the server's ledger.
        """
        if models.shape != self.models.shape or models.dtype != self.models.dtype:
            raise FieldError(
                "checkpoint",
                tuple(models.shape),
                f"does not fit this model: {tuple(self.models.shape)}",
            )
        if self.own_buffers and round_:
            raise FieldError(
                "buffers",
                "keep",
                "no checkpoint holds the clients' own statistics: start a new run",
            )
        if (best is None) != (self.validators is None):
            raise FieldError(
                "stopping",
                best,
                "the checkpoint and this run disagree on whether there is validation",
            )
        if self.validators is not None and best is not None:
            self.validators.best = best
        self.server.resume(models, round_, server_state)
        if lines is None:
            self._require_books(round_)
        else:
            require_lines(self._all_books(), lines)
        self.models, self.round = models, round_
        self.parties.resume(client_states)
        self._connect()

    def _all_books(self) -> dict[str, Ledger]:
        """Return all ledgers, also those of validation clients, by name."""
        if self.validators is None:
            return self.books()
        return {**self.books(), **self.validators.books()}

    def _require_books(self, round_: int) -> None:
        """Refuse ledgers that lack entries of earlier rounds."""
        if self.validators is not None and self.validators.best.round:
            books = [self.server.ledger, *self.validators.books().values()]
            require_validated(books, self.validators.best.round)
        require_books(self.parties, asked_until(round_, self.cohort, self.embedded.records))


def _require_arguments(seed: object, source: object, behaviours: object) -> None:
    """Refuse arguments of wrong types."""
    if not isinstance(seed, int):
        raise FieldError("seed", seed, "must be an integer")
    if source is not None and not isinstance(source, Source):
        accepted = (
            "must be a source of randomness: fedveil.mechanisms.SecureSource(), or leave it out"
        )
        raise FieldError("source", source, accepted)
    if behaviours is not None:
        require_a("behaviours", behaviours, Mapping, "must be a table: {partition: behaviour}")
