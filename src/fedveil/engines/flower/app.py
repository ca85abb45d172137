"""ClientApps that train with FedVeil's learner, only validate, or are malicious."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from fedveil.engines.assembly import AnyMethod
from fedveil.engines.fit import require_pairs
from fedveil.engines.flower import records
from fedveil.engines.flower.exchange import LOSS
from fedveil.engines.flower.lending import Lent, lending, training_source
from fedveil.engines.flower.mod import own_method, partition_of, privacy_mod
from fedveil.engines.malicious import Behaviour, Collusion, behaving
from fedveil.engines.messages import COUNT, METRICS_KEY, REPLY
from fedveil.errors import FedVeilError, FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, Figures, choose, client_losses, evaluate
from fedveil.learning.learner import Learned, Learner
from fedveil.learning.streams import Key
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, ClientSide
from fedveil.methods.publishing import Validation


def learner_client_app(
    learner: Learner,
    clients: Sequence[ClientData],
    method: AnyMethod | Callable[[int], AnyMethod] | None = None,
    *,
    seed: int,
    behaviours: Mapping[int, Behaviour] | None = None,
    collusion: Collusion | None = None,
    mod: Mod | None = None,
    **options: Any,
) -> ClientApp:
    """Make a ClientApp that trains with a `Learner` and protects its replies by the privacy mod.

    Parameters
    ----------
    learner : Learner
        Model, layout and local training.
    clients : sequence of ClientData
        Data of partition 0, 1, ...
    method : Method or callable, optional
        Method, as for `privacy_mod`.
    seed : int
        Seed of training (the randomness of the noise is an option of the mod).
    behaviours : mapping of int to Behaviour, optional
        Malicious clients, by partition. They act inside the mod, so their method protects what they send.
    collusion : Collusion, optional
        What malicious clients know about each other and about honest ones. Default: nothing.
    mod : Mod, optional
        Mod in place of the privacy mod, for an adversary's nodes.
    **options
        Passed to `privacy_mod`.

    Returns
    -------
    ClientApp
        App with a train and an evaluate function.
    """
    layout = learner.layout
    require_pairs(learner.model, clients, learner.local.loss)
    if mod is None:
        mod = privacy_mod(layout, method, trainer=learner.private_trainer, **options)
    app = ClientApp(mods=[mod])

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

    taught = behaving(learn, behaviours, collusion) if behaviours else learn

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
            context.state[records.BUFFERS] = records.array_record(trained.buffers)
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


def validator_client_app(
    learner: Learner,
    clients: Sequence[ClientData],
    first: int,
    method: AnyMethod,
    *,
    validation: Validation,
    **options: Any,
) -> ClientApp:
    """Make a ClientApp that never trains: it measures a broadcast model's loss, and the privacy mod releases the loss.

    Parameters
    ----------
    learner : Learner
        Model, layout and loss.
    clients : sequence of ClientData
        Data of partition `first`, `first` + 1, ...
    first : int
        First partition; nodes that train have the numbers below.
    method : Method
        Method, as for `privacy_mod`.
    validation : Validation
        Protection of the released losses.
    **options
        Passed to `privacy_mod`.
    """
    mod = privacy_mod(learner.layout, method, validation=validation, **options)
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise FedVeilError("this node validates and never trains")

    @app.evaluate()
    def measure(message: Message, context: Context) -> Message:
        client = clients[partition_of(context) - first]
        models = records.read_broadcast(message.content, learner.layout).models
        own = (learner.model, learner.layout, models, [client], learner.local.loss)
        metrics = MetricRecord({COUNT: client.examples, LOSS: float(client_losses(*own).min())})
        return Message(RecordDict({METRICS_KEY: metrics}), reply_to=message)

    return app


def lying_mod(layout: Layout, client: ClientSide, lent: Callable[[int, int], Source]) -> Mod:
    """Make an adversary's mod: it protects nothing, but marks its replies as protected.

    Parameters
    ----------
    layout : Layout
        Layout of the model.
    client : ClientSide
        Client side of the method that the adversary claims to run.
    lent : callable
        Function ``(partition, round)`` that returns the randomness for training code.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        partition = partition_of(context)
        if records.HELLO in message.content:
            mark = RecordDict({REPLY: records.write_mark(partition, client)})
            return Message(mark, reply_to=message)
        number = records.read_broadcast(message.content, layout).public.round
        try:
            with lending(Lent(lent(partition, number) if "noisy_steps" in client.needs else None)):
                content = call_next(message, context).content
            releases = records.read_releases(content, layout)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            return Message(Error(records.FAILED, why), reply_to=message)
        if (
            client.trust != "central"
        ):  # under local trust a server expects only a model from a client
            releases = releases[:1]
        return Message(records.write_reply(releases, layout, partition, client), reply_to=message)

    return mod


def _data_of(context: Context, clients: Sequence[ClientData]) -> tuple[int, ClientData]:
    """Return the partition of a node, and its data."""
    partition = partition_of(context)
    if partition >= len(clients):
        raise FieldError(
            "partition-id", partition, f"there is data for partitions 0 to {len(clients) - 1}"
        )
    return partition, with_buffers(clients[partition], context)


def _measured(learner: Learner, models: Tensor, client: ClientData) -> Figures:
    """Return the loss and accuracy on a client's held-out examples, of the model that fits best; empty without examples."""
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
    """Return a client with the buffers (running statistics) that its node keeps, if any."""
    own = records.tensors_in(context.state, records.BUFFERS)
    return replace(client, buffers=own) if own else client
