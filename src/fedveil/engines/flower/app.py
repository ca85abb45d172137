"""A ClientApp of our own learner, and a federation that runs it under Flower in one process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from logging import WARNING
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from torch import Tensor

from fedveil.engines.assembly import AnyMethod
from fedveil.engines.federation import Federation
from fedveil.engines.fit import require_pairs
from fedveil.engines.flower import records
from fedveil.engines.flower.exchange import training_source
from fedveil.engines.flower.grid import InProcessGrid, message_identity
from fedveil.engines.flower.mod import own_method, partition_of, privacy_mod
from fedveil.engines.flower.roster import Nodes, Roster
from fedveil.engines.malicious import Behaviour, behaving
from fedveil.engines.messages import COUNT, METRICS_KEY
from fedveil.engines.options import Execution
from fedveil.engines.rounds import Collected
from fedveil.errors import FieldError, kind_of
from fedveil.learning import ClientData, Figures, choose, evaluate
from fedveil.learning.learner import Learned, Learner
from fedveil.learning.streams import Key
from fedveil.logs import logger
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast
from fedveil.secure import PublicKey

_LOG = logger("flwr")
PATIENCE, ATTEMPTS = 600.0, 3  # seconds to wait for nodes, and questions of a secure sum
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
    layout = learner.layout
    _require_possible(behaviours or {})
    require_pairs(learner.model, clients, learner.local.loss)
    app = ClientApp(mods=[privacy_mod(layout, method, trainer=learner.private_trainer, **options)])

    def learn(
        broadcast: Broadcast,
        client: ClientData,
        key: Key,
        needs: frozenset[str],
        sources: Sequence[Source],
    ) -> Learned:
        [learned] = learner.learn(broadcast.models, [client], [key], needs, sources)
        if isinstance(learned, Exception):
            raise learned
        return learned

    taught = behaving(learn, behaviours) if behaviours else learn

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition, client = _data_of(context, clients)
        broadcast = records.read_broadcast(message.content, layout)
        needs, key = (
            own_method(method, context).client.needs,
            (seed, broadcast.public.round, partition),
        )
        sources = [training_source()] if "noisy_steps" in needs else []
        learned = taught(broadcast, client, key, needs, sources)
        trained = learned.trained
        if trained.buffers:
            context.state[BUFFERS] = records.array_record(trained.buffers)
        content = records.write_trained(trained, layout)
        content[records.FACTS] = records.write_facts(
            learned.chosen, learned.layer_scores, trained.noised
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def measure(message: Message, context: Context) -> Message:
        _, client = _data_of(context, clients)
        figures = _measured(learner, records.read_broadcast(message.content, layout).models, client)
        metrics = MetricRecord({COUNT: client.held_out, **figures})
        return Message(RecordDict({METRICS_KEY: metrics}), reply_to=message)

    return app


def _require_possible(behaviours: Mapping[int, Behaviour]) -> None:
    """Refuse malicious clients that no client of Flower's can be."""
    for partition, behaviour in behaviours.items():
        if behaviour.omniscient or behaviour.bypass:
            accepted = "needs the embedded engine: under Flower a client sees no other's update, and the mod protects"
            raise FieldError(f"behaviours[{partition}]", kind_of(behaviour), accepted)


def _data_of(context: Context, clients: Sequence[ClientData]) -> tuple[int, ClientData]:
    """The partition of a node, and its data."""
    partition = partition_of(context)
    if partition >= len(clients):
        raise FieldError(
            "partition-id", partition, f"there is data for partitions 0 to {len(clients) - 1}"
        )
    return partition, with_buffers(clients[partition], context)


def _measured(learner: Learner, models: Tensor, client: ClientData) -> Figures:
    """Loss and accuracy on a client's held-out examples, of the model that does best for it; nothing without any."""
    if client.test_x is None or client.test_y is None:
        return Figures()
    loss = learner.local.loss
    chosen = choose(learner.model, learner.layout, models, client, loss)
    held = client.test_x, client.test_y
    measured = evaluate(
        learner.model, learner.layout, models[chosen], *held, buffers=client.buffers, loss=loss
    )
    return {name: measured[name] for name in ("loss", "accuracy") if name in measured}


def with_buffers(client: ClientData, context: Context) -> ClientData:
    """A client with the statistics that its node keeps, if it keeps any."""
    own = records.tensors_in(context.state, BUFFERS)
    return replace(client, buffers=own) if own else client


class FlowerFederation(Federation):
    """A federation whose clients are a Flower ClientApp, in one process, asked by messages.

    Takes the arguments of `Federation` and returns the same `History`. On one machine, with the same seed, the models
    are the same to the bit.

    Parameters
    ----------
    shuffle : int, optional
        Seed that shuffles the order of the clients' replies.
    execution : Execution, optional
        As for `Federation`; its courier is Flower's.
    **arguments
        As for `Federation`.
    """

    def __init__(
        self, *, shuffle: int | None = None, execution: Execution | None = None, **arguments: Any
    ) -> None:
        made = replace(
            execution or Execution(), courier=lambda federation: NodesInProcess(federation, shuffle)
        )
        super().__init__(execution=made, **arguments)


class NodesInProcess(Nodes):
    """The nodes of a federation in one process as its courier; they keep their contexts from one round to the next.

    Parameters
    ----------
    federation : Federation
        Whose clients they are.
    shuffle : int, optional
        Seed that shuffles the order of their replies.

    Raises
    ------
    FieldError
        If the federation publishes metrics, or has validation clients.
    """

    def __init__(self, federation: Federation, shuffle: int | None = None) -> None:
        if federation.server.publishing.metrics != "off":
            accepted = "under Flower clients are shown no metrics: leave it 'off'"
            raise FieldError("publish.metrics", federation.server.publishing.metrics, accepted)
        if federation.validators is not None:
            accepted = (
                "holds validation clients' data, as the embedded engine does; under Flower they are nodes of their "
                "own: FedVeilStrategy(stopping=...), and privacy_mod(..., validation=Validation()) on those nodes"
            )
            raise FieldError("stopping", federation.validators.rule, accepted)
        count = len(federation.clients)
        self._greeted = Roster(federation.method.client, count, PATIENCE)
        super().__init__(federation.server, self._greeted, ATTEMPTS)
        self._federation, self._zeroed = federation, dict[int, str]()
        configs: list[UserConfig] = [
            {"partition-id": i, "num-partitions": count} for i in range(count)
        ]
        self.grid = self._nodes = InProcessGrid(self._app(), configs, shuffle=shuffle)
        for partition, state in federation.client_states().items():
            records.Memory(self._nodes.contexts[partition]).save(state)

    def _app(self) -> ClientApp:
        federation, parties = self._federation, self._federation.parties
        return learner_client_app(
            federation.learner,
            federation.clients,
            parties.method_of if federation.client_sides else federation.method,
            seed=federation.seed,
            warnings=federation.warnings,
            behaviours=federation.behaviours,
            source=federation.source,
            policy=parties.policy,
            site=parties.site_keys.site,
            tell=lambda partition, _, error: self._zeroed.update(
                {partition: f"{type(error).__name__}: {error}"}
            ),
            budget=lambda partition: deepcopy(
                parties.budget(partition)
            ),  # the mod wants a fresh one on each call
            ledgers=parties.ledger,
        )

    def reach(self, number: int, cohort: Sequence[int]) -> dict[int, PublicKey | None]:
        """All of them, once they were greeted."""
        with _quietly():
            self._greeted.meet(self._nodes, self.timeout)
        return super().reach(number, cohort)

    def ask(self, broadcast: Broadcast, partitions: Sequence[int]) -> None:
        """Write a round's train messages."""
        with _quietly():
            super().ask(broadcast, partitions)

    def collect(self) -> Collected:
        """Collect the nodes' answers, and what an experimenter sees beside them."""
        self._zeroed.clear()
        try:
            with _quietly():
                answers = super().collect()
        finally:
            self._take_over()
        parties = self._federation.parties
        noisy = answers.replies if self._federation.method.client.trust != "central" else ()
        scales = {p: parties.ledger(str(p))[0].entries[-1].spend.scale for p in noisy}
        return replace(answers, scales=scales, zeroed=dict(sorted(self._zeroed.items())))

    def _take_over(self) -> None:
        """Take over what the nodes remember."""
        federation = self._federation
        remembered = federation.client_states()
        for partition, context in self._nodes.contexts.items():
            federation.clients[partition] = with_buffers(federation.clients[partition], context)
            if federation.parties.ledger(str(partition))[0].entries:
                remembered[partition] = records.Memory(context).load(
                    federation.method.client.init()
                )
        federation.parties.resume(remembered)


@contextmanager
def _quietly() -> Iterator[None]:
    """Flower's identity of a server, and nothing in its log: it tells every round's story at INFO."""
    level = _LOG.level
    _LOG.setLevel(WARNING)
    try:
        with message_identity():
            yield
    finally:
        _LOG.setLevel(level)
