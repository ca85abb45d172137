"""The embedded engine: a whole federation in one process."""

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
from fedveil.engines.cohort import Cohort
from fedveil.engines.fit import read_clients, same_examples, task_for
from fedveil.engines.history import Best, History, RoundRecord, publishable, totals_of
from fedveil.engines.malicious import Behaviour, MaliciousCohort
from fedveil.engines.options import Budgets, Evaluation, Execution, PerClient, Shared
from fedveil.engines.parties import Parties
from fedveil.engines.party import SERVER, VALIDATE
from fedveil.engines.rounds import Collected, Courier, RoundLoop
from fedveil.engines.seams import Seen, probed
from fedveil.engines.server import Round, ServerParty
from fedveil.engines.stopping import EarlyStopping
from fedveil.engines.validators import Validators
from fedveil.engines.warning import RunWarning, Warnings
from fedveil.errors import BudgetError, FieldError, NoReplyError, require_a, require_rounds
from fedveil.layout import Layout
from fedveil.learning import ClientData, Figures, LocalTraining
from fedveil.learning.clients import as_client
from fedveil.learning.metrics import metric_names
from fedveil.mechanisms import ReproducibleSource, Source
from fedveil.methods import Broadcast
from fedveil.secure import PublicKey
from fedveil.wrapped import COMPILED, uncompiled


class Federation:
    """Train one model over clients that do not share their data, in one process.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model, whose parameters start the run; or a function without arguments that builds one (needed for several
        hypotheses, each built under its own seed).
    clients : sequence of ClientData or of tuples of tensors or arrays
        ``(x, y)`` or ``(x, y, test_x, test_y)`` a client.
    method : str, Aggregator, ServerSide, ClientSide, Method or PerClient, optional
        What protects the clients: a wrapped rule such as ``MetricPrivacy(FedAvg())``, a client side such as
        ``SGALDP(epsilon_max=8)``, both, a shorthand of `fedveil.methods.METHODS`, or a rule alone (no privacy); a
        `PerClient` where some clients have their own parameters. Default: FedAvg.
    local : LocalTraining, optional
        What a client does in a round.
    seed : int
        Of initial models, cohorts, training and (reproducible) noise.
    source : Source, optional
        Randomness of the noise. Default: reproducible from `seed`, for experiments. Give a `SecureSource` to deploy.
    clients_per_round : int, optional
        Size of each round's cohort, drawn without replacement. Default: everybody.
    shared : Shared, optional
        What all have in common beside the model: first hypotheses, public data, the sensitive region, and what becomes
        of buffers.
    budgets : Budgets, optional
        What the server and each client may spend, and the policy of the clients' owners.
    evaluation : Evaluation, optional
        What is measured, who is shown it, and when it ends the run.
    behaviours : mapping of int to Behaviour, optional
        Malicious clients, by partition.
    execution : Execution, optional
        How it is carried out: trainer, threads, where ledgers are kept.

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
        shared, budgets, evaluation = shared or Shared(), budgets or Budgets(), evaluation or Evaluation()
        self.execution = execution or Execution()
        _require_arguments(seed, source, behaviours)
        self.seed, self.source = int(seed), source or ReproducibleSource(seed)
        self.clients, self.behaviours = read_clients(clients), dict(behaviours or {})
        self.probes = list(evaluation.probes)
        each = method if isinstance(method, PerClient) else PerClient(method)
        self.method = assembly.resolve_method(each.method)
        self.client_sides = assembly.client_sides_of(self.method, each.sides, len(self.clients))
        self._begin_training(model, local, shared)
        self.metrics = metric_names(evaluation.metrics, self.task)
        self.cohort_size = assembly.cohort_size(clients_per_round, len(self.clients), self.method)
        self.method = assembly.with_local_rate(self.method, self.learner.local)
        self._begin_parties(budgets, evaluation, shared.public_data)
        self.validators: Validators | None = None
        if evaluation.stopping is not None:
            self.validators = self._validating(evaluation.stopping)
        self._connect()

    def _begin_training(
        self, model: nn.Module | Callable[[], nn.Module], local: LocalTraining | None, shared: Shared
    ) -> None:
        """Build the model and what trains it, and warn of what is odd about the clients' data."""
        execution, compiled = self.execution, list[str]()
        plain = uncompiled(model, lambda: compiled.append(COMPILED))
        hypotheses = self.method.server.hypotheses
        module, starts = assembly.initial_broadcast(plain, hypotheses, self.seed, shared.buffers, shared.initial)
        self.models, self.round = starts, 0
        self.layout = Layout.from_module(module, buffers=shared.buffers)
        how = (self.method, self.clients, shared.region, execution.trainer, execution.workers)
        self.learner = execution.learner or assembly.learner_of(module, self.layout, local, *how)
        self.task = task_for(module, self.clients, self.learner.local.loss)
        if self.learner.private_trainer is not None:
            self.learner.private_trainer.check_sizes(self.clients, least=1 if execution.single_examples else 2)
        tell = execution.tell or partial(warn, category=RunWarning, stacklevel=5)
        self.warnings = Warnings(self.method, self.layout, tell)
        odd = (*compiled, *oddities(self.clients), *same_examples(self.clients))
        for line in odd if execution.learner is None else ():
            self.warnings.say(line, line)

    def _begin_parties(self, budgets: Budgets, evaluation: Evaluation, public_data: Any) -> None:
        """Make the clients' parties and the server, with their ledgers."""
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
        public = None if public_data is None else as_client(public_data, "public_data")
        ledger, store = self.parties.ledger(SERVER)
        self.server = ServerParty(
            self.method,
            self.layout,
            ledger,
            self.source,
            budget=budgets.server,
            store=store,
            scorer=None if public is None else lambda models: self.learner.public_scores(models, public),
            tutor=None if public is None else lambda model, round_: self._trained_on(public, model, round_),
            publishing=evaluation.publishing,
        )

    def _validating(self, rule: EarlyStopping) -> Validators:
        """The clients that never train."""
        if self.own_buffers:
            accepted = "validation clients never train, and so have no statistics: use fedveil.learning.mend(model)"
            raise FieldError("buffers", "keep", accepted)
        return Validators(rule, self.parties, self.server, partial(self.warnings.say, "validation"))

    def _connect(self) -> None:
        """Hand the loop its courier: this process's clients, unless the execution brings another."""
        execution = self.execution
        make: Callable[..., Cohort] = Cohort
        if self.behaviours:
            make = partial(MaliciousCohort, behaviours=self.behaviours)
        self.embedded = make(
            self.parties,
            server=self.server,
            warnings=self.warnings,
            lookers=self.probes,
            workers=execution.workers,
        )
        self.courier: Courier = self.embedded if execution.courier is None else execution.courier(self)
        self._loop = RoundLoop(ObservedServer(self.server, self.parties, self.warnings), self.courier)

    @property
    def own_buffers(self) -> frozenset[str]:
        """Names of the statistics and counters that each client keeps."""
        return frozenset(dict(self.learner.model.named_buffers())) & set(self.layout.kept)

    @property
    def stopped(self) -> str:
        """Why no further round follows, or ""."""
        return "" if self.validators is None else self.validators.stopped

    def run(self, rounds: int | None = None, on_round: Callable[[RoundRecord], None] | None = None) -> History:
        """Train until `rounds` rounds are done.

        Parameters
        ----------
        rounds : int
            Rounds in all, those already done included.
        on_round : callable, optional
            Called after each round.

        Returns
        -------
        History
            Of the rounds done by this call.

        Raises
        ------
        NoReplyError
            If a round has no usable reply.
        """
        rounds = require_rounds("rounds", rounds)
        if on_round is not None and not callable(on_round):
            raise FieldError("on_round", type(on_round).__name__, "must be a function of a round: lambda record: ...")
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
        """Do one round after another, up to `rounds` in all, or until `stopped`."""
        rounds = require_rounds("rounds", rounds)
        while self.round < rounds and not self.stopped:
            self.begin(rounds)
            yield self.end()

    def begin(self, rounds: int) -> None:
        """Open the next round of so many in all and ask its cohort, before anybody trains.

        Raises
        ------
        BudgetError
            If the round must not be summed again.
        """
        self._began = perf_counter()
        number = self.round + 1
        self._loop.begin(self.models, number, rounds, self.cohort_size, self.cohort(number))

    def end(self) -> RoundRecord:
        """Collect what the cohort answers, combine, measure, publish, and show the round to the probes.

        Raises
        ------
        NoReplyError
            If no reply can be used, or every client that trained failed: a server under local trust could not tell.
        BudgetError
            If that is because clients have used up their budgets.
        """
        answers, self.models, log = self._loop.end()
        self.round = log.number
        single, pooled = self.evaluate()
        shown = () if self.server.publishing.metrics == "off" else self.server.publish(self.round, *publishable(single))
        record = RoundRecord(
            log,
            pooled,
            single,
            answers.scales,
            validation=None if self.validators is None else self.validators.validate(self.models, self.round),
            seconds=perf_counter() - self._began,
            published={release.name: float(release.value) for release in shown},
            zeroed=answers.zeroed,
        )
        assert self._loop.broadcast is not None  # the round was begun
        return probed(self.probes, Seen(self, self._loop.broadcast, answers.replies, self.models, record))

    def _trained_on(self, public: ClientData, model: Tensor, round_: int) -> Tensor:
        """The model [d] after training on public data as a client trains, under the key of no client."""
        (learned,) = self.learner.learn(model[None], [public], [(self.seed, round_, -1)])
        if isinstance(learned, Exception):
            raise learned
        return learned.trained.model

    def cohort(self, round_: int) -> list[int]:
        """Partitions of a round's cohort, ascending; keyed by seed and round."""
        return assembly.draw_cohort(self.seed, round_, range(len(self.clients)), self.cohort_size)

    def party(self, partition: int) -> ClientParty:
        """The party of one client; made when it is first needed."""
        return self.parties.party(partition)

    def evaluate(self) -> tuple[list[Figures], Figures | None]:
        """Measure the current models on what the clients held out; each client uses the hypothesis that fits it."""
        return self.parties.evaluate(self.models, self.metrics)

    def books(self) -> dict[str, Ledger]:
        """The ledger of the server and of every client, by name."""
        return self.parties.books([SERVER])

    def history(self, records: Sequence[RoundRecord], stopped: str = "") -> History:
        """What the run has left so far."""
        best, books = None, self.books()
        if self.validators is not None:
            best, books = self.validators.best, books | self.validators.books()
        totals = totals_of(self.method.client.trust, books)
        guarantees = {SERVER: totals.worst} if self.method.client.trust == "central" else totals.clients
        dicts = [self.layout.state_dict(self.learner.model, m) for m in self.models]
        stamp = self.source.kind if self.source.deployable else f"{self.source.kind}, not for deployment"
        promised = {**guarantees, **totals.validators}
        return History(records, self.models, dicts, totals.worst, promised, stopped, stamp, best, totals.validation)

    def client_states(self) -> dict[int, Any]:
        """State of every client that has one, by partition."""
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
        """Continue from a checkpoint; `best` is that of the validation clients, where there are any.

        `lines` says how many each ledger had then, by party. Where it is not known, a client of which a ledger lacks a
        round must be one that declines.

        Raises
        ------
        FieldError
            If the checkpoint is of another model, or a budget would start over because no ledger came with it.
        LedgerError
            If the models are not those that the server released in that round.
        """
        if models.shape != self.models.shape or models.dtype != self.models.dtype:
            raise FieldError("checkpoint", tuple(models.shape), f"does not fit this model: {tuple(self.models.shape)}")
        if self.own_buffers and round_:
            raise FieldError("buffers", "keep", "no checkpoint holds the clients' own statistics: start a new run")
        if (best is None) != (self.validators is None):
            raise FieldError("stopping", best, "the checkpoint and this run disagree on whether there is validation")
        if self.validators is not None and best is not None:
            self.validators.best = best
        self.server.resume(models, round_, server_state)
        books = self.books() | ({} if self.validators is None else self.validators.books())
        for party, count in (lines or {}).items():
            if party not in books or books[party].lines < count:
                accepted = (
                    f"{party!r} has fewer lines than the {count} of the checkpoint: give the ledger that has them"
                )
                raise FieldError("ledgers", party, accepted)
        if lines is None:
            self._require_books(round_)
        self.models, self.round = models, round_
        self.parties.resume(client_states)
        self._connect()

    def _require_books(self, round_: int) -> None:
        """Refuse ledgers that lack what rounds before must have left in them."""
        if self.validators is not None and (last := self.validators.best.round):
            books = [self.server.ledger, *self.validators.books().values()]
            if not any(book.find((last, VALIDATE)) for book in books):
                raise FieldError("ledgers", last, "no ledger has the validation loss of this round: give the run's own")
        asked: dict[int, list[int]] = {}
        for number in range(1, round_ + 1):
            for partition in self.cohort(number):
                if self.embedded.records(partition):
                    asked.setdefault(partition, []).append(number)
        self.parties.require_books(asked)


class ObservedServer:
    """The server of a run in one process, which tells the experimenter what is odd.

    Parameters
    ----------
    server : ServerParty
        Opens and combines the rounds.
    parties : Parties
        All clients, whose ledgers say why nobody is left.
    warnings : Warnings
        Told what is odd.
    """

    def __init__(self, server: ServerParty, parties: Parties, warnings: Warnings) -> None:
        self._server, self._parties, self._warnings = server, parties, warnings

    def require_unsummed(self, round_: int) -> None:
        """See `ServerParty.require_unsummed`."""
        self._server.require_unsummed(round_)

    def open(
        self,
        models: Tensor,
        round_: int,
        rounds: int,
        cohort: int,
        roster: Sequence[PublicKey] = (),
        attempt: int = 0,
    ) -> Broadcast:
        """Open a round."""
        self._warnings.planned(rounds, cohort)
        return self._server.open(models, round_, rounds, cohort, roster, attempt)

    def asked(self, answers: Collected) -> None:
        """Nothing: the clients' ledgers are at hand."""

    def close(self, broadcast: Broadcast, answers: Collected) -> tuple[Tensor, Round]:
        """Combine a round, and look at what arrived."""
        assembly.require_success(broadcast.public.round, answers.trained, answers.zeroed)
        report = dict[str, float]()
        arrived = list(answers.replies.values())  # what `combine` holds is gone where it fails
        try:
            parts = (answers.replies, answers.failed, answers.refused, 1, answers.added)
            opened, log = self._server.combine(broadcast, *parts)
            report = dict(log.report)
        except NoReplyError as error:
            raise self._parties.used_up(answers.refused, error) from error
        finally:
            kind = "" if answers.loss is None else str(self._parties.learner.local.loss)
            self._warnings.combined(broadcast.models[0], arrived, report, answers.loss or 0.0, kind)
        return opened.models, log


def _require_arguments(seed: object, source: object, behaviours: object) -> None:
    """Refuse arguments of other types."""
    if not isinstance(seed, int):
        raise FieldError("seed", seed, "must be an integer")
    if source is not None and not isinstance(source, Source):
        accepted = "must be a source of randomness: fedveil.mechanisms.SecureSource(), or leave it out"
        raise FieldError("source", source, accepted)
    if behaviours is not None:
        require_a("behaviours", behaviours, Mapping, "must be a table: {partition: behaviour}")
