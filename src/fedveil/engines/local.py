"""The embedded engine: a whole federation in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.accounting import Filter, Guarantee, Ledger, Release, SpendFilter, total, unprotected
from fedveil.aggregation import Aggregator, FedProx
from fedveil.engines.party import ClientParty, Round, ServerParty, Store
from fedveil.errors import BudgetError, FieldError, require_count
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, Metrics, choose, evaluate_clients
from fedveil.learning.learner import Learned, Learner
from fedveil.mechanisms import ReproducibleSource, Source, keyed_seed
from fedveil.methods import (
    METHODS,
    Broadcast,
    ClientFacts,
    ClientSide,
    Method,
    Plain,
    Releases,
    ServerSide,
    TrustedServer,
    build,
)

SERVER = "server"


@dataclass(frozen=True)
class RoundRecord:
    """One finished round.

    Attributes
    ----------
    round : Round
        Who took part, and the server's figures.
    metrics : Metrics, optional
        The new models on all clients' held-out examples, pooled. Measured by the experimenter in one process: in a
        deployment these figures would be releases.
    client_metrics : list of Metrics
        The same, client by client.
    client_scales : dict of int to tuple of float
        Scale of each client's own noise (local trust); the experimenter's view.
    seconds : float
        Wall-clock time of the round, evaluation included.
    """

    round: Round
    metrics: Metrics | None
    client_metrics: Sequence[Metrics]
    client_scales: Mapping[int, tuple[float, ...]]
    seconds: float


@dataclass(frozen=True)
class History:
    """What a run leaves in memory.

    Attributes
    ----------
    rounds : list of RoundRecord
        In order.
    models : Tensor
        [k, d], the last broadcast.
    state_dicts : list of dict
        The same as named arrays; load with ``load_state_dict(..., strict=False)``.
    guarantee : Guarantee
        Total of the trusted server, or of the client that spent most (local trust).
    guarantees : dict of str to Guarantee
        Total of every party that released something.
    stopped : str
        Why the run ended early, or "".
    source : str
        ``"secure"``, or ``"reproducible, not for deployment"``: whoever knows the seed can take the noise off.
    """

    rounds: Sequence[RoundRecord]
    models: Tensor
    state_dicts: Sequence[Mapping[str, Tensor]]
    guarantee: Guarantee
    guarantees: Mapping[str, Guarantee]
    stopped: str = ""
    source: str = ""

    @property
    def metrics(self) -> Metrics | None:
        """Pooled metrics after the last round."""
        return self.rounds[-1].metrics if self.rounds else None


def resolve_method(aggregator: Aggregator | ServerSide | None, privacy: str | Method | ClientSide | None) -> Method:
    """Put a method together from what the front door accepts.

    Raises
    ------
    FieldError
        If the two sides do not belong together.
    """
    if isinstance(privacy, Method):
        if aggregator is not None:
            raise FieldError(
                "aggregator", type(aggregator).__name__, "the method brings its own server side; leave it out"
            )
        return privacy
    if aggregator is None or isinstance(aggregator, Aggregator):
        if privacy is None or isinstance(privacy, str):
            return build(privacy or "vanilla", aggregator)
        server = next((s.server for s in METHODS.values() if s.client is type(privacy)), Plain)
        return Method(
            type(privacy).__name__, privacy, server() if aggregator is None else server(aggregator=aggregator)
        )
    if isinstance(privacy, str):
        raise FieldError(
            "privacy", privacy, "a shorthand builds both sides: give a plain aggregation rule, or no shorthand"
        )
    return Method(type(aggregator).__name__, privacy or TrustedServer(), aggregator)


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
        Instead of one built from `model` and `local`.
    run_id : str
        Names the ledgers.
    ledgers : callable, optional
        ``party -> (Ledger, Store)``; by default ledgers live in memory.
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
        run_id: str = "memory",
        ledgers: Callable[[str], tuple[Ledger, Store]] | None = None,
    ) -> None:
        self.clients = [as_client(c, f"clients[{i}]") for i, c in enumerate(clients)]
        if not self.clients:
            raise FieldError("clients", [], "a federation needs at least one client")
        self.method = resolve_method(aggregator, privacy)
        self.seed = int(seed)
        module, starts = initial_broadcast(model, self.method.server.hypotheses, seed, buffers, initial)
        self.layout = Layout.from_module(module, buffers=buffers)  # type: ignore[arg-type]
        self.learner = learner or Learner(
            module, self.layout, with_proximal_term(local or LocalTraining(), self.method), region=region
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
            self.method, self.layout, ledger, self.source, budget=server_budget, store=store, scorer=scorer
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
            began = perf_counter()
            broadcast = self.server.open(self.models, self.round + 1, rounds, self.cohort_size)
            replies, failed, refused, scales = self._ask(broadcast)
            opened, log = self.server.combine(broadcast, replies, failed, refused)
            self.models, self.round = opened.models, broadcast.public.round
            single, pooled = self.evaluate()
            yield RoundRecord(log, pooled, single, scales, perf_counter() - began)

    def _ask(
        self, broadcast: Broadcast
    ) -> tuple[dict[int, Releases], dict[int, str], dict[int, str], dict[int, tuple[float, ...]]]:
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
        learned = self.learner.learn(broadcast.models, data, keys, self.method.client.needs)
        replies: dict[int, Releases] = {}
        failed: dict[int, str] = {}
        scales: dict[int, tuple[float, ...]] = {}
        for partition, outcome in zip(admitted, learned, strict=True):
            party = self.party(partition)
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                facts = client_facts(broadcast, self.layout, outcome)
                replies[partition] = party.release(client_releases(outcome), facts)
                scales[partition] = party.ledger.entries[-1].spend.scale
            except Exception as error:  # one client's failure must not end the round
                failed[partition] = f"{type(error).__name__}: {error}"
                party.abandon(public)
        return replies, failed, refused, scales

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


def initial_broadcast(
    model: nn.Module | Callable[[], nn.Module], k: int, seed: int, buffers: str, initial: Tensor | None
) -> tuple[nn.Module, Tensor]:
    """The architecture and the first models [k, d]."""
    if isinstance(model, nn.Module):
        built = [model]
        if k > 1 and initial is None:
            raise FieldError(
                "model", type(model).__name__, f"{k} hypotheses need a function that builds the model, or `initial`"
            )
    elif callable(model):
        built = []
        for j in range(k):
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(keyed_seed("model", seed, j))
                built.append(model())
    else:
        raise FieldError("model", type(model).__name__, "must be a torch.nn.Module or a function that builds one")
    layout = Layout.from_module(built[0], buffers=buffers)  # type: ignore[arg-type]
    starts = torch.stack([layout.read(m) for m in built]) if initial is None else initial.clone()
    layout.check(starts, "initial")
    if starts.shape != (k, layout.size):
        raise FieldError("initial", tuple(starts.shape), f"must be [k, d] = [{k}, {layout.size}]")
    return built[0], starts


def total_of(ledger: Ledger, budget: SpendFilter | None = None) -> Guarantee:
    """What all releases of a party promise together: the sum of the worst cases, or the filter's budget if less."""
    worst = total(entry.spend.guarantee for entry in ledger.entries)
    return budget.held(worst) if isinstance(budget, Filter) else worst


def with_proximal_term(local: LocalTraining, method: Method) -> LocalTraining:
    """Local training with the proximal term that the server's FedProx asks for.

    Raises
    ------
    FieldError
        If the two name different terms.
    """
    rule = getattr(method.server, "aggregator", None)
    if not isinstance(rule, FedProx):
        return local
    if local.prox not in (0.0, rule.mu):
        raise FieldError("prox", local.prox, f"contradicts FedProx(mu={rule.mu}): leave one of them out")
    return replace(local, prox=rule.mu)


def draw_cohort(seed: int, round_: int, partitions: Sequence[int], size: int) -> list[int]:
    """Draw a round's cohort without replacement, the same under every engine; ascending like `partitions`."""
    if size == len(partitions):
        return list(partitions)
    generator = torch.Generator().manual_seed(keyed_seed("cohort", seed, round_))
    return [partitions[i] for i in sorted(torch.randperm(len(partitions), generator=generator)[:size].tolist())]


def client_releases(learned: Learned) -> Releases:
    """What a trained client would send if nothing protected it."""
    return (
        Release("model", learned.trained.model),
        Release("count", torch.tensor(float(learned.trained.examples), dtype=torch.float64)),
        Release("metric", torch.tensor(learned.trained.loss, dtype=torch.float64), "train_loss"),
    )


def client_facts(broadcast: Broadcast, layout: Layout, learned: Learned) -> ClientFacts:
    """The facts of a trained client's method."""
    return ClientFacts(broadcast=broadcast, layout=layout, chosen=learned.chosen, layer_scores=learned.layer_scores)


def as_client(value: ClientData | Sequence[Any], name: str) -> ClientData:
    """Accept ClientData, or a tuple of tensors or arrays."""
    if isinstance(value, ClientData):
        return value
    if not isinstance(value, Sequence) or len(value) not in (2, 4):
        raise FieldError(name, type(value).__name__, "must be (x, y), (x, y, test_x, test_y) or ClientData")
    tensors = [v if isinstance(v, Tensor) else torch.as_tensor(v) for v in value]
    for i in (1, 3):
        if i < len(tensors) and not tensors[i].is_floating_point():
            tensors[i] = tensors[i].to(torch.int64)
    for i in (0, 2):
        if i < len(tensors) and tensors[i].dtype == torch.float64:
            tensors[i] = tensors[i].to(torch.float32)
    return ClientData(*tensors)  # type: ignore[arg-type]
