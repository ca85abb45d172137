"""The embedded engine: a whole federation in one process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
from fedveil.engines.fit import read_clients, same_examples, task_for
from fedveil.engines.history import Asked, Best, Collected, History, RoundRecord, publishable, totals_of
from fedveil.engines.members import Members
from fedveil.engines.options import Budgets, Evaluation, Execution, PerClient, Shared
from fedveil.engines.party import COMBINE, SERVER, VALIDATE
from fedveil.engines.replying import Replying
from fedveil.engines.seams import Behaviour, Seen, probed
from fedveil.engines.server import Round, ServerParty
from fedveil.engines.validators import Validators
from fedveil.engines.warning import RunWarning, Warnings
from fedveil.errors import BudgetError, FieldError, NoReplyError, require_a, require_rounds
from fedveil.layout import Layout
from fedveil.learning import ClientData, Figures, LocalTraining
from fedveil.learning.clients import as_client
from fedveil.learning.learner import Learned
from fedveil.learning.metrics import metric_names
from fedveil.mechanisms import ReproducibleSource, Source, begin_normals
from fedveil.methods import Broadcast, SecureSum
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
        self.execution = execution = execution or Execution()
        if not isinstance(seed, int):
            raise FieldError("seed", seed, "must be an integer")
        if source is not None and not isinstance(source, Source):
            accepted = "must be a source of randomness: fedveil.mechanisms.SecureSource(), or leave it out"
            raise FieldError("source", source, accepted)
        if behaviours is not None:
            require_a("behaviours", behaviours, Mapping, "must be a table: {partition: behaviour}")
        self.seed, self.source = int(seed), source or ReproducibleSource(seed)
        self.clients, self.behaviours = read_clients(clients), dict(behaviours or {})
        for partition in self.behaviours:
            if not isinstance(partition, int) or not 0 <= partition < len(self.clients):
                raise FieldError("behaviours", partition, f"there are partitions 0 to {len(self.clients) - 1}")
        self.probes = list(evaluation.probes)
        each = method if isinstance(method, PerClient) else PerClient(method)
        self.method = assembly.resolve_method(each.method)
        self.client_sides = assembly.client_sides_of(self.method, each.sides, len(self.clients))
        compiled: list[str] = []
        module, starts = assembly.initial_broadcast(
            uncompiled(model, lambda: compiled.append(COMPILED)),
            self.method.server.hypotheses,
            seed,
            shared.buffers,
            shared.initial,
        )
        self.layout = Layout.from_module(module, buffers=shared.buffers)
        how = (self.method, self.clients, shared.region, execution.trainer, execution.workers)
        self.learner = execution.learner or assembly.learner_of(module, self.layout, local, *how)
        self.task = task_for(module, self.clients, self.learner.local.loss)
        self.metrics = metric_names(evaluation.metrics, self.task)
        if self.learner.private_trainer is not None:
            self.learner.private_trainer.check_sizes(self.clients, least=1 if execution.single_examples else 2)
        tell = execution.tell or partial(warn, category=RunWarning, stacklevel=4)
        self.warnings = Warnings(self.method, self.layout, tell)
        odd = (*compiled, *oddities(self.clients), *same_examples(self.clients))
        for line in odd if execution.learner is None else ():
            self.warnings.say(line, line)
        self.cohort_size = assembly.cohort_size(clients_per_round, len(self.clients), self.method)
        own = self.method.server
        if isinstance(own, SecureSum) and own.lr is None:  # the step is the server's, as long as local training says
            self.method = replace(self.method, server=replace(own, lr=self.learner.local.rate()))
        self.members = Members(
            self.clients,
            self.method,
            self.client_sides,
            self.layout,
            self.learner,
            self.source,
            seed,
            budgets,
            execution,
        )
        self.replying = Replying(self.members, self.behaviours)
        public = None if shared.public_data is None else as_client(shared.public_data, "public_data")
        ledger, store = self.members.ledger(SERVER)
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
        self.validators: Validators | None = None
        if (rule := evaluation.stopping) is not None:
            if self.own_buffers:
                accepted = "validation clients never train, and so have no statistics: use fedveil.learning.mend(model)"
                raise FieldError("buffers", "keep", accepted)
            self.validators = Validators(rule, self.members, self.server, partial(self.warnings.say, "validation"))
        self.models, self.round = starts, 0

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
            yield self._next(rounds)

    def _next(self, rounds: int) -> RoundRecord:
        """One round, in a scope of its own: its models are gone before the next one makes others."""
        self.server.require_unsummed(self.round + 1)
        asked = self.ask(rounds)
        collected = self._answered(asked)
        while self.members.sites and (missing := set(asked.cohort) - collected.replies.keys()):
            asked = self.ask(rounds, asked, missing)  # without those who are missing: a sum is of all who are asked
            collected = self._answered(asked)
        return self.close(asked, collected)

    def _answered(self, asked: Asked) -> Collected:
        """Train those who were admitted; of a secure sum that somebody is missing from, nobody."""
        task = asked.task
        if self.members.sites and asked.refused:
            kept = {p: () for p in asked.cohort if p not in asked.refused}
            return Collected({**kept, **asked.answered})
        if not self.probes:
            asked = self.replying.adding(asked, self.server.state)
        if asked.task.then is not None:
            if self.execution.workers > 1:  # beside the clients' training
                begin_normals(self.source, self.layout.size, SERVER, asked.broadcast.public.round, COMBINE, 0)
            return self.collect(asked, self.learner.learn_together([asked.task])[0])
        return self.collect(asked, self.learner.learn(task.models, task.clients, task.keys, task.needs, task.sources))

    def ask(self, rounds: int, before: Asked | None = None, missing: Collection[int] = ()) -> Asked:
        """Open the next round and ask its cohort, before anybody trains; or ask it again without some of it.

        Raises
        ------
        NoReplyError, BudgetError
            If too few are left of a sum.
        """
        began = perf_counter()
        self.warnings.planned(rounds, self.cohort_size)
        cohort = self.cohort(self.round + 1) if before is None else [p for p in before.cohort if p not in missing]
        attempt = 0 if before is None else before.broadcast.public.attempt + 1
        if before is not None:
            self.members.require_sum(before, cohort)
        roster = self.members.sites.roster(cohort)
        broadcast = self.server.open(self.models, self.round + 1, rounds, self.cohort_size, roster, attempt)
        return self.replying.ask(broadcast, cohort, began)

    def collect(self, asked: Asked, learned: Sequence[Learned | Exception]) -> Collected:
        """Let the clients that trained (in the order of `asked.partitions`) protect what they send."""
        collected = self.replying.collect(asked, learned)
        models = [o.trained.model for o in learned if isinstance(o, Learned) and o.trained.examples]
        if models and self.method.client.trust != "central":  # else `close` looks at what arrived
            # the experimenter, who holds every client, may see what each would see alone
            kind = str(self.learner.local.loss)
            length = self.warnings.trained(asked.broadcast.models[0], models, collected.loss, kind)
            if self.method.noisy is None:
                self.warnings.protected(list(collected.scales.values()), len(collected.replies), length)
        return collected

    def close(self, asked: Asked, collected: Collected) -> RoundRecord:
        """Combine, measure, publish: the end of a round.

        Raises
        ------
        NoReplyError
            If no reply can be used, or every client that trained failed: a server under local trust could not tell.
        BudgetError
            If that is because clients have used up their budgets.
        """
        assembly.require_success(asked.broadcast.public.round, asked.partitions, collected.zeroed)
        arrived, report, start = list(collected.replies.values()), dict[str, float](), asked.broadcast.models[0]
        try:
            arrived_whole = (collected.replies, collected.failed, asked.refused, 1, collected.added)
            opened, log = self.server.combine(asked.broadcast, *arrived_whole)
            report = dict(log.report)
        except NoReplyError as error:
            raise self.members.used_up(asked, error) from error
        finally:
            self.warnings.combined(start, arrived, report, collected.loss, str(self.learner.local.loss))
        return self._measured(asked.broadcast, collected, opened.models, log, asked.began)

    def _measured(
        self, broadcast: Broadcast, collected: Collected, models: Tensor, log: Round, began: float
    ) -> RoundRecord:
        """Take over a round's models, measure them, publish, and show the round to the probes."""
        self.models, self.round = models, log.number
        single, pooled = self.evaluate()
        shown = () if self.server.publishing.metrics == "off" else self.server.publish(self.round, *publishable(single))
        published = {release.name: float(release.value) for release in shown}
        loss = None if self.validators is None else self.validators.validate(self.models, self.round)
        seconds = perf_counter() - began
        record = RoundRecord(
            log, pooled, single, collected.scales, seconds, published, zeroed=collected.zeroed, validation=loss
        )
        return probed(self.probes, Seen(self, broadcast, collected.replies, self.models, record))

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
        return self.members.party(partition)

    def evaluate(self) -> tuple[list[Figures], Figures | None]:
        """Measure the current models on what the clients held out; each client uses the hypothesis that fits it."""
        return self.members.evaluate(self.models, self.metrics)

    def books(self) -> dict[str, Ledger]:
        """The ledger of the server and of every client, by name."""
        return self.members.books([SERVER])

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
        return self.members.states()

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
        self.members.resume(client_states)

    def _require_books(self, round_: int) -> None:
        """Refuse ledgers that lack what rounds before must have left in them."""
        if self.validators is not None and (last := self.validators.best.round):
            books = [self.server.ledger, *self.validators.books().values()]
            if not any(book.find((last, VALIDATE)) for book in books):
                raise FieldError("ledgers", last, "no ledger has the validation loss of this round: give the run's own")
        asked: dict[int, list[int]] = {}
        for number in range(1, round_ + 1):
            for partition in self.cohort(number):
                if not self.replying.bypasses(partition):
                    asked.setdefault(partition, []).append(number)
        self.members.require_books(asked)
