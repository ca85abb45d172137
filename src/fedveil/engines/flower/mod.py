"""The privacy mod: a client's half of every method, around any training function.

It sees the message, the context and the reply, never data. On a train message: may the client take part (else it does
not train), train, protect, commit, reply with the protected releases alone. Under central trust an evaluate message is
answered with its metrics; under local trust nothing is measured.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from threading import Thread
from typing import Any

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedveil.accounting import Ledger, Policy, model_of
from fedveil.engines.assembly import AnyMethod
from fedveil.engines.client import NO_PART, ClientParty
from fedveil.engines.flower import records
from fedveil.engines.flower.records import Memory
from fedveil.engines.flower.settings import BudgetOf, read_settings
from fedveil.engines.flower.validation import validated
from fedveil.engines.messages import REPLY
from fedveil.engines.node import RUN, disagreement, opened
from fedveil.engines.party import LineStore
from fedveil.engines.warning import Warnings
from fedveil.errors import FedVeilError, FieldError
from fedveil.layout import Layout
from fedveil.learning import PrivateTrainer
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, ClientFacts, Refusal, Releases
from fedveil.methods.publishing import Validation
from fedveil.secure import Site

_LOG = getLogger("flwr")
TOLD = "the client failed; its own log says why"  # all that a server reads of an error
NOTHING = "FedVeil: nothing leaves this node"


def _log_failure(partition: int, round_: int, error: Exception) -> None:
    _LOG.error("round %d: the client answered with a zero update", round_, exc_info=error)


_SOURCE: ContextVar[Source | None] = ContextVar("fedveil_training_source", default=None)
_CALLS: list[list[dict[str, Any]]] = []  # of whoever protects in the place of the mods that are built meanwhile


@contextmanager
def protected_outside() -> Iterator[list[dict[str, Any]]]:
    """Within it `privacy_mod` builds a mod that changes nothing, and its arguments are added to the list.

    For a process that wraps an app in a privacy mod of its own: the app's would be a second one inside it.
    """
    _CALLS.append([])
    try:
        yield _CALLS[-1]
    finally:
        _CALLS.pop()


def _unchanged(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    return call_next(message, context)


def privacy_mod(
    layout: Layout,
    method: AnyMethod | Callable[[int], AnyMethod] | None = None,
    *,
    source: Source | None = None,
    seed: int | None = None,
    budget: BudgetOf | None = None,
    rounds: int | None = None,
    policy: Policy | str | Path | None = None,
    ledger: str | Path | None = None,
    head: str | Path | None = None,
    ledgers: Callable[[str], tuple[Ledger, LineStore]] | None = None,
    run: str | None = None,
    trainer: PrivateTrainer | None = None,
    site: Site | Callable[[int], Site | None] | None = None,
    validation: Validation | None = None,
    tell: Callable[[int, int, Exception], None] = _log_failure,
    warnings: Warnings | None = None,
) -> Mod:
    """Build the mod; put it first in ``ClientApp(mods=[...])``, so that all other code runs inside it.

    Parameters
    ----------
    layout : Layout
        What the model shares.
    method : Method, what `Federation` takes as one, or callable, optional
        Pins the method in code; ``partition -> method`` where clients' parameters differ. Without it,
        ``privacy.method`` and ``privacy.<parameter>`` are read on each call from the node's configuration. What the
        run's configuration says, which whoever starts the run writes, is a proposal: a policy accepts or refuses it,
        and without a policy it is refused.
    source : Source, optional
        Randomness of the noise. Default: secure.
    seed : int, optional
        Reproducible noise instead, for experiments (or ``privacy.seed`` of the node): who knows the seed knows the
        noise, so a run cannot propose one.
    budget : callable, optional
        ``partition -> SpendFilter``, a fresh one on each call; it is charged with the ledger (or
        ``privacy.participations``, ``privacy.leakage-cap``).
    rounds : int, optional
        Rounds the client agreed to (or ``privacy.rounds``): a broadcast that plans another number is declined. FedRE's
        noise follows the planned rounds, so a client that does not trust the server sets it.
    policy : Policy or path, optional
        What the node allows, or the TOML file that says so (or ``privacy.policy``). It binds where the node pins or
        verifies the app that holds this mod; code that arrives with a run protects nobody.
    ledger : str or path, optional
        Folder of the node's lifetime ledger (or ``privacy.ledger``; ``privacy.dataset`` names the data set, by default
        the partition), or ``"run"`` for one that begins anew with each run. With secure noise it must be given.
    head : str or path, optional
        Folder of that ledger's head (or ``privacy.head``), on another disk at best: with a lifetime ledger it must be
        given.
    ledgers : callable, optional
        ``party -> (Ledger, LineStore)``: keeps the ledgers elsewhere.
    run : str, optional
        Names the run in the ledger. Default: Flower's run id.
    trainer : PrivateTrainer, optional
        Needed for methods whose noise goes inside training, and made like the one that training code uses: a client
        that fails answers with this one's noise.
    site : Site or callable, optional
        Of secure sums: the site's key and the peers that it pins, or ``partition -> Site``. Default: the key file that
        ``privacy.key`` of the node names, and the policy's table ``[sum]``.
    validation : Validation, optional
        Makes this a node that only validates: it never trains, and answers an evaluate message with the loss that the
        app's evaluate function has among its metrics as ``"loss"``, noised and charged as `Validation` says. The app
        needs a train function all the same, or Flower refuses the server's greeting.
    tell : callable, optional
        ``(partition, round, error)``: told why a client answered with a zero update. Default: the node's log.
    warnings : Warnings, optional
        Told what is odd about a client's training under local trust. Default: one that writes into the node's log.

    Returns
    -------
    Mod
        For ``ClientApp(mods=[...])`` or ``@app.train(mods=[...])``. Under central trust messages of other kinds pass.

    Notes
    -----
    Under local trust the server is the adversary. What can be checked without data is checked, and refused, before
    training code runs; afterwards a client answers with protected releases or, if anything failed, with
    a protected zero update. Evaluation is answered without running any code, and other kinds of message are refused.
    What failed is in the node's log. No text of an exception travels, under any trust model: it can quote data, or the
    node's own configuration.
    """
    if _CALLS:
        _CALLS[-1].append(dict(locals()))
        return _unchanged
    kept: dict[int, Warnings] = {}

    def answer(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type.partition(".")[0]
        given = {"seed": seed, "policy": policy, "ledger": RUN if ledgers else ledger, "head": head, "rounds": rounds}
        settings = read_settings(context, method, source, budget, site, validation is None, **given)
        settings = replace(settings, ledgers=ledgers)
        its_run, side = run or str(context.run_id), settings.method.client
        limit = None if settings.policy is None else settings.policy.deadline
        if side.trust != "central" and kind not in (MessageType.TRAIN, MessageType.EVALUATE):
            raise FieldError("message_type", kind, "under local trust only train and evaluate messages are answered")
        if kind != MessageType.TRAIN and side.trust == "central" and settings.policy is not None:
            refused = settings.policy.forbids(settings.method.name, side.trust)  # no quote says what this costs
            if refused is not None:
                return Message(Error(records.REFUSED, refused), reply_to=message)
        if kind not in (MessageType.TRAIN, MessageType.EVALUATE):
            return _called(call_next, message, context)
        if validation is not None:
            call = partial(_within, limit, call_next)
            return validated(message, context, call, settings, layout, validation, its_run)
        if records.HELLO in message.content:
            own: dict[str, Any] = {} if settings.site is None else {"site": settings.site.key.public.hex()}
            mark = records.write_mark(settings.partition, side, **own)
            return Message(RecordDict({REPLY: mark}), reply_to=message)
        # training code that answers in the request's record would hand them on as its own
        for name in (records.FACTS, REPLY, records.SUM, records.SHARE):
            if name in message.content:
                raise FieldError(name, "in a request", "is for replies: only training code may say how it trained")
        broadcast, memory = records.read_broadcast(message.content, layout), Memory(context)
        if kind == MessageType.EVALUATE:
            if side.trust != "central":
                return Message(records.write_reply((), layout, settings.partition, side), reply_to=message)
            with opened(memory, settings, layout, its_run, trainer) as party:
                content = _report(_called(call_next, message, context), layout, broadcast, party)
            return Message(content, reply_to=message)
        with opened(memory, settings, layout, its_run, trainer) as party:
            verdict = disagreement(broadcast.public, settings.rounds) or party.admit(broadcast)
            if isinstance(verdict, Refusal):
                word = verdict.reason if settings.site is None else NO_PART
                if settings.site is not None:
                    _LOG.error(f"{NOTHING}: %s", party.failure or verdict.reason)
                return Message(Error(records.REFUSED, word), reply_to=message)
            released = verdict
            if released is None:
                try:
                    noise = party.training_source(broadcast.public.round) if settings.method.noisy else None
                    reply = _within(limit, _noisy(call_next, noise), message, context)
                    releases, facts = _read(reply, layout, broadcast)
                except Exception as error:
                    released = party.fail(broadcast, error)
                else:
                    released = party.release(releases, facts)
                    if side.trust != "central":
                        log = partial(_LOG.warning, f"client {settings.partition}: %s")
                        said = kept.setdefault(settings.partition, warnings or Warnings(settings.method, layout, log))
                        said.on_node(facts, releases, party.ledger.entries[-1].spend.scale)
            if party.failure is not None:
                tell(settings.partition, broadcast.public.round, party.failure)
            memory.save(party.state, party.kept)
        return Message(records.write_reply(released, layout, settings.partition, side), reply_to=message)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            return answer(message, context, call_next)
        except Exception as error:
            _LOG.error(f"{NOTHING}: %s", error, exc_info=error)
            return Message(Error(records.FAILED, TOLD), reply_to=message)

    return mod


def training_source() -> Source:
    """Randomness of noise inside training, for training code behind the mod: `PrivateTrainer.train_noisily` takes it.

    Raises
    ------
    FieldError
        Outside a train message of a method whose noise goes inside training.
    """
    source = _SOURCE.get()
    if source is None:
        raise FieldError("source", None, "there is none here: it belongs to a train message of the method 'record'")
    return source


def _noisy(call_next: ClientAppCallable, source: Source | None) -> ClientAppCallable:
    """The training code, with a source of noise at hand while it runs, in whatever thread."""

    def call(message: Message, context: Context) -> Message:
        before = _SOURCE.set(source)
        try:
            return call_next(message, context)
        finally:
            _SOURCE.reset(before)

    return call


def _called(call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    reply = call_next(message, context)
    if reply.has_error():
        raise FedVeilError(f"the client answered with error {reply.error.code}: {reply.error.reason}")
    return reply


def _within(seconds: float | None, call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    """Call training code, for so many seconds at the most; what it answers later is dropped."""
    if seconds is None:
        return _called(call_next, message, context)
    answers: list[Message | Exception] = []

    def work() -> None:
        try:
            answers.append(_called(call_next, message, context))
        except Exception as error:
            answers.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    answer = answers[0] if answers else FedVeilError(f"training took longer than the {seconds:g} s of the policy")
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read(reply: Message, layout: Layout, broadcast: Broadcast) -> tuple[Releases, ClientFacts]:
    content = reply.content
    releases = records.read_releases(content, layout)
    if total := records.read_sum(content):
        releases = total
    elif model_of(releases) is None:
        raise FieldError(records.ARRAYS, list(content), "must hold the trained model: ArrayRecord(model.state_dict())")
    return releases, records.read_facts(content, layout, broadcast)


def _report(reply: Message, layout: Layout, broadcast: Broadcast, party: ClientParty) -> RecordDict:
    content = reply.content
    facts = records.read_facts(content, layout, broadcast)
    measured = tuple(r for r in records.read_releases(content, layout) if r.kind in ("metric", "count"))
    return records.write_reply(party.report(measured, facts), layout, int(party.ledger.party), party.method.client)
