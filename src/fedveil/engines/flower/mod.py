"""The privacy mod: a client's half of every method, around any training function.

It sees the message, the context and the reply, never data. On a train message: may the client take part (else it does
not train), train, protect, commit, reply with the protected releases alone. On an evaluate message the metrics pass
under central trust and stay on the client under local trust.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedveil.accounting import Entry, Ledger, digest, model_of
from fedveil.engines.flower.memory import Memory
from fedveil.engines.flower.records import (
    ARRAYS,
    FAILED,
    HELLO,
    REFUSED,
    REPLY,
    read_broadcast,
    read_facts,
    read_releases,
    write_mark,
    write_reply,
)
from fedveil.engines.flower.settings import Budget, Settings, read_settings
from fedveil.engines.party import ClientParty, Store
from fedveil.errors import FedVeilError, FieldError
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, Method, PublicFacts, Refusal

_LOG = getLogger("flwr")
REPAIR = "repair"


def privacy_mod(
    layout: Layout,
    method: Method | None = None,
    *,
    source: Source | None = None,
    seed: int | None = None,
    budget: Budget | None = None,
    rounds: int | None = None,
    ledger_dir: str | None = None,
    ledgers: Callable[[str], tuple[Ledger, Store]] | None = None,
    run: str | None = None,
) -> Mod:
    """Build the mod; put it first in ``ClientApp(mods=[...])``, so that all other code runs inside it.

    Parameters
    ----------
    layout : Layout
        What the model shares.
    method : Method, optional
        Pins the method in code. Without it, ``privacy.method`` and ``privacy.<parameter>`` are read on each call from
        the run's configuration, which whoever starts the run writes; the node's own configuration has precedence.
    source : Source, optional
        Randomness of the noise. Default: secure.
    seed : int, optional
        Reproducible noise instead, for experiments (or ``privacy.seed``): who knows the seed knows the noise.
    budget : callable, optional
        ``partition -> SpendFilter``, a fresh one on each call; it is charged with the ledger (or
        ``privacy.participations``, ``privacy.leakage-cap``).
    rounds : int, optional
        Rounds the client agreed to (or ``privacy.rounds``): a broadcast that plans another number is declined. FedRE's
        noise follows the planned rounds, so a client that does not trust the server sets it.
    ledger_dir : str, optional
        Folder of the ledger file (or ``privacy.ledger-dir``), for a ledger that outlives the run's context.
    ledgers : callable, optional
        ``party -> (Ledger, Store)``: keeps the ledgers elsewhere.
    run : str, optional
        Names the run in the ledger. Default: Flower's run id.

    Returns
    -------
    Mod
        For ``ClientApp(mods=[...])`` or ``@app.train(mods=[...])``. Messages other than train and evaluate pass.

    Notes
    -----
    Error replies under local trust say only that the client failed: the text of an exception can quote data. The
    node's log has it.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        category = message.metadata.message_type.partition(".")[0]
        if category not in (MessageType.TRAIN, MessageType.EVALUATE):
            return call_next(message, context)
        try:  # nothing private has been touched yet, so the server may read why this failed
            settings = read_settings(context, method, source, seed, budget, ledger_dir, rounds)
            if HELLO in message.content:
                mark = write_mark(settings.partition, settings.method.client)
                return Message(RecordDict({REPLY: mark}), reply_to=message)
            broadcast = read_broadcast(message.content, layout)
            memory = Memory(context, settings.partition, run or str(context.run_id), settings.ledger_dir)
            party = _party(settings, layout, memory, broadcast, ledgers)
            refusal = None
            if category == MessageType.TRAIN:
                refusal = _disagree(broadcast.public, settings.rounds) or party.admit(broadcast)
        except Exception as error:
            return _failure(message, error, private=False)
        if refusal is not None:
            return Message(Error(REFUSED, refusal.reason), reply_to=message)
        try:
            reply = call_next(message, context)
            if category == MessageType.TRAIN:
                content = _release(reply, layout, broadcast, party)
            else:
                content = _report(reply, layout, broadcast, party)
        except Exception as error:
            if category == MessageType.TRAIN:
                party.abandon(broadcast.public)
            return _failure(message, error, private=settings.method.client.trust == "local")
        memory.save(party.state)
        return Message(content, reply_to=message)

    return mod


def _party(
    settings: Settings,
    layout: Layout,
    memory: Memory,
    broadcast: Broadcast,
    ledgers: Callable[[str], tuple[Ledger, Store]] | None,
) -> ClientParty:
    method, public = settings.method, broadcast.public
    ledger, store = (memory.ledger, memory.store) if ledgers is None else ledgers(str(settings.partition))
    state = memory.load(method.client.init())
    if memory.torn:  # which release the lost line was for is unknown: count the dearest that it can have been
        quoted = method.client.quote(broadcast, state)
        known = ledger.find((public.round, REPAIR))
        if not isinstance(quoted, Refusal):
            attempt = 0 if known is None else known.attempt + 1
            store(ledger.commit(Entry((public.round, REPAIR), attempt, digest(()), quoted)))
    return ClientParty(method, layout, ledger, settings.source, budget=settings.budget, state=state, store=store)


def _disagree(public: PublicFacts, rounds: int | None) -> Refusal | None:
    if rounds is not None and public.rounds != rounds:
        return Refusal(f"the client agreed to {rounds} rounds, the server plans {public.rounds}")
    if public.round > public.rounds:
        return Refusal(f"round {public.round} lies beyond the {public.rounds} rounds planned")
    return None


def _release(reply: Message, layout: Layout, broadcast: Broadcast, party: ClientParty) -> RecordDict:
    content = _content(reply)
    facts, found = read_facts(content, layout, broadcast), read_releases(content, layout)
    if model_of(found) is None:
        raise FieldError(ARRAYS, list(content), "must hold the trained model: ArrayRecord(model.state_dict())")
    released = party.release(found, facts)
    return write_reply(released, layout, int(party.ledger.party), party.method.client)


def _report(reply: Message, layout: Layout, broadcast: Broadcast, party: ClientParty) -> RecordDict:
    content = _content(reply)
    facts = read_facts(content, layout, broadcast)
    measured = tuple(r for r in read_releases(content, layout) if r.kind in ("metric", "count"))
    return write_reply(party.report(measured, facts), layout, int(party.ledger.party), party.method.client)


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        raise FedVeilError(f"the client answered with error {reply.error.code}: {reply.error.reason}")
    return reply.content


def _failure(message: Message, error: Exception, private: bool) -> Message:
    _LOG.error("the client failed", exc_info=error)
    reason = "the client failed; its own log says why" if private else f"{type(error).__name__}: {error}"
    return Message(Error(FAILED, reason), reply_to=message)
