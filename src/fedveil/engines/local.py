"""The embedded engine: a whole federation in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from time import perf_counter
from typing import Any

from torch import Tensor, nn

from fedveil.accounting import Ledger, SpendFilter, unprotected
from fedveil.aggregation import Aggregator
from fedveil.engines.assembly import (
    as_client,
    client_facts,
    client_releases,
    draw_cohort,
    initial_broadcast,
    resolve_method,
    with_proximal_term,
)
from fedveil.engines.history import SERVER, Asked, Collected, History, RoundRecord, publishable, total_of
from fedveil.engines.party import ClientParty, ServerParty, Store
from fedveil.errors import BudgetError, FieldError, require_count
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, Metrics, choose, evaluate_clients, make_trainer
from fedveil.learning.learner import Learned, Learner, Task
from fedveil.mechanisms import ReproducibleSource, Source
from fedveil.methods import ClientSide, Method, Publishing, Releases, ServerSide


class Federation:
    """Train one model over clients that do not share their data, in one process.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model, whose parameters start the run; or a function without arguments that builds one (needed for several
        hypotheses, each built under its own seed).
    clients : sequence of ClientData or of tuples of tensors or arrays
        ``(x, y)`` or ``(x, y, test_x, test_y)`` a client.
    aggregator : Aggregator or ServerSide, optional
        A rule, or a wrapped one such as ``MetricPrivacy(FedAvg())``. Default: FedAvg, or the method's own.
    privacy : str, ClientSide or Method, optional
        A shorthand of `fedveil.methods.METHODS`, which builds both sides around the rule; a client side; or both.
    local : LocalTraining, optional
        What a client does in a round.
    seed : int
        Of initial models, cohorts, training and (reproducible) noise.
    source : Source, optional
        Randomness of the noise. Default: reproducible from `seed`, for experiments. Give a `SecureSource` to deploy.
    clients_per_round : int, optional
        Size of each round's cohort, drawn without replacement. Default: everybody.
    region : tuple of int or Tensor, optional
        The privacy-sensitive pixels, for FedRE.
    public_data : ClientData or tuple, optional
        Public examples on which FedRE's server scores models.
    buffers : {"refuse", "keep"}
        Policy of the layout for batch-norm statistics and counters.
    client_budgets : callable, optional
        ``partition -> SpendFilter``, one filter a client.
    server_budget : SpendFilter, optional
        Ends the run before the server exceeds it.
    initial : Tensor, optional
        [k, d], starts the run instead of the model's own parameters.
    learner : Learner, optional
        Instead of one built from `model`, `local`, `region`, `trainer` and `workers`.
    trainer : {"auto", "batched", "sequential"}
        How clients are trained; see `fedveil.learning.make_trainer`.
    workers : int
        Threads that train clients.
    run_id : str
        Names the ledgers.
    ledgers : callable, optional
        ``party -> (Ledger, Store)``; by default ledgers live in memory.
    publishing : Publishing, optional
        What clients see of the aggregated metrics after each round. Default: nothing.
    """

    def __init__(
        self,
        *,
        model: nn.Module | Callable[[], nn.Module],
        clients: Sequence[ClientData | Sequence[Any]],
        aggregator: Aggregator | ServerSide | None = None,
        privacy: str | Method | ClientSide | None = None,
        local: LocalTraining | None = None,
        seed: int = 0,
        source: Source | None = None,
        clients_per_round: int | None = None,
        region: Any = None,
        public_data: ClientData | Sequence[Any] | None = None,
        buffers: str = "refuse",
        client_budgets: Callable[[int], SpendFilter | None] | None = None,
        server_budget: SpendFilter | None = None,
        initial: Tensor | None = None,
        learner: Learner | None = None,
        trainer: str = "auto",
        workers: int = 1,
        run_id: str = "memory",
        ledgers: Callable[[str], tuple[Ledger, Store]] | None = None,
        publishing: Publishing | None = None,
    ) -> None:
        self.clients = [as_client(c, f"clients[{i}]") for i, c in enumerate(clients)]
        if not self.clients:
            raise FieldError("clients", [], "a federation needs at least one client")
        self.method = resolve_method(aggregator, privacy)
        self.seed = int(seed)
        module, starts = initial_broadcast(model, self.method.server.hypotheses, seed, buffers, initial)
        self.layout = Layout.from_module(module, buffers=buffers)  # type: ignore[arg-type]
        local = with_proximal_term(local or LocalTraining(), self.method)
        self.learner = learner or Learner(
            module,
            self.layout,
            local,
            region=region,
            trainer=make_trainer(module, self.layout, local, trainer, workers=workers),
        )
        sampled = clients_per_round is not None and clients_per_round < len(self.clients)
        if sampled and getattr(self.method.server, "relation", "") == "add/remove":
            raise FieldError("relation", "add/remove", "a sampled cohort changes with its members: use zero-out")
        self.cohort_size = require_count("clients_per_round", clients_per_round or len(self.clients))
        if self.cohort_size > len(self.clients):
            raise FieldError("clients_per_round", clients_per_round, f"there are only {len(self.clients)} clients")
        self.source = source or ReproducibleSource(seed)
        make = ledgers or (lambda party: (Ledger(run_id, party), lambda line: None))
        self._ledgers = cache(make)  # one ledger a party, for as long as the federation lives
        self._ledgers_given = ledgers is not None
        self._limited = client_budgets is not None or server_budget is not None
        self._budgets = client_budgets or (lambda partition: None)
        self._parties: dict[int, ClientParty] = {}
        self._client_states: dict[int, Any] = {}
        public = None if public_data is None else as_client(public_data, "public_data")
        scorer = None if public is None else (lambda models: self.learner.public_scores(models, public))
        ledger, store = self._ledgers(SERVER)
        self.server = ServerParty(
            self.method,
            self.layout,
            ledger,
            self.source,
            budget=server_budget,
            store=store,
            scorer=scorer,
            publishing=publishing,
        )
        self.models, self.round = starts, 0

    def run(self, rounds: int, on_round: Callable[[RoundRecord], None] | None = None) -> History:
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
        records: list[RoundRecord] = []
        stopped = ""
        try:
            for record in self.rounds(rounds):
                records.append(record)
                if on_round is not None:
                    on_round(record)
        except BudgetError as error:
            stopped = str(error)
        return self.history(records, stopped)

    def rounds(self, rounds: int) -> Iterator[RoundRecord]:
        """Do one round after another, up to `rounds` in all."""
        rounds = require_count("rounds", rounds)
        while self.round < rounds:
            yield self._next(rounds)

    def _next(self, rounds: int) -> RoundRecord:
        """One round, in a scope of its own: its models are gone before the next one makes others."""
        asked = self.ask(rounds)
        task = asked.task
        learned = self.learner.learn(task.models, task.clients, task.keys, task.needs)
        return self.close(asked, self.collect(asked, learned))

    def ask(self, rounds: int) -> Asked:
        """Open the next round and ask its cohort, before anybody trains."""
        began = perf_counter()
        broadcast = self.server.open(self.models, self.round + 1, rounds, self.cohort_size)
        public = broadcast.public
        refused: dict[int, str] = {}
        admitted = []
        for partition in self.cohort(public.round):
            refusal = self.party(partition).admit(broadcast)
            if refusal is None:
                admitted.append(partition)
            else:
                refused[partition] = refusal.reason
        keys = [(self.seed, public.round, partition) for partition in admitted]
        data = [self.clients[partition] for partition in admitted]
        task = Task(broadcast.models, data, keys, self.method.client.needs)
        return Asked(broadcast, admitted, task, refused, began)

    def collect(self, asked: Asked, learned: Sequence[Learned | Exception]) -> Collected:
        """Let the clients that trained (in the order of `asked.partitions`) protect what they send."""
        replies: dict[int, Releases] = {}
        failed: dict[int, str] = {}
        scales: dict[int, tuple[float, ...]] = {}
        for partition, outcome in zip(asked.partitions, learned, strict=True):
            party = self.party(partition)
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                facts = client_facts(asked.broadcast, self.layout, outcome)
                replies[partition] = party.release(client_releases(outcome), facts)
                if self.method.client.trust == "local":
                    scales[partition] = party.ledger.entries[-1].spend.scale
            except Exception as error:  # one client's failure must not end the round
                failed[partition] = f"{type(error).__name__}: {error}"
                party.abandon(asked.broadcast.public)
        return Collected(replies, failed, scales)

    def close(self, asked: Asked, collected: Collected) -> RoundRecord:
        """Combine, measure, publish: the end of a round."""
        opened, log = self.server.combine(asked.broadcast, collected.replies, collected.failed, asked.refused)
        self.models, self.round = opened.models, asked.broadcast.public.round
        single, pooled = self.evaluate()
        published = self._publish(single)
        return RoundRecord(log, pooled, single, collected.scales, perf_counter() - asked.began, published)

    def _publish(self, single: Sequence[Metrics]) -> dict[str, float]:
        if self.server.publishing.metrics == "off" or not single:
            return {}
        names, figures, counts = publishable(single)
        return {r.name: float(r.value) for r in self.server.publish(self.round, names, figures, counts)}

    def cohort(self, round_: int) -> list[int]:
        """Partitions of a round's cohort, ascending; keyed by seed and round."""
        return draw_cohort(self.seed, round_, range(len(self.clients)), self.cohort_size)

    def party(self, partition: int) -> ClientParty:
        """The party of one client; made when it is first needed."""
        if partition not in self._parties:
            ledger, store = self._ledgers(str(partition))
            self._parties[partition] = ClientParty(
                self.method,
                self.layout,
                ledger,
                self.source,
                budget=self._budgets(partition),
                state=self._client_states.pop(partition, None),
                store=store,
            )
        return self._parties[partition]

    def evaluate(self) -> tuple[list[Metrics], Metrics | None]:
        """Measure the current models on what the clients held out; each client uses the hypothesis that fits it."""
        if not any(c.held_out for c in self.clients):
            return [], None
        model, loss = self.learner.model, self.learner.local.loss
        chosen = [choose(model, self.layout, self.models, c, loss) if c.held_out else 0 for c in self.clients]
        return evaluate_clients(model, self.layout, self.models, self.clients, chosen)

    def history(self, records: Sequence[RoundRecord], stopped: str = "") -> History:
        """What the run has left so far."""
        named = [SERVER, *(str(p) for p in range(len(self.clients)))]
        books = {str(p): party.ledger for p, party in self._parties.items()} | {SERVER: self.server.ledger}
        books = {name: books[name] if name in books else self._ledgers(name)[0] for name in named}
        budgets = {name: self.server.budget if name == SERVER else self._budgets(int(name)) for name in named}
        spent = {n: total_of(book, budgets[n]) for n, book in books.items() if book.entries}
        if self.method.client.trust == "central":
            guarantees = {SERVER: spent.get(SERVER, unprotected())}
            worst = guarantees[SERVER]
        else:
            guarantees = {n: g for n, g in spent.items() if n != SERVER}
            worst = max(guarantees.values(), key=lambda g: g.cost, default=unprotected("local"))
        dicts = [self.layout.unflatten(m) for m in self.models]
        stamp = self.source.kind if self.source.deployable else f"{self.source.kind}, not for deployment"
        return History(records, self.models, dicts, worst, guarantees, stopped, stamp)

    def client_states(self) -> dict[int, Any]:
        """State of every client that has one, by partition."""
        return {p: party.state for p, party in self._parties.items()} | self._client_states

    def restore(self, models: Tensor, round_: int, server_state: Any, client_states: Mapping[int, Any]) -> None:
        """Continue from a checkpoint.

        Raises
        ------
        FieldError
            If the checkpoint is of another model, or a budget would start over because no ledger came with it.
        """
        if self._limited and not self.server.ledger.entries and not self._ledgers_given:
            raise FieldError("ledgers", None, "a budget cannot continue without the ledgers of the run: give them")
        if models.shape != self.models.shape or models.dtype != self.models.dtype:
            raise FieldError("checkpoint", tuple(models.shape), f"does not fit this model: {tuple(self.models.shape)}")
        self.models, self.round = models, round_
        self.server.state = server_state
        self._client_states = dict(client_states)
        for partition in list(self._parties):
            del self._parties[partition]
