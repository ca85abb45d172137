"""Client side of a federation: decide about a round, protect the result of training, record its cost. Used by all engines.

Under local trust the server is the adversary. Everything that needs no data is checked first, and refused openly. After
that the client always answers: a failure becomes a zero update, which the method protects like any other. Under every
proven method the noise depends on no private value, so only the client's own log tells a failure. A heuristic may
reveal it by its fallback, as FedRE does by an even split.

A share of a trusted sum is sent once. If two sums contained it, subtracting them could reveal another silo's share. A
repeated round is one more release, with new noise and a new lot. Under a secure sum every question (roster, attempt,
model) is a separate release in the ledger. The same question always gets the same bits.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedveil.accounting import (
    OPEN,
    Entry,
    Ledger,
    Policy,
    Receipt,
    Release,
    Spend,
    SpendFilter,
    digest,
)
from fedveil.accounting.receipts import SALT
from fedveil.engines.client_checks import (
    PROTECT,
    all_made,
    dearer,
    release_key,
    require_broadcast,
    require_question,
)
from fedveil.engines.party import LineStore, Party, forget
from fedveil.engines.receipting import paid, require_receipt, seal_of
from fedveil.errors import BudgetError, FieldError, LedgerError
from fedveil.layout import Layout
from fedveil.learning.private import PrivateTrainer
from fedveil.mechanisms import NoSource, ReproducibleSource, Source
from fedveil.methods import (
    Broadcast,
    ClientFacts,
    Method,
    Protected,
    PublicFacts,
    Refusal,
    Releases,
)
from fedveil.secure import Site, SumContext

NO_PART = "the site takes no part in this sum"  # the only reason that a server gets
RECEIPT = "receipt"  # key of the stream of receipts' salts
WORDS = SALT // 8  # numbers of 8 bytes in a salt
ZERO = "zero"  # key of the stream for zero updates, as noise drawn in a failed attempt is not used again


class ClientParty(Party):
    """One client of a federation, with its method, ledger, budget and policy.

    Under central trust its side of the method changes nothing, draws nothing and spends nothing. Its ledger then counts
    participations only if it has a filter or a policy, or reports a choice among hypotheses.

    Parameters
    ----------
    method : Method
        Method of the federation; the party runs its client side.
    layout : Layout
        Layout of the model.
    ledger : Ledger
        Ledger of the client, possibly resumed.
    source : Source
        Randomness of the noise. With a secure source an intent is committed before data are touched. If the process
        dies then, the client answers a repeated round with a zero update. With a reproducible source a repeated round
        is drawn again, to the same bits. A share is drawn again only by a party that has not sent it itself, as after a
        crash.
    budget : SpendFilter, optional
        Filter that stops the client before a budget is exceeded.
    policy : Policy, optional
        Policy of the client's owner.
    state : optional
        State from which to resume.
    kept : tuple of (int, Releases)
        Last answered round and its releases; they are sent again if the server repeats that round. Under a trusted sum
        the releases are left out.
    store : callable
        Function that makes a ledger line durable.
    trainer : PrivateTrainer, optional
        Trainer of methods whose noise goes inside training; it makes a failed client's answer.
    site : Site, optional
        Key and terms of the client, for secure sums.
    rehearsed : set of int, optional
        Client sides (by identity) that protected a zero update in a test; clients of one engine share the set.

    Attributes
    ----------
    kept : tuple of (int, Releases)
        Same as the parameter, after the last answer.
    failure : Exception, optional
        Error that made the last answer a zero update. It is for the client's own log, and never leaves.
    left_out : str
        Text for the client's own log if the receipt in the last broadcast lacks a share of this client; else empty.
    """

    def __init__(
        self,
        method: Method,
        layout: Layout,
        ledger: Ledger,
        source: Source,
        *,
        budget: SpendFilter | None = None,
        policy: Policy | None = None,
        state: Any = None,
        kept: tuple[int, Releases] = (0, ()),
        store: LineStore = forget,
        trainer: PrivateTrainer | None = None,
        rehearsed: set[int] | None = None,
        site: Site | None = None,
    ) -> None:
        super().__init__(ledger, source, budget, store)
        self._site = site
        self._question: SumContext | None = None
        if site is None and method.client.trust == "secure sum":
            raise FieldError(
                "site",
                None,
                "it is needed for a secure sum: the site's key, and its peers' public ones",
            )
        self._trainer = trainer
        self.method, self.layout, self.policy, self.kept = method, layout, policy, kept
        self.failure: Exception | None = None
        self.left_out = ""
        self._receipt: Receipt | None = None
        self._local, self._summed = (
            method.client.trust != "central",
            method.client.trust == "trusted sum",
        )
        self.state = method.client.init() if state is None else state
        self._quoted: Spend | None = None
        self._rehearsed = set[int]() if rehearsed is None else rehearsed

    @property
    def counts(self) -> bool:
        """Whether a budget or a policy counts the client's participations."""
        return self.budget is not None or self.policy is not None

    def admit(self, broadcast: Broadcast) -> Refusal | Releases | None:
        """Decide, before data are touched, whether the client takes part.

        Returns
        -------
        Refusal, Releases or None
            None: train, and then call `release` or `fail`. Releases: the answer without training, because the round was
            answered before or a process died in it. Under a trusted sum an answered round is trained again if policy
            and budget allow one more release.

        Raises
        ------
        FieldError
            If the broadcast does not fit the client's configuration.
        """
        require_broadcast(broadcast, self.method, self.layout, self._trainer)
        client, public = self.method.client, broadcast.public
        quoted = client.quote(broadcast, self.state)
        if isinstance(quoted, Refusal):
            return quoted
        self._quoted, self._question, self.failure = quoted, None, None
        if self._site is not None:
            try:
                self._question = self._asked(self._site, broadcast)
            except FieldError as error:  # the server learns that the client declines, but not why
                self.failure = error
                return Refusal(NO_PART)
        try:
            required = self.policy is not None and self.policy.receipts
            self._receipt, self.left_out = self._received(public, required)
        except (FieldError, LedgerError) as error:
            self.failure = error
            return Refusal(str(error) if self._site is None else NO_PART)
        known = self.ledger.find(self._key(public.round))
        if known is not None and not self._renews(known):
            return self._again(broadcast, known)
        attempt = 0 if known is None else known.attempt + 1
        self._rehearse(broadcast)
        reason = self._declines(public, quoted)
        if reason:
            return Refusal(reason)
        if not self._local and not self.counts and quoted.leakage is None:
            return None
        if not self._local:
            self._commit(
                Entry(self._key(public.round), 0, digest(()), quoted, "none", public.rounds)
            )
        elif self._source.deployable or attempt:
            self._commit(self._entry(public, attempt, quoted))
        return None

    def seal(self, round_: int) -> str:
        """Return the seal for the receipt of the last answer in this round; empty without receipts."""
        return seal_of(self.ledger.find(self._key(round_)))

    def forecast_round(self, broadcast: Broadcast) -> Refusal | None:
        """Admit a round and record its quoted cost without training, to forecast the promise of a run.

        Returns
        -------
        Refusal or None
            Refusal if the client would decline, else None.
        """
        verdict = self.admit(broadcast)
        if isinstance(verdict, Refusal):
            return verdict
        self.record_quote(broadcast)
        return None

    def record_quote(self, broadcast: Broadcast) -> None:
        """Record the quoted cost of an admitted round without answering it, for a forecast."""
        if (
            self._local
            and self._quoted is not None
            and self.ledger.find(self._key(broadcast.public.round)) is None
        ):
            self._commit(self._entry(broadcast.public, 0, self._quoted))

    def training_source(self, round_: int) -> Source:
        """Return the randomness for noise inside training in the current attempt at a round."""
        if self._question is not None and self._site is not None:
            return self._site.key.source(self._question.digest).child("train")
        return self.stream(round_, "train")

    def stream(self, round_: int, purpose: str = PROTECT) -> Source:
        """Return the randomness for a purpose in a round; a reproducible source always gives the same stream."""
        known = self.ledger.find((round_, PROTECT))
        return self._source.child(
            self.ledger.party, round_, purpose, 0 if known is None else known.attempt
        )

    def release(self, releases: Releases, facts: ClientFacts) -> Releases:
        """Protect the result of training, commit it and return it; under local trust a failure becomes a zero update.

        Parameters
        ----------
        releases, facts
            Releases and facts of the trained client.

        Raises
        ------
        BudgetError, LedgerError
            If nothing may leave. Neither error depends on the client's data.
        """
        if not self._local:
            protected = self.method.client.protect(releases, facts, self.state, NoSource())
            self.state = protected.state
            return protected.releases
        round_ = facts.broadcast.public.round
        facts = replace(facts, site=self._site)
        return self._answer(
            facts.broadcast, lambda: self._protect(releases, facts, self.stream(round_))
        )

    def fail(self, broadcast: Broadcast, error: Exception) -> Releases:
        """Answer an admitted round whose training failed: by a zero update under local trust, else by raising the error."""
        if not self._local:
            raise error

        def failed() -> Protected:
            raise error

        return self._answer(broadcast, failed)

    def report(self, releases: Releases, facts: ClientFacts) -> Releases:
        """Return the evaluation releases (metrics, counts) that may leave; none under local trust.

        Raises
        ------
        FieldError
            For any other kind of release: a model that left here would be in no ledger.
        """
        kinds = {release.kind for release in releases} - {"metric", "count"}
        if kinds:
            raise FieldError(
                "releases", sorted(kinds), "an evaluation has metrics and counts; use `release`"
            )
        if self._local:
            return ()
        return self.method.client.protect(releases, facts, self.state, NoSource()).releases

    def _key(self, round_: int) -> tuple[int, str]:
        """Return the key of this round's release in the ledger."""
        return release_key(round_, self._question)

    def _asked(self, site: Site, broadcast: Broadcast) -> SumContext | None:
        """Return the question of a secure sum, or refuse one that may not be answered."""
        question = self._question_of(broadcast)
        if question is not None:
            require_question(question, broadcast.public, site, self.ledger)
        return question

    def _question_of(self, broadcast: Broadcast) -> SumContext | None:
        if self.method.noisy is None:
            return None
        return self.method.noisy.question(broadcast, self.layout)

    def _rehearse(self, broadcast: Broadcast) -> None:
        """Protect a zero update as a test, to refuse a configuration that cannot protect before data are touched."""
        if self._local and id(self.method.client) not in self._rehearsed:
            self._zero(broadcast, ReproducibleSource(0))
            self._rehearsed.add(id(self.method.client))

    def _declines(self, public: PublicFacts, quoted: Spend) -> str:
        """Return the reason why the client declines, or ""; its filter is charged last."""
        if self.method.client.composed:
            made = self.ledger.entries
            if (
                quoted.guarantee.proven and not self.counts
            ):  # no other limit holds over several runs
                made = self.ledger.all_entries
            if all_made(made, public.rounds):
                return "the releases that the total promise holds are made: a policy with a total allows more"
        reason = self._forbidden(self.method, quoted)
        if reason:
            return reason
        return "" if self._charge(quoted) else "the client's privacy budget is used up"

    def _renews(self, known: Entry) -> bool:
        """Whether a round in the ledger must be trained again, because its share was already sent."""
        handed_out = self._source.deployable or known.key[0] <= self.kept[0]
        return self._summed and known.digest != OPEN and handed_out

    def _again(self, broadcast: Broadcast, known: Entry) -> Refusal | Releases | None:
        """Answer a round that is in the ledger with the same releases; nothing new is made from data."""
        if not self._local:
            return None
        round_, released = self.kept
        if round_ == broadcast.public.round and digest(released) == known.digest:
            return released
        if not self._source.deployable or (
            self._quoted is not None and self._quoted.mechanism == "none"
        ):
            return None  # the same bits, or else `_answer` handles it
        self.failure = LedgerError("the process died in this round, or what it released was lost")
        try:
            return self._answer(broadcast, None)
        except BudgetError as error:
            return Refusal(str(error))

    def _answer(self, broadcast: Broadcast, protect: Callable[[], Protected] | None) -> Releases:
        """Draw, commit and return a release. Without `protect`, or if it fails, the update is zero."""
        self._require_written()
        if self._question_of(broadcast) != self._question:
            raise LedgerError(
                "another question was taken since this one: its answer would be in no ledger"
            )
        public, party = broadcast.public, self.ledger.party
        known = self.ledger.find(self._key(public.round))
        attempt = 0 if known is None else known.attempt
        protected = None
        if protect is not None:
            try:
                protected = protect()
            except (
                Exception
            ) as error:  # from here on an error would reveal something about the data
                self.failure = error
        closed = known is not None and known.digest != OPEN
        if protected is None and not (closed and protect is None):
            protected = self._zero(
                broadcast, self._source.child(party, public.round, ZERO, attempt)
            )
        if not closed and protected is not None:
            self._commit(self._entry_paid(broadcast, attempt, protected))
        elif (
            protected is None or known is None or known.digest != _mark(protected)
        ):  # other bits left, and are lost
            if self._question is not None:
                raise LedgerError(
                    "the same question was answered about other data: it is not answered twice"
                )
            attempt += 1
            protected = self._zero(
                broadcast, self._source.child(party, public.round, ZERO, attempt)
            )
            if not self._charge(protected.spend):
                raise BudgetError(
                    f"round {public.round} was answered, and the budget holds no second answer"
                )
            self._commit(self._entry_paid(broadcast, attempt, protected))
        self.state = protected.state
        if self._summed:
            self.kept = max(public.round, self.kept[0]), ()
        elif (
            self._source.deployable or self._question is not None
        ):  # otherwise the same bits can be drawn again
            self.kept = public.round, protected.releases
        return protected.releases

    def _protect(self, releases: Releases, facts: ClientFacts, source: Source) -> Protected:
        protected = self.method.client.protect(releases, facts, self.state, source)
        if self._quoted is not None and dearer(protected.spend, self._quoted):
            accepted = "must not cost more than was quoted before training: did the broadcast tell the truth?"
            raise FieldError("spend", protected.spend.guarantee.describe(), accepted)
        return protected

    def _zero(self, broadcast: Broadcast, source: Source) -> Protected:
        model, noised = broadcast.models[0], None
        if self.method.noisy is not None:
            if self._trainer is None:
                raise FieldError(
                    "trainer", None, "a silo that fails answers with the noise of its training"
                )
            idle = self._trainer.idle(model, source)
            model, noised = idle.model, idle.noised
        facts = ClientFacts(
            broadcast=broadcast, layout=self.layout, failed=True, noised=noised, site=self._site
        )
        return self._protect((Release("model", model),), facts, source)

    def _received(self, public: PublicFacts, required: bool) -> tuple[Receipt | None, str]:
        """Return the receipt in a broadcast after checking it; None if the client trusts the server."""
        if not self._local:
            return None, ""
        return require_receipt(public, self.ledger.entries, required)

    def _entry_paid(self, broadcast: Broadcast, attempt: int, protected: Protected) -> Entry:
        """Make the ledger line of a release, with its receipt if the broadcast has one."""
        public = broadcast.public
        entry = self._entry(public, attempt, protected)
        if self._receipt is None or protected.spend.mechanism == "none":
            return entry
        purpose = entry.key[1]
        salt = self._source.child(self.ledger.party, public.round, RECEIPT, purpose, attempt)
        words = salt.bits(WORDS).numpy().tobytes()
        values = paid(broadcast, self._receipt, entry, protected.releases, words)
        return replace(entry, receipt=values)

    def _entry(self, public: PublicFacts, attempt: int, what: Protected | Spend) -> Entry:
        """Make the ledger line of a release, or of the intent to make one if only its cost is given."""
        if isinstance(what, Spend):
            mark, spend = OPEN, what
        else:
            mark, spend = _mark(what), what.spend
        return Entry(
            self._key(public.round), attempt, mark, spend, self._source.kind, public.rounds
        )


def _mark(protected: Protected) -> str:
    """Return the digest of a release; a constant if it has no noise, as a digest would confirm a guess of its content."""
    if protected.spend.mechanism == "none":
        return digest(())
    return digest(protected.releases)
