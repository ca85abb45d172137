"""The embedded engine: a whole federation in one process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import median
from time import perf_counter
from typing import Any
from warnings import warn

from torch import Tensor, nn

from fedveil.accounting import Ledger, Release, digest, unprotected
from fedveil.checks import suggesting
from fedveil.data.overview import oddities
from fedveil.engines.assembly import (
    AnyMethod,
    client_sides_of,
    draw_cohort,
    initial_broadcast,
    require_alike,
    require_fit,
    require_success,
    resolve_method,
    with_proximal_term,
)
from fedveil.engines.client import ClientParty
from fedveil.engines.disjoint import require_disjoint
from fedveil.engines.history import Asked, Best, Collected, History, RoundRecord, publishable, total_of
from fedveil.engines.lifetime import read_policy
from fedveil.engines.options import Budgets, Evaluation, Execution, PerClient, Shared, require_group
from fedveil.engines.party import COMBINE, SERVER
from fedveil.engines.replying import Replying
from fedveil.engines.seams import Behaviour, Seen, probed
from fedveil.engines.server import Round, ServerParty
from fedveil.engines.sites import Sites
from fedveil.engines.stopping import EarlyStopping, Validators, worst_of
from fedveil.engines.warning import Warnings
from fedveil.errors import BudgetError, FieldError, LedgerError, NoReplyError, require_count, require_rounds
from fedveil.layout import Layout
from fedveil.learning import ClientData, Figures, LocalTraining, choose_each, evaluate_clients, make_trainer
from fedveil.learning.clients import as_client
from fedveil.learning.learner import Learned, Learner, Passing, Task
from fedveil.learning.metrics import metric_names, task_of
from fedveil.mechanisms import ReproducibleSource, Source, begin_normals
from fedveil.methods import Broadcast, Method, Refusal, SecureSum, TrustedServer, in_order
from fedveil.secure import FEWEST


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
        kinds = (Shared, Budgets, Evaluation, Execution)
        for given, kind in zip((shared, budgets, evaluation, execution), kinds, strict=True):
            require_group(given, kind)
        self.clients = [as_client(c, f"clients[{i}]") for i, c in enumerate(clients)]
        if not self.clients:
            raise FieldError("clients", [], "a federation needs at least one client")
        if not any(client.examples for client in self.clients):
            raise FieldError("clients", "no examples", "at least one client needs some: len(x) is 0 everywhere")
        require_alike(self.clients)
        self._held_out = any(client.held_out for client in self.clients)
        self.probes = list(evaluation.probes)
        self.metrics = metric_names(evaluation.metrics, task_of(self.clients[0].y))
        self.behaviours, self.policy = dict(behaviours or {}), read_policy(budgets.policy)
        for partition in self.behaviours:
            if not 0 <= partition < len(self.clients):
                raise FieldError("behaviours", partition, f"there are partitions 0 to {len(self.clients) - 1}")
        each = method if isinstance(method, PerClient) else PerClient(method)
        self.method = resolve_method(each.method)
        self.client_sides = client_sides_of(self.method, each.sides, len(self.clients))
        if not isinstance(seed, int):
            raise FieldError("seed", seed, "must be an integer")
        self.seed = int(seed)
        module, starts = initial_broadcast(model, self.method.server.hypotheses, seed, shared.buffers, shared.initial)
        self.layout = Layout.from_module(module, buffers=shared.buffers)
        if not isinstance(local, LocalTraining | None):
            raise FieldError("local", type(local).__name__, "must be LocalTraining(lr=..., epochs=..., ...)")
        local = with_proximal_term(local or LocalTraining(), self.method)
        noisy = self.method.noisy
        if execution.learner is None:
            require_fit(module, self.clients, local.loss)
            steps, threads = noisy.noisy_steps if noisy else None, execution.workers
            trainer = make_trainer(module, self.layout, local, execution.trainer, workers=threads, noisy=steps)
            self.learner = Learner(module, self.layout, local, region=shared.region, trainer=trainer)
        else:
            self.learner = execution.learner
        if self.learner.private_trainer is not None:
            self.learner.private_trainer.check_sizes(self.clients, least=1 if execution.single_examples else 2)
        self.warnings = Warnings(self.method, self.layout, execution.tell or partial(warn, stacklevel=4))
        for line in oddities(self.clients) if execution.learner is None else ():
            self.warnings.say(line, line)
        sampled = clients_per_round is not None and clients_per_round < len(self.clients)
        if sampled and self.method.server.relation == "add/remove":
            raise FieldError("relation", "add/remove", "a sampled cohort changes with its members: use zero-out")
        self.cohort_size = require_count("clients_per_round", clients_per_round or len(self.clients))
        if self.cohort_size > len(self.clients):
            raise FieldError("clients_per_round", clients_per_round, f"there are only {len(self.clients)} clients")
        if noisy is not None:
            noisy.require_sites(self.cohort_size, "clients_per_round" if sampled else "clients")
        if source is not None and not isinstance(source, Source):
            accepted = "must be a source of randomness: fedveil.mechanisms.SecureSource(), or leave it out"
            raise FieldError("source", source, accepted)
        self.source = source or ReproducibleSource(seed)
        make = execution.ledgers or (lambda party: (Ledger(execution.run_id, party), lambda line: None))
        self.sites, own = Sites(), self.method.server
        if isinstance(own, SecureSum):
            self.sites = Sites.of(execution.keys, len(self.clients), self.source, self.seed)
            if own.lr is None:  # the step is the server's, as long as local training says
                self.method = replace(self.method, server=replace(own, lr=self.learner.local.rate()))
        self._ledgers = cache(make)  # one ledger a party, for as long as the federation lives
        self._budgets = budgets.clients or (lambda partition: noisy.budget() if noisy else None)
        self._parties: dict[int, ClientParty] = {}
        self._rehearsed: set[int] = set()
        self.replying = Replying(self.method, self.layout, self.behaviours, self.client_sides, self.party)
        self._client_states: dict[int, Any] = {}
        public = None if shared.public_data is None else as_client(shared.public_data, "public_data")
        scorer = None if public is None else (lambda models: self.learner.public_scores(models, public))
        tutor = None if public is None else (lambda model, round_: self._trained_on(public, model, round_))
        ledger, store = self._ledgers(SERVER)
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
        self.validators: Validators | None = None
        if evaluation.stopping is not None:
            self.validators = self._validators(evaluation.stopping, budgets)
        self.models, self.round = starts, 0

    def _validators(self, rule: EarlyStopping, budgets: Budgets) -> Validators:
        """The clients that validate, once they are known to share no record with those that train."""
        if self.own_buffers:
            accepted = "validation clients never train, and so have no statistics: use fedveil.learning.mend(model)"
            raise FieldError("buffers", "keep", accepted)
        held = [as_client(c, f"stopping.clients[{i}]") for i, c in enumerate(rule.clients)]
        noisy = self.method.noisy
        persons = noisy is not None and noisy.noisy_steps.images > 0
        require_disjoint(self.clients, held, rule.twins, people=persons)
        own, first = budgets.clients, len(self.clients)
        return Validators(
            rule,
            held,
            self.learner,
            self.server,
            self.source,
            self._ledgers,
            self.seed,
            policy=self.policy,
            budgets=lambda p: None if own is None else own(first + p),
            say=lambda text: self.warnings.say("validation", text),
        )

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
        while self.sites and (missing := set(asked.cohort) - collected.replies.keys()):
            asked = self.ask(rounds, asked, missing)  # without those who are missing: a sum is of all who are asked
            collected = self._answered(asked)
        return self.close(asked, collected)

    def _answered(self, asked: Asked) -> Collected:
        """Train those who were admitted; of a secure sum that somebody is missing from, nobody."""
        task = asked.task
        if self.sites and asked.refused:
            kept = {p: () for p in asked.cohort if p not in asked.refused}
            return Collected({**kept, **asked.answered})
        if not self.probes:
            asked = self.replying.adding(asked, self.learner, self.server.state)
        if isinstance(asked.task, Passing):
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
        if before is not None and len(cohort) < FEWEST:
            why = next(iter(before.refused.values()), "they failed")
            error = NoReplyError(f"round {self.round + 1}: {len(cohort)} sites are left of a sum ({why})")
            raise BudgetError(str(error)) if len(before.refused) == len(before.cohort) else self._used_up(before, error)
        roster = self.sites.roster(cohort)
        broadcast = self.server.open(self.models, self.round + 1, rounds, self.cohort_size, roster, attempt)
        public = broadcast.public
        asked = [p for p in cohort if not self.replying.bypasses(p)]
        # of clients that trust the server and count nothing, one answers for all
        alike = type(self.method.client) is TrustedServer and not any(self.party(p).counts for p in asked)
        verdicts = {p: self.party(p).admit(broadcast) for p in asked[: 1 if alike else None]}
        verdicts = dict.fromkeys(asked, verdicts[asked[0]]) if alike and asked else verdicts
        admitted = [p for p in cohort if verdicts.get(p) is None]
        refused = {p: verdict.reason for p, verdict in verdicts.items() if isinstance(verdict, Refusal)}
        answered = {p: v for p, v in verdicts.items() if v is not None and not isinstance(v, Refusal)}
        keys = [(self.seed, public.round, partition) for partition in admitted]
        data = [self.replying.training_data(self.clients[p], p, public.round) for p in admitted]
        sources = [self.party(p).training_source(public.round) for p in admitted] if self.method.noisy else []
        task = Task(broadcast.models, data, keys, self.method.client.needs, sources)
        return Asked(broadcast, admitted, task, refused, began, answered, tuple(cohort))

    def collect(self, asked: Asked, learned: Sequence[Learned | Exception]) -> Collected:
        """Let the clients that trained (in the order of `asked.partitions`) protect what they send."""
        for partition, outcome in zip(asked.partitions, learned, strict=True):
            if isinstance(outcome, Learned) and outcome.trained.buffers:
                self.clients[partition] = replace(self.clients[partition], buffers=outcome.trained.buffers)
        collected = self.replying.collect(asked, learned)
        trained = [outcome.trained for outcome in learned if isinstance(outcome, Learned) and outcome.trained.examples]
        if not trained:
            return collected
        collected = replace(collected, loss=median(t.loss for t in trained))
        if self.method.client.trust != "central":  # else `close` looks at what arrived
            # the experimenter, who holds every client, may see what each would see alone
            models, kind = [t.model for t in trained], str(self.learner.local.loss)
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
        require_success(asked.broadcast.public.round, asked.partitions, collected.zeroed)
        arrived, report, (start, *_) = in_order(collected.replies), dict[str, float](), asked.broadcast.models
        try:
            opened, log = self.server.combine(asked.broadcast, collected.replies, collected.failed, asked.refused)
            report = dict(log.report)
        except NoReplyError as error:
            raise self._used_up(asked, error) from error
        finally:
            self.warnings.combined(start, arrived, report, collected.loss, str(self.learner.local.loss))
        return self._measured(asked.broadcast, collected, opened.models, log, asked.began)

    def _measured(
        self, broadcast: Broadcast, collected: Collected, models: Tensor, log: Round, began: float
    ) -> RoundRecord:
        """Take over a round's models, measure them, publish, and show the round to the probes."""
        self.models, self.round = models, log.number
        single, pooled = self.evaluate()
        published = self._publish(single)
        loss = None if self.validators is None else self.validators.validate(self.models, self.round)
        seconds = perf_counter() - began
        record = RoundRecord(
            log, pooled, single, collected.scales, seconds, published, zeroed=collected.zeroed, validation=loss
        )
        return probed(self.probes, Seen(self, broadcast, collected.replies, self.models, record))

    def _used_up(self, asked: Asked, error: NoReplyError) -> NoReplyError | BudgetError:
        """The same error, unless a client that released something before declines: then the run is over, not broken."""
        spent = [p for p in asked.refused if self.party(p).ledger.entries]
        if not spent:
            return error
        return BudgetError(f"client {spent[0]} declines ({asked.refused[spent[0]]}); the last model stands: {error}")

    def _trained_on(self, public: ClientData, model: Tensor, round_: int) -> Tensor:
        """The model [d] after training on public data as a client trains, under the key of no client."""
        (learned,) = self.learner.learn(model[None], [public], [(self.seed, round_, -1)])
        if isinstance(learned, Exception):
            raise learned
        return learned.trained.model

    def _publish(self, single: Sequence[Figures]) -> dict[str, float]:
        if self.server.publishing.metrics == "off" or not single:
            return {}
        names, figures, counts = publishable(single)
        return {r.name: float(r.value) for r in self.server.publish(self.round, names, figures, counts)}

    def cohort(self, round_: int) -> list[int]:
        """Partitions of a round's cohort, ascending; keyed by seed and round."""
        return draw_cohort(self.seed, round_, range(len(self.clients)), self.cohort_size)

    def method_of(self, partition: int) -> Method:
        """The method with one client's own side."""
        own = self.client_sides.get(partition)
        return self.method if own is None else replace(self.method, client=own)

    def party(self, partition: int) -> ClientParty:
        """The party of one client; made when it is first needed."""
        if partition not in self._parties:
            ledger, store = self._ledgers(str(partition))
            trainer = self.learner.private_trainer
            self._parties[partition] = ClientParty(
                self.method_of(partition),
                self.layout,
                ledger,
                self.source,
                budget=self._budgets(partition),
                policy=self.policy,
                state=self._client_states.pop(partition, None),
                store=store,
                trainer=trainer,
                rehearsed=self._rehearsed,
                site=self.sites.site(partition),
            )
        return self._parties[partition]

    def evaluate(self) -> tuple[list[Figures], Figures | None]:
        """Measure the current models on what the clients held out; each client uses the hypothesis that fits it."""
        if not self._held_out:
            return [], None
        model, loss = self.learner.model, self.learner.local.loss
        holders = [c for c in self.clients if c.held_out]
        found = iter(choose_each(model, self.layout, self.models, holders, loss))
        chosen = [next(found) if c.held_out else 0 for c in self.clients]
        for error in chosen:
            if isinstance(error, Exception):
                raise error
        indices = [c for c in chosen if isinstance(c, int)]
        return evaluate_clients(model, self.layout, self.models, self.clients, indices, self.metrics)

    def books(self) -> dict[str, Ledger]:
        """The ledger of every party, by name."""
        named = [SERVER, *(str(p) for p in range(len(self.clients)))]
        books = {str(p): party.ledger for p, party in self._parties.items()} | {SERVER: self.server.ledger}
        return {name: books[name] if name in books else self._ledgers(name)[0] for name in named}

    def history(self, records: Sequence[RoundRecord], stopped: str = "") -> History:
        """What the run has left so far."""
        spent = {n: total_of(book) for n, book in self.books().items() if book.entries}
        if self.method.client.trust == "central":
            guarantees = {SERVER: spent.get(SERVER, unprotected())}
            worst = guarantees[SERVER]
        else:
            guarantees = {n: g for n, g in spent.items() if n != SERVER}
            worst = worst_of(guarantees.values()) or unprotected("local")
        dicts = [self.layout.state_dict(self.learner.model, m) for m in self.models]
        stamp = self.source.kind if self.source.deployable else f"{self.source.kind}, not for deployment"
        best, validation = None, None
        if self.validators is not None:
            best, own = self.validators.best, self.validators.guarantees()
            validation = worst_of(own.values())
            guarantees = {**guarantees, **own}
        return History(records, self.models, dicts, worst, guarantees, stopped, stamp, best, validation)

    def client_states(self) -> dict[int, Any]:
        """State of every client that has one, by partition."""
        return {p: party.state for p, party in self._parties.items()} | self._client_states

    def restore(
        self,
        models: Tensor,
        round_: int,
        server_state: Any,
        client_states: Mapping[int, Any],
        best: Best | None = None,
    ) -> None:
        """Continue from a checkpoint; `best` is that of the validation clients, where there are any.

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
        known = self.server.ledger.find((round_, COMBINE))
        if known is None and round_:
            accepted = "budgets and totals cannot continue without the ledgers of the run, which lack this round"
            raise FieldError("ledgers", round_, accepted)
        if known is not None and known.digest != digest((Release("model", models),)):
            raise LedgerError(
                f"checkpoint: its models are not those that the server's ledger says were released in round {round_}; "
                "restore the file, or start a new run"
            )
        self.models, self.round = models, round_
        self.server.state = server_state
        self._client_states = dict(client_states)
        self._parties.clear()
