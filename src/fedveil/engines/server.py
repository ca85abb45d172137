"""Server side of a federation: open a round, combine the replies, record the cost. Used by all engines."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Ledger, Receipt, Release, Spend, SpendFilter, digest
from fedveil.aggregation import RunningSum
from fedveil.engines.answers import RoundAnswers
from fedveil.engines.assembly import AnyMethod, resolve_method
from fedveil.engines.party import (
    COMBINE,
    PUBLISH,
    SERVER,
    VALIDATE,
    LineStore,
    Party,
    forget,
    lacking_rounds,
)
from fedveil.engines.receipting import has_receipts, leaves_of, receipt_before, receipt_of
from fedveil.errors import (
    BudgetError,
    FieldError,
    LedgerError,
    NoReplyError,
    ReplyError,
    cleaned,
    require_a,
)
from fedveil.layout import Layout
from fedveil.mechanisms import SecureSource, Source
from fedveil.methods import (
    Broadcast,
    Combined,
    PublicFacts,
    Releases,
    Replies,
    ServerFacts,
    check_reply,
    stack_models,
)
from fedveil.methods.publishing import Publishing, Validation
from fedveil.methods.sums import SecureSum
from fedveil.secure import PublicKey

Scorer = Callable[[Tensor], Tensor]  # models [n, d] -> public layer scores [n, L]
Tutor = Callable[[Tensor, int], Tensor]  # model [d], round -> model [d] trained on public data
PUBLIC_SCORES = "public_layer_scores"


@dataclass(frozen=True)
class Round:
    """Log of a round: which replies were used, and what it cost.

    Attributes
    ----------
    number : int
        Number of the round, from 1.
    used : tuple of int
        Partitions whose replies were combined.
    failed, invalid, refused : dict of int to str
        Reasons, by partition: of clients that failed, of unusable replies, and of clients that declined.
    report : mapping of str to float
        Figures of the server by name (sigma, distance, ...).
    spend : Spend
        Cost of the server.

    Examples
    --------
    >>> history = fv.Federation(model=model, clients=clients).run(1)
    >>> last = history.rounds[-1].round
    >>> last.number, last.used, last.failed
    (1, (0, 1, 2), {})
    """

    number: int
    used: tuple[int, ...]
    failed: Mapping[int, str]
    invalid: Mapping[int, str]
    refused: Mapping[int, str]
    report: Mapping[str, float]
    spend: Spend


class ServerParty(Party):
    """Server of a federation, with its method, ledger and budget.

    Parameters
    ----------
    method
        Method, in any form that `Federation` accepts.
    layout, budget, state, store
        As for `fedveil.engines.client.ClientParty`.
    ledger : Ledger, optional
        Ledger. Default: in memory.
    source : Source, optional
        Randomness of the noise. Default: secure.
    scorer : callable, optional
        Function that computes layer scores of received models on public data, for FedRE.
    tutor : callable, optional
        Function that trains a round's broadcast model [d] on public data, for rules such as FLTrust.
    publishing : Publishing, optional
        Publication of the aggregated metrics to clients. Default: none.

    Examples
    --------
    >>> server = fv.ServerParty("vanilla", fv.Layout.from_module(model))
    >>> broadcast = server.open(server.layout.read(model)[None], 1, 5, 3)
    >>> broadcast.public.round, broadcast.public.rounds
    (1, 5)
    """

    def __init__(
        self,
        method: AnyMethod,
        layout: Layout,
        ledger: Ledger | None = None,
        source: Source | None = None,
        *,
        budget: SpendFilter | None = None,
        state: Any = None,
        store: LineStore = forget,
        scorer: Scorer | None = None,
        tutor: Tutor | None = None,
        publishing: Publishing | None = None,
    ) -> None:
        for name, value, kind in (
            ("ledger", ledger, Ledger),
            ("publishing", publishing, Publishing),
            ("source", source, Source),
        ):
            if value is not None:
                require_a(name, value, kind, f"must be a {kind.__name__}")
        super().__init__(
            ledger or Ledger("memory", SERVER), source or SecureSource(), budget, store
        )
        method = resolve_method(method)
        require_a("layout", layout, Layout, "must be a Layout: Layout.from_module(model)")
        self.publishing = publishing or Publishing()
        if self.publishing.metrics != "off" and method.client.trust != "central":
            accepted = "under local trust no metric leaves a client: set it to 'off'"
            raise FieldError("publish.metrics", self.publishing.metrics, accepted)
        if scorer is None and (
            "public_scores" in method.server.needs or PUBLIC_SCORES in method.client.needs
        ):
            raise FieldError(
                "public_data",
                None,
                f"the server of {method.name!r} scores received models on public data",
            )
        if tutor is None and "public_update" in method.server.needs:
            raise FieldError(
                "public_data",
                None,
                f"the server of {method.name!r} trains on public data of its own",
            )
        self.method, self.layout, self.scorer, self.tutor = method, layout, scorer, tutor
        # a question is put once; a restarted server asks others
        self._run = (
            f"{self.ledger.run} {secrets.token_hex(8)}"
            if self._source.deployable
            else self.ledger.run
        )
        # a second sum of one round would reveal single shares; every question of a secure sum has its own shares
        self._once = method.client.trust == "trusted sum"
        self.state = method.server.init(layout.size, layout.dtype) if state is None else state

    def open(
        self,
        models: Tensor,
        round_: int,
        rounds: int,
        cohort: int,
        roster: Sequence[PublicKey] = (),
        attempt: int = 0,
    ) -> Broadcast:
        """Open a round: make the broadcast with the models and the public facts for the method.

        For a secure sum give the public keys of all asked sites, `roster`, and a new number `attempt` for each
        question.

        Raises
        ------
        FieldError
            If the server's ledger lacks an earlier round. Its total would then be too small, and its budget would start
            over.
        """
        self.require_rounds(round_ - 1)
        scores = None
        if self.scorer is not None and PUBLIC_SCORES in self.method.client.needs:
            scores = tuple(self.scorer(models[:1])[0].tolist())
        public = PublicFacts(
            round=round_,
            rounds=rounds,
            cohort=cohort,
            dimension=self.layout.size,
            layer_scores=scores,
        )
        if roster:
            terms = ""
            if self.method.noisy is not None:
                terms = self.method.noisy.agreed(self.layout.size)
            public = replace(
                public, run=self._run, roster=tuple(sorted(roster)), attempt=attempt, terms=terms
            )
        return Broadcast(models=models, public=public)

    def receipted(self, broadcast: Broadcast) -> Broadcast:
        """Add the previous round's receipt to a broadcast, if the sites need not trust the server; see docs/receipts.md."""
        if not has_receipts(self.method, broadcast):
            return broadcast
        receipt = receipt_before(self.ledger, broadcast.public.round, self.ledger.run)
        return replace(broadcast, public=replace(broadcast.public, receipt=receipt.text))

    def resume(self, models: Tensor, round_: int, state: Any) -> None:
        """Continue after a round from its models [k, d] and the server's state (round 0: from the initial models).

        Raises
        ------
        FieldError
            If the ledger lacks one of the rounds, so that a budget would start over.
        LedgerError
            If the models are not those in the ledger.
        """
        self.require_rounds(round_)
        known = self.ledger.find((round_, COMBINE))
        if known is not None and known.digest != digest((Release("model", models),)):
            raise LedgerError(
                f"the models are not those that the server's ledger says were released in round {round_}; "
                "give those: restore the checkpoint or the file that holds them"
            )
        self.state = state

    def require_rounds(self, done: int, field: str = "ledgers") -> None:
        """Refuse to continue after `done` rounds with a ledger that lacks one; `field` is the argument in the refusal.

        Raises
        ------
        FieldError
            If a round is missing; the text names the rounds and the fix.
        """
        lacking = lacking_rounds(self.ledger, done)
        if lacking:
            missing = f"{lacking[0]}"
            if len(lacking) > 1:
                missing = f"{lacking[0]} to {lacking[-1]}"
            accepted = f"needs the ledger of all rounds before, and this one lacks round {missing}: the budget would "
            accepted += "start over, and the total be too small. Give the ledger or folder with which the run was begun"
            raise FieldError(field, done, accepted)

    def require_unsummed(self, round_: int) -> None:
        """Refuse a round whose trusted sum is in the ledger, unless its shares can be drawn again to the same bits.

        Raises
        ------
        BudgetError
            If they cannot: a sum of new shares would be another release.
        """
        if (
            self._once
            and self._source.deployable
            and self.ledger.find((round_, COMBINE)) is not None
        ):
            raise BudgetError(self._recorded(round_))

    def combine(
        self, broadcast: Broadcast, answers: RoundAnswers, least: int = 1
    ) -> tuple[Broadcast, Round]:
        """Drop unusable replies, combine the rest, commit, and open the next round.

        Parameters
        ----------
        broadcast : Broadcast
            Broadcast that opened the round.
        answers : RoundAnswers
            Answers of the clients to it.
        least : int
            Least number of usable replies.

        Raises
        ------
        NoReplyError
            If fewer than `least` replies can be used.
        BudgetError
            If the server's budget does not allow the release, or it would be a second trusted sum of a round. Nothing
            was released.
        """
        self.require_rounds(broadcast.public.round - 1)
        public = broadcast.public
        leaves: dict[int, str] = {}
        unsealed: dict[int, str] = {}
        if public.receipt:
            leaves, unsealed = leaves_of(broadcast, answers.replies, answers.seals)
        sealed = {
            partition: reply
            for partition, reply in answers.replies.items()
            if partition not in unsealed
        }
        together, partitions, invalid = self._admitted(sealed, broadcast.models[0], answers.added)
        invalid = {**unsealed, **invalid}
        failed, refused = _cleaned(answers.failed), _cleaned(answers.refused)
        _require_enough(public.round, len(partitions), least, {**failed, **invalid}, refused)
        facts = self._facts(broadcast, together, partitions)
        result: list[Combined] = []

        def make(source: Source) -> tuple[Releases, Spend]:
            combined = self.method.server.combine(together, facts, self.state, source)
            self._require_declared(combined.spend)
            result[:] = [combined]
            return (Release("model", combined.models),), combined.spend

        receipt = None
        if public.receipt:
            accepted = [leaves[partition] for partition in partitions]
            receipt = partial(self._receipt, broadcast, accepted, answers.asked)
        self._draw(public.round, COMBINE, make, once=self._once, receipt=receipt)
        combined, self.state = result[0], result[0].state
        following = replace(public, round=public.round + 1, roster=(), attempt=0, receipt="")
        opened = Broadcast(models=combined.models, public=following)
        log = Round(
            public.round,
            partitions,
            failed,
            invalid,
            refused,
            dict(combined.report),
            combined.spend,
        )
        return opened, log

    def _receipt(
        self, broadcast: Broadcast, leaves: Sequence[str], asked: int, model: str
    ) -> Mapping[str, Any]:
        """Make the receipt of a round for its ledger line."""
        before = Receipt.parse(broadcast.public.receipt)
        return receipt_of(broadcast, leaves, asked, model, before).values()

    def _require_declared(self, spend: Spend) -> None:
        """Refuse a promise beyond the server side's declaration, because other computations relied on the declaration."""
        promise, server = spend.guarantee, self.method.server
        if promise.proven and not (server.may_be_proven and promise.relation == server.relation):
            declared = f"relation = {server.relation!r}, may_be_proven = {server.may_be_proven}"
            accepted = (
                f"states {promise.describe()}, and declares {declared}: declare what it states"
            )
            raise FieldError("method", self.method.name, f"the server side {accepted}")

    def _admitted(
        self, replies: Mapping[int, Releases], start: Tensor, added: RunningSum | None
    ) -> tuple[Replies, tuple[int, ...], dict[int, str]]:
        """Return the usable replies, their partitions (ascending), and the reasons why others are unusable."""
        rule = self.method.server.rule
        counted = rule is not None and rule.by_examples
        partitions = tuple(sorted(replies))
        together = Replies([replies[partition] for partition in partitions], added)
        if self.method.noisy is None and together.sound(start, counted):
            return together, partitions, {}
        usable, invalid = dict[int, Releases](), dict[int, str]()
        for partition in partitions:
            try:
                self._check_reply(replies[partition], start.dtype, counted, added is not None)
                usable[partition] = replies[partition]
            except ReplyError as error:
                invalid[partition] = cleaned(error)
        return Replies(list(usable.values()), added), tuple(usable), invalid

    def _check_reply(self, reply: Releases, dtype: torch.dtype, counted: bool, added: bool) -> None:
        """Refuse a reply that cannot be combined, or was made with other parameters than the server's."""
        if isinstance(self.method.server, SecureSum):
            self.method.server.check_reply(reply, self.layout.size)
        else:
            check_reply(reply, self.layout.size, dtype, counted, added)
        if self.method.noisy is not None:
            self.method.noisy.require_terms(reply)

    def _facts(
        self, broadcast: Broadcast, replies: Replies, partitions: tuple[int, ...]
    ) -> ServerFacts:
        """Collect the facts that the method needs besides the replies."""
        start, needs = broadcast.models[0], self.method.server.needs
        scores = lesson = question = None
        if self.scorer is not None and "public_scores" in needs:
            scores = self.scorer(stack_models(replies))
        if self.tutor is not None and "public_update" in needs:
            lesson = self.tutor(start, broadcast.public.round) - start
        if self.method.noisy is not None:
            question = self.method.noisy.question(broadcast, self.layout)
        return ServerFacts(
            broadcast=broadcast,
            layout=self.layout,
            partitions=partitions,
            public_scores=scores,
            public_update=lesson,
            question=question,
        )

    def publish(
        self, round_: int, names: Sequence[str], figures: Tensor, counts: Tensor
    ) -> Releases:
        """Release a round's aggregated metrics; empty if publishing is off or the budget does not allow it.

        Parameters
        ----------
        round_ : int
            Number of the combined round.
        names, figures, counts
            See `Publishing.release`.
        """
        if self.publishing.metrics == "off" or not bool((counts > 0).any()):
            return ()
        return self._measured(round_, PUBLISH, self.publishing, names, figures, counts)

    def validate(self, round_: int, losses: Tensor, validation: Validation) -> float | None:
        """Release the noised mean of validation clients' losses [m]; None if the budget does not allow it."""
        counts = torch.ones(len(losses))
        released = self._measured(
            round_, VALIDATE, validation.publishing(), ("loss",), losses[:, None], counts
        )
        return float(released[0].value) if released else None

    def _measured(
        self,
        round_: int,
        purpose: str,
        publishing: Publishing,
        names: Sequence[str],
        figures: Tensor,
        counts: Tensor,
    ) -> Releases:
        relation = self.method.server.relation

        def make(source: Source) -> tuple[Releases, Spend]:
            return publishing.release(names, figures, counts, relation, source)

        try:
            return self._draw(round_, purpose, make)
        except BudgetError:  # it depends on public costs only, so silence reveals nothing
            return ()


def _cleaned(reasons: Mapping[int, str]) -> dict[int, str]:
    """Make texts of other parties safe to show."""
    return {partition: cleaned(why) for partition, why in reasons.items()}


def _require_enough(
    round_: int, usable: int, least: int, lost: Mapping[int, str], refused: Mapping[int, str]
) -> None:
    """Refuse a round with too few usable replies. If all other clients declined, the run has ended by its budget."""
    if not usable and refused and not lost:
        raise BudgetError(f"round {round_}: every client declined ({next(iter(refused.values()))})")
    reasons = {**lost, **refused}
    some = dict(list(reasons.items())[:10])
    if not usable:
        raise NoReplyError(f"round {round_}: no usable reply from {len(reasons)} clients; {some}")
    if usable < least:
        replies = "reply" if usable == 1 else "replies"
        raise NoReplyError(
            f"round {round_}: {usable} usable {replies}, and min_clients is {least}; {some}"
        )
