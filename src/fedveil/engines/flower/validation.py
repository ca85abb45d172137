"""A node that only validates: the loss of a broadcast model on its data leaves as a release, or nothing does."""

from collections.abc import Callable
from logging import getLogger
from math import inf, isfinite

import torch
from flwr.app import Context, Error, Message, MessageType, RecordDict

from fedveil.accounting import Ledger, Release
from fedveil.engines.flower import records
from fedveil.engines.flower.records import Memory
from fedveil.engines.messages import REPLY
from fedveil.engines.node import Settings, disagreement, opened_ledger
from fedveil.engines.party import VALIDATE, LineStore
from fedveil.engines.stopping import Validator
from fedveil.errors import BudgetError
from fedveil.layout import Layout
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
    ledgers: Callable[[str], tuple[Ledger, LineStore]] | None,
) -> Message:
    """The answer of a validating node: its greeting, a loss that is in its ledger, or a refusal before data."""
    side, partition = settings.method.client, settings.partition
    if records.HELLO in message.content:
        return Message(RecordDict({REPLY: records.write_validator_mark(partition, side)}), reply_to=message)
    if message.metadata.message_type.partition(".")[0] != MessageType.EVALUATE:
        return Message(Error(records.REFUSED, "this node validates and never trains"), reply_to=message)
    broadcast = records.read_broadcast(message.content, layout)
    number = broadcast.public.round
    with opened_ledger(Memory(context), settings, run, ledgers) as (ledger, store):
        capped = validation.losses == "noised" and side.trust != "central"
        cap = validation.releases if capped else None
        party = Validator(settings.method, settings.policy, cap, ledger, settings.source, settings.budget, store)
        reason = party.declines(number, validation)
        if unlike := disagreement(broadcast.public, settings.rounds):
            reason = unlike.reason
        bounded = settings.policy is not None or settings.budget is not None
        made = ledger.entries if bounded else ledger.all_entries  # nothing else bounds runs together
        if cap is not None and sum(e.key[1] == VALIDATE for e in made) >= cap:
            reason = f"all {cap} losses were sent: only a policy with a total, or a budget, allows more runs"
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
                sent = party.send(loss, number, validation, side.trust)
            except BudgetError as error:  # public costs alone decide
                return Message(Error(records.REFUSED, str(error)), reply_to=message)
    released = (Release("metric", torch.tensor(sent, dtype=torch.float64), LOSS),)
    content = records.write_reply(released, layout, partition, side)
    content[REPLY] = records.write_validator_mark(partition, side)
    return Message(content, reply_to=message)
