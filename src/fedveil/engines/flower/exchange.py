"""Handling of one message at a node: a client's half of every method, around any training function.

The module sees the message, the context and the reply, never data. A train message is checked first: a client that
declines does not train. Otherwise it trains, protects, records the cost, and replies with the protected releases only.
An evaluate message is answered with metrics under central trust; under local trust nothing is measured. A node that
only validates releases the loss of a broadcast model, or nothing.
"""

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from math import inf, isfinite
from threading import Thread
from traceback import extract_tb
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedveil.accounting import Ledger, Release, model_of
from fedveil.engines.client import NO_PART, ClientParty
from fedveil.engines.decisions import note_decision, note_verdict, why
from fedveil.engines.deployed import RUN, Settings, answer, disagreement, opened, opened_ledger
from fedveil.engines.flower import records
from fedveil.engines.flower.lending import Lent, lending
from fedveil.engines.flower.records import Memory
from fedveil.engines.messages import REPLY
from fedveil.engines.party import VALIDATE, listed_as
from fedveil.engines.stopping import Validator
from fedveil.engines.warning import Warnings
from fedveil.errors import BudgetError, FedVeilError, FieldError, LedgerError
from fedveil.layout import Layout
from fedveil.learning import PrivateTrainer
from fedveil.learning.witness import note_failure
from fedveil.logs import logger
from fedveil.methods import Broadcast, ClientFacts, PublicFacts, Refusal, Releases
from fedveil.methods.publishing import Validation

_LOG = logger("flwr")
NOTHING = "FedVeil: nothing leaves this node"
LEGACY = "recorddict_compat"  # Flower's module that reads messages for a client_fn
LOSS = "loss"  # metric of the app's evaluate function

Tell = Callable[[int, int, Exception], None]  # partition, round, reason of the zero update


@dataclass(frozen=True)
class Exchange:
    """One message to a node, with the app, settings and layout needed to answer it.

    Attributes
    ----------
    message, context, app
        Arguments of a Flower mod; `app` is the code that runs inside the mod.
    settings : Settings
        Settings of the client's protection.
    layout : Layout
        Layout of the model.
    run : str
        Name of the run in the ledger.
    """

    message: Message
    context: Context
    app: ClientAppCallable
    settings: Settings
    layout: Layout
    run: str

    def answered(
        self,
        trainer: PrivateTrainer | None,
        validation: Validation | None,
        warnings: Callable[[], Warnings],
        tell: Tell,
    ) -> Message:
        """Answer the message; see `privacy_mod` for the parameters. The server learns nothing about an error."""
        kind = self.message.metadata.message_type.partition(".")[0]
        refused = self._forbidden(kind)
        if refused is not None:
            note_decision(verdict="refused", **why(refused))
            return self._refusal(refused)
        if kind not in (MessageType.TRAIN, MessageType.EVALUATE):
            return self._reply(self._called())
        content = self.message.content
        if records.HELLO in content:
            return self._reply(RecordDict({REPLY: self._mark(validation)}))
        if validation is not None:
            return self._validated(kind, validation)
        self._require_request(content)
        broadcast = records.read_broadcast(content, self.layout)
        if kind == MessageType.EVALUATE:
            return self._evaluated(broadcast, trainer)
        return self._trained_once(broadcast, trainer, warnings, tell)

    @property
    def _local(self) -> bool:
        """Whether the server is not trusted."""
        return self.settings.method.client.trust != "central"

    def _forbidden(self, kind: str) -> str | None:
        """Return the reason why a message of this kind may not be answered; None if it may.

        Raises
        ------
        FieldError
            For a kind that is never answered under local trust.
        """
        method, policy = self.settings.method, self.settings.policy
        if self._local and kind not in (MessageType.TRAIN, MessageType.EVALUATE):
            raise FieldError(
                "message_type",
                kind,
                "under local trust only train and evaluate messages are answered",
            )
        if kind == MessageType.TRAIN or self._local or policy is None:
            return None
        return policy.forbids(
            listed_as(method, policy), method.client.trust
        )  # no quote tells the cost of this

    def _require_request(self, content: RecordDict) -> None:
        """Refuse a request that already holds a record of a reply, as training code could send it on in its answer.

        Raises
        ------
        FieldError
            For such a record, which the text names.
        """
        for name in (records.FACTS, REPLY, records.SUM, records.SHARE):
            if name in content:
                raise FieldError(
                    name,
                    "in a request",
                    "is for replies: only training code may say how it trained",
                )

    def _evaluated(self, broadcast: Broadcast, trainer: PrivateTrainer | None) -> Message:
        """Answer an evaluate message; under local trust the answer is empty and no code runs."""
        if self._local:
            return self._released(())
        with opened(Memory(self.context), self.settings, self.layout, self.run, trainer) as party:
            return self._released(self._measured(party, broadcast))

    def _trained_once(
        self,
        broadcast: Broadcast,
        trainer: PrivateTrainer | None,
        warnings: Callable[[], Warnings],
        tell: Tell,
    ) -> Message:
        """Answer a train message: decide by public facts, and only then train, protect and release."""
        settings, public = self.settings, broadcast.public
        memory = Memory(self.context)
        self._require_begun(memory, public)
        note_decision(
            round=public.round, method=settings.method.name, trust=settings.method.client.trust
        )
        with opened(memory, settings, self.layout, self.run, trainer) as party:
            verdict = disagreement(public, settings.rounds) or party.admit(broadcast)
            note_verdict(verdict, party.ledger, settings.policy)
            if isinstance(verdict, Refusal):
                return self._declined(verdict, party)
            if party.left_out:
                _LOG.warning("round %d: %s", public.round - 1, party.left_out)
            own = warnings() if self._local else None

            def trained() -> tuple[Releases, ClientFacts]:
                return self._trained(party, broadcast, trainer, warnings)

            released = answer(party, memory, broadcast, verdict, trained, own)
            if party.failure is not None:
                note_failure(party.failure)
                tell(settings.partition, public.round, party.failure)
            sealed = party.seal(public.round)
        return self._released(released, sealed)

    def _declined(self, verdict: Refusal, party: ClientParty) -> Message:
        """Reply that the client declines a round; for a secure sum the server gets no reason."""
        if self.settings.site is None:
            return self._refusal(verdict.reason)
        cause = party.failure or verdict.reason
        note_decision(why=str(cause))
        _LOG.error(f"{NOTHING}: %s", cause)
        return self._refusal(NO_PART)

    def _released(self, released: Releases, sealed: str = "") -> Message:
        """Make the reply: only the releases and the seal of their receipt."""
        settings = self.settings
        return self._reply(
            records.write_reply(
                released, self.layout, settings.partition, settings.method.client, sealed
            )
        )

    def _require_begun(self, memory: Memory, public: PublicFacts) -> None:
        """Refuse to begin a ledger of this run in the middle of the run, if each round asks all nodes.

        Raises
        ------
        LedgerError
            If the node knows no earlier round: its state was lost, or the run continues under another name.
        """
        settings, partitions = self.settings, self.context.node_config.get("num-partitions")
        counted = settings.budget is not None or settings.policy is not None
        recorded = settings.method.client.trust != "central" or counted
        alone = settings.ledgers is None and settings.ledger in (None, RUN)
        everybody = isinstance(partitions, int) and public.cohort >= partitions
        if recorded and alone and everybody and public.round > 1 and not memory.begun:
            why = f"knows of no round before {public.round}, in which it must have been asked: what it spent is lost"
            raise LedgerError(
                f"the node {why}. Name a ledger that outlasts the run (privacy.ledger)"
            )
        memory.begun = True

    def _reply(self, content: RecordDict) -> Message:
        return Message(content, reply_to=self.message)

    def _refusal(self, reason: str) -> Message:
        return Message(Error(records.REFUSED, reason), reply_to=self.message)

    def _mark(self, validation: Validation | None) -> ConfigRecord:
        settings, own = self.settings, dict[str, Any]()
        if validation is not None:
            own = {"validates": True}
        elif settings.site is not None:
            own = {"site": settings.site.key.public.hex()}
        return records.write_mark(settings.partition, settings.method.client, **own)

    def _called(self, lent: Lent | None = None) -> RecordDict:
        """Call the app's code, and return the content of its answer, or of its own loop's; any thread can do this."""
        records.complete(self.message.content, self.layout, self.context.state)
        own = Lent() if lent is None else lent
        reply: Message | None = None
        try:
            with lending(own):
                reply = self.app(self.message, self.context)
        except Exception as error:
            if any(LEGACY in frame.filename for frame in extract_tb(error.__traceback__)):
                accepted = "is of Flower's legacy API, and gets messages that it cannot read: needs @app.train() of "
                accepted += "the message API, as docs/flower.md shows"
                raise FieldError("client_app", "client_fn", accepted) from error
            raise
        answer = own.answer()  # what the code itself answers counts for nothing then
        if answer is not None:
            if said := _error_in(reply):
                _LOG.warning("the app answered with %s; its loop's steps are the answer", said)
            return answer
        if reply is None or reply.has_error():
            raise FedVeilError(f"the client answered with {_error_in(reply)}")
        return reply.content

    def _called_in_time(self, lent: Lent | None = None) -> RecordDict:
        """Call the app's code, and return the content if it comes within the policy's deadline."""
        seconds = None if self.settings.policy is None else self.settings.policy.deadline
        if seconds is None:
            return self._called(lent)
        answers: list[RecordDict | Exception] = []

        def work() -> None:
            try:
                answers.append(self._called(lent))
            except Exception as error:
                answers.append(error)

        thread = Thread(target=copy_context().run, args=(work,), daemon=True)
        thread.start()
        thread.join(seconds)
        reply = (
            answers[0]
            if answers
            else FedVeilError(f"training took longer than the {seconds:g} s of the policy")
        )
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _trained(
        self,
        party: ClientParty,
        broadcast: Broadcast,
        trainer: PrivateTrainer | None,
        warnings: Callable[[], Warnings],
    ) -> tuple[Releases, ClientFacts]:
        """Train by the app's code, and return releases and facts."""
        noisy, lent = self.settings.method.noisy, Lent()
        if noisy is not None:
            source = party.training_source(broadcast.public.round)
            lent = Lent(source, trainer, broadcast.models[0])
        content = self._called_in_time(lent)
        if noisy is not None and noisy.noisy_steps.by_app and lent.loop is None:
            accepted = (
                "must be opened in the train function: app_loop(model, optimizer, trainloader)"
            )
            raise FieldError("app_loop", None, accepted)
        if records.FACTS not in content:
            warnings().unread(len(broadcast.models))
        records.keep(content, self.message.content, self.layout, self.context.state)
        releases = records.read_releases(content, self.layout)
        if total := records.read_sum(content):
            releases = total
        elif model_of(releases) is None:
            accepted = "must hold the trained model: ArrayRecord(model.state_dict())"
            raise FieldError(records.ARRAYS, list(content), accepted)
        return releases, records.read_facts(content, self.layout, broadcast)

    def _measured(self, party: ClientParty, broadcast: Broadcast) -> Releases:
        """Measure by the app's evaluate function, and return the releases."""
        content = self._called()
        measured = tuple(
            r for r in records.read_releases(content, self.layout) if r.kind in ("metric", "count")
        )
        return party.report(measured, records.read_facts(content, self.layout, broadcast))

    def _validated(self, kind: str, validation: Validation) -> Message:
        """Answer as a node that only validates: release a loss and record it, or refuse before data are touched."""
        if kind != MessageType.EVALUATE:
            return self._refusal("this node validates and never trains")
        settings = self.settings
        public = records.read_broadcast(self.message.content, self.layout).public
        with opened_ledger(Memory(self.context), settings, self.run) as (ledger, store):
            own = (validation, ledger, settings.source, settings.budget, store)
            party = Validator(settings.method, settings.policy, *own)
            reason = self._no_loss(party, ledger, public)
            if reason:
                return self._refusal(reason)
            loss = self._loss(public.round)
            if (
                not self._local and validation.losses == "noised"
            ):  # the server adds the noise and pays for it
                sent = loss if isfinite(loss) else validation.loss_range
            else:
                try:
                    sent = party.send(loss, public.round)
                except BudgetError as error:  # only public costs decide
                    return self._refusal(str(error))
        released = (Release("metric", torch.tensor(sent, dtype=torch.float64), LOSS),)
        content = records.write_reply(
            released, self.layout, settings.partition, settings.method.client
        )
        content[REPLY] = self._mark(validation)
        return self._reply(content)

    def _no_loss(self, party: Validator, ledger: Ledger, public: PublicFacts) -> str:
        """Return the reason why a validating node sends no loss; "" if it sends one."""
        settings = self.settings
        bounded = settings.policy is not None or settings.budget is not None
        made = (
            ledger.entries if bounded else ledger.all_entries
        )  # no other limit holds over several runs
        sent = sum(entry.key[1] == VALIDATE for entry in made)
        if party.cap is not None and sent >= party.cap:
            return f"all {party.cap} losses were sent: only a policy with a total, or a budget, allows more runs"
        unlike = disagreement(public, settings.rounds)
        return party.declines(public.round) if unlike is None else unlike.reason

    def _loss(self, round_: int) -> float:
        """Return the loss that the app's evaluate function measures; infinity if it fails."""
        try:
            measured = records.read_releases(self._called_in_time(), self.layout)
            return {release.name: float(release.value) for release in measured}[LOSS]
        except Exception as error:  # from here on an error would reveal something about the data
            _LOG.error("round %d: the loss is the largest that is declared", round_, exc_info=error)
            return inf


def _error_in(reply: Message | None) -> str:
    """Return what is wrong with an app's answer; "" for an answer with content."""
    if reply is None:
        return "nothing"
    return f"error {reply.error.code}: {reply.error.reason}" if reply.has_error() else ""
