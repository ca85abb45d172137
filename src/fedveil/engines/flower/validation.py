"""A node that only validates: the loss of a broadcast model on its data leaves as a release, or nothing does."""

from collections.abc import Callable, Iterable
from logging import getLogger
from math import inf, isfinite

import torch
from flwr.app import Context, Error, Message, MessageType, RecordDict

from fedveil.accounting import Release
from fedveil.engines.flower import records
from fedveil.engines.flower.records import Memory
from fedveil.engines.messages import REPLY
from fedveil.engines.node import Settings, disagreement, opened_ledger
from fedveil.engines.party import VALIDATE, ServerParty
from fedveil.engines.stopping import Validator
from fedveil.errors import BudgetError
from fedveil.layout import Layout
from fedveil.methods import Releases
from fedveil.methods.publishing import Validation

_LOG = getLogger("flwr")
LOSS = "loss"  # of the app's evaluate function
Evaluate = Callable[[Message, Context], Message]


def validated(
    message: Message,
    context: Context,
    evaluate: Evaluate,
    settings: Settings,
    layout: Layout,
    validation: Validation,
    run: str,
) -> Message:
    """The answer of a validating node: its greeting, a loss that is in its ledger, or a refusal before data."""
    side, partition = settings.method.client, settings.partition
    mark = records.write_mark(partition, side, validates=True)
    if records.HELLO in message.content:
        return Message(RecordDict({REPLY: mark}), reply_to=message)
    if message.metadata.message_type.partition(".")[0] != MessageType.EVALUATE:
        return Message(Error(records.REFUSED, "this node validates and never trains"), reply_to=message)
    broadcast = records.read_broadcast(message.content, layout)
    number = broadcast.public.round
    with opened_ledger(Memory(context), settings, run) as (ledger, store):
        party = Validator(settings.method, settings.policy, validation, ledger, settings.source, settings.budget, store)
        reason = party.declines(number)
        if unlike := disagreement(broadcast.public, settings.rounds):
            reason = unlike.reason
        bounded = settings.policy is not None or settings.budget is not None
        made = ledger.entries if bounded else ledger.all_entries  # nothing else bounds runs together
        if party.cap is not None and sum(e.key[1] == VALIDATE for e in made) >= party.cap:
            reason = f"all {party.cap} losses were sent: only a policy with a total, or a budget, allows more runs"
        if reason:
            return Message(Error(records.REFUSED, reason), reply_to=message)
        try:
            found = {r.name: float(r.value) for r in records.read_releases(evaluate(message, context).content, layout)}
            loss = found[LOSS]
        except Exception as error:  # from here on it would tell something of the data
            _LOG.error("round %d: the loss is the largest that is declared", number, exc_info=error)
            loss = inf
        if side.trust == "central" and validation.losses == "noised":  # the server adds the noise, and pays for it
            sent = loss if isfinite(loss) else validation.loss_range
        else:
            try:
                sent = party.send(loss, number)
            except BudgetError as error:  # public costs alone decide
                return Message(Error(records.REFUSED, str(error)), reply_to=message)
    released = (Release("metric", torch.tensor(sent, dtype=torch.float64), LOSS),)
    content = records.write_reply(released, layout, partition, side)
    content[REPLY] = mark
    return Message(content, reply_to=message)


def validation_loss(
    server: ServerParty, validation: Validation, round_: int, released: Iterable[Releases]
) -> float | None:
    """The validation loss of a round as released: the mean of what left the nodes, or the server's own release."""
    losses = [r.value.double() for found in released for r in found if r.kind == "metric" and r.name == LOSS]
    if not losses:
        return None
    if server.method.client.trust != "central" or validation.losses == "public":
        return float(torch.stack(losses).mean())
    return server.validate(round_, torch.stack(losses), validation)
