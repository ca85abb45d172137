"""A ClientApp of our own learner, and a federation that runs it under Flower in one process."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from logging import WARNING
from time import perf_counter
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from fedveil.engines.assembly import AnyMethod, require_success
from fedveil.engines.federation import Federation
from fedveil.engines.fit import require_pairs
from fedveil.engines.flower import records
from fedveil.engines.flower.exchange import training_source
from fedveil.engines.flower.grid import InProcessGrid, _identity
from fedveil.engines.flower.mod import own_method, partition_of, privacy_mod
from fedveil.engines.flower.strategy import FedVeilStrategy
from fedveil.engines.history import Collected, RoundRecord
from fedveil.engines.messages import COUNT, METRICS_KEY
from fedveil.engines.seams import Behaviour, crafted
from fedveil.errors import FieldError
from fedveil.learning import ClientData, Figures, choose, evaluate
from fedveil.learning.learner import Learner
from fedveil.logs import logger

_LOG = logger("flwr")
BUFFERS = "fedveil.buffers"  # in the node's context: nothing of it is sent


def learner_client_app(
    learner: Learner,
    clients: Sequence[ClientData],
    method: AnyMethod | Callable[[int], AnyMethod] | None = None,
    *,
    seed: int,
    behaviours: Mapping[int, Behaviour] | None = None,
    **options: Any,
) -> ClientApp:
    """A ClientApp that trains with a `Learner`, behind the privacy mod.

    Parameters
    ----------
    learner : Learner
        Model, layout and local training.
    clients : sequence of ClientData
        The data of partition 0, 1, ...
    method : Method or callable, optional
        As for `privacy_mod`.
    seed : int
        Of training (the noise's randomness is an option of the mod).
    behaviours : mapping of int to Behaviour, optional
        Malicious clients, by partition, inside the mod: their method protects what they send.
    **options
        Passed to `privacy_mod`.

    Returns
    -------
    ClientApp
        With a train and an evaluate function.
    """
    layout, malicious = learner.layout, dict(behaviours or {})
    for partition, behaviour in malicious.items():
        if behaviour.omniscient or behaviour.bypass:
            accepted = "needs the embedded engine: under Flower a client sees no other's update, and the mod protects"
            raise FieldError(f"behaviours[{partition}]", type(behaviour).__name__, accepted)
    require_pairs(learner.model, clients, learner.local.loss)
    app = ClientApp(mods=[privacy_mod(layout, method, trainer=learner.private_trainer, **options)])

    def data(context: Context) -> tuple[int, ClientData]:
        partition = partition_of(context)
        if partition >= len(clients):
            raise FieldError("partition-id", partition, f"there is data for partitions 0 to {len(clients) - 1}")
        return partition, with_buffers(clients[partition], context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition, client = data(context)
        broadcast = records.read_broadcast(message.content, layout)
        needs, number = own_method(method, context).client.needs, broadcast.public.round
        behaviour = malicious.get(partition)
        if behaviour is not None:
            client = behaviour.data(client, partition, number)
        sources = [training_source()] if "noisy_steps" in needs else []
        [learned] = learner.learn(broadcast.models, [client], [(seed, number, partition)], needs, sources)
        if isinstance(learned, Exception):
            raise learned
        trained = learned.trained
        if trained.buffers:
            context.state[BUFFERS] = records.array_record(trained.buffers)
        model = trained.model if behaviour is None else crafted(behaviour, partition, broadcast, learned, (partition,))
        content = records.write_trained(replace(trained, model=model), layout)
        content[records.FACTS] = records.write_facts(learned.chosen, learned.layer_scores, trained.noised)
        return Message(content, reply_to=message)

    @app.evaluate()
    def measure(message: Message, context: Context) -> Message:
        _, client = data(context)
        models, figures = records.read_broadcast(message.content, layout).models, Figures()
        if client.test_x is not None and client.test_y is not None:
            chosen = choose(learner.model, layout, models, client, learner.local.loss)
            held, loss = (client.test_x, client.test_y), learner.local.loss
            measured = evaluate(learner.model, layout, models[chosen], *held, buffers=client.buffers, loss=loss)
            figures = {name: measured[name] for name in ("loss", "accuracy") if name in measured}
        metrics = MetricRecord({COUNT: client.held_out, **figures})
        return Message(RecordDict({METRICS_KEY: metrics}), reply_to=message)

    return app


def with_buffers(client: ClientData, context: Context) -> ClientData:
    """A client with the statistics that its node keeps, if it keeps any."""
    own = records.tensors_in(context.state, BUFFERS)
    return replace(client, buffers=own) if own else client


class FlowerFederation(Federation):
    """A federation whose server is `FedVeilStrategy` and whose clients are a Flower ClientApp, in one process.

    Takes the arguments of `Federation` and returns the same `History`. On one machine, with the same seed, the models
    are the same to the bit.

    Parameters
    ----------
    shuffle : int, optional
        Seed that shuffles the order of the clients' replies.
    **arguments
        As for `Federation`.
    """

    def __init__(self, *, shuffle: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self.server.publishing.metrics != "off":
            accepted = "under Flower clients are shown no metrics: leave it 'off'"
            raise FieldError("publish.metrics", self.server.publishing.metrics, accepted)
        if self.validators is not None:
            accepted = (
                "holds validation clients' data, as the embedded engine does; under Flower they are nodes of their "
                "own: FedVeilStrategy(stopping=...), and privacy_mod(..., validation=Validation()) on those nodes"
            )
            raise FieldError("stopping", self.validators.rule, accepted)
        self._shuffle = shuffle
        self._grid: InProcessGrid | None = None
        self._strategy: FedVeilStrategy | None = None
        self._zeroed: dict[int, str] = {}

    def restore(self, *arguments: Any, **named: Any) -> None:
        super().restore(*arguments, **named)
        self._grid = self._strategy = None

    def grid(self) -> InProcessGrid:
        """The nodes, which keep their contexts from one run to the next."""
        if self._grid is None:
            app = learner_client_app(
                self.learner,
                self.clients,
                self.members.method_of if self.client_sides else self.method,
                seed=self.seed,
                warnings=self.warnings,
                behaviours=self.behaviours,
                source=self.source,
                policy=self.members.policy,
                site=self.members.sites.site,
                tell=lambda partition, _, error: self._zeroed.update({partition: f"{type(error).__name__}: {error}"}),
                budget=lambda partition: deepcopy(
                    self.members.budget(partition)
                ),  # the mod wants a fresh one on each call
                ledgers=self.members.ledger,
            )
            count = len(self.clients)
            configs: list[UserConfig] = [{"partition-id": i, "num-partitions": count} for i in range(count)]
            self._grid = InProcessGrid(app, configs, shuffle=self._shuffle)
            for partition, state in self.client_states().items():
                records.Memory(self._grid.contexts[partition]).save(state)
        return self._grid

    def _next(self, rounds: int) -> RoundRecord:
        began, grid, strategy = perf_counter(), self.grid(), self._strategy
        if strategy is None or strategy.rounds != rounds:
            strategy = self._strategy = FedVeilStrategy(
                self.server,
                rounds=rounds,
                initial=self.models,
                clients=len(self.clients),
                clients_per_round=self.cohort_size,
                seed=self.seed,
                done=self.round,
                min_clients=1,
            )
            strategy.warn_by(self.warnings)
        number, level = self.round + 1 - strategy.done, _LOG.level
        self._zeroed.clear()
        _LOG.setLevel(WARNING)  # Flower tells every round's story at INFO
        try:
            with _identity():
                asked = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
                strategy.aggregate_train(number, grid.send_and_receive(asked))
        finally:
            _LOG.setLevel(level)
            self._collect()
        log, zeroed = strategy.history[-1], dict(sorted(self._zeroed.items()))
        require_success(log.number, [*log.used, *log.invalid], zeroed)
        noisy = (*log.used, *log.invalid) if self.method.client.trust != "central" else ()
        scales = {p: self.members.ledger(str(p))[0].entries[-1].spend.scale for p in noisy}
        collected = Collected(strategy.received, scales=scales, zeroed=zeroed)
        assert strategy.broadcast is not None  # a round is over
        return self._measured(strategy.broadcast, collected, strategy.models, log, began)

    def _collect(self) -> None:
        """Take over what the nodes remember."""
        remembered = self.client_states()
        for partition, context in self.grid().contexts.items():
            self.clients[partition] = with_buffers(self.clients[partition], context)
            if self.members.ledger(str(partition))[0].entries:
                remembered[partition] = records.Memory(context).load(self.method.client.init())
        self.members.resume(remembered)
