"""What the parties of a federation share, and the server; clients are in `fedveil.engines.client`.

Each holds state, filter and ledger; the order is admit, draw, commit, hand over.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import OPEN, Entry, Ledger, Policy, Release, Spend, SpendFilter, digest
from fedveil.engines.assembly import AnyMethod, resolve_method
from fedveil.errors import BudgetError, FieldError, LedgerError, NoReplyError, ReplyError, cleaned
from fedveil.layout import Layout
from fedveil.mechanisms import SecureSource, Source
from fedveil.methods import (
    Broadcast,
    CohortReplies,
    Combined,
    Method,
    PublicFacts,
    Releases,
    ServerFacts,
    check_reply,
    in_order,
    stack_models,
)
from fedveil.methods.publishing import Publishing, Validation
from fedveil.methods.sums import SecureSum
from fedveil.secure import PublicKey

Scorer = Callable[[Tensor], Tensor]  # models [n, d] -> public layer scores [n, L]
Tutor = Callable[[Tensor, int], Tensor]  # model [d], round -> model [d] trained on public data
LineStore = Callable[[str], None]  # takes a committed ledger line; durable when it returns

SERVER = "server"  # names its ledger
COMBINE, PUBLISH, VALIDATE = "combine", "publish", "validate"
PUBLIC_SCORES = "public_layer_scores"


def forget(line: str) -> None:
    """The store of a ledger that lives in memory."""


class Party:
    """What clients and the server share: a ledger, a filter, a source; and what a client's owner allows."""

    policy: Policy | None = None

    def __init__(
        self, ledger: Ledger, source: Source, budget: SpendFilter | None = None, store: LineStore = forget
    ) -> None:
        self.ledger, self.budget = ledger, budget
        self._source, self._store = source, store
        self._overspent = self._unwritten = False
        if budget is not None:  # a filter that starts over after a resume would allow the budget twice
            for entry in ledger.all_entries:
                # what a (lowered) budget does not hold was spent all the same: nothing more may be admitted
                self._overspent |= not budget.admit_spend(entry.spend)

    def _charge(self, spend: Spend) -> bool:
        """Charge the filter, if there is one; False if the budget does not allow it."""
        return self.budget is None or (not self._overspent and self.budget.admit_spend(spend))

    def _forbidden(self, method: Method, spend: Spend) -> str:
        """Why the owner's policy allows no such release, or ""."""
        if self.policy is None:
            return ""
        past = [e.spend for e in self.ledger.all_entries]
        return self.policy.refusal(method.name, method.client.trust, self._source.deployable, spend, past) or ""

    def _require_written(self) -> None:
        if self._unwritten:  # the same bits would find their entry in memory, and go out without one on the disk
            raise LedgerError(f"the ledger of {self.ledger.party!r} could not be written: go on from what is stored")

    def _draw(
        self, round_: int, purpose: str, make: Callable[[Source], tuple[Releases, Spend]], once: bool = False
    ) -> Releases:
        """Draw a release, commit it, and return it only then.

        A release already committed under this key is handed over again if the draw gives the same bits; otherwise it
        is drawn under the next attempt, charged again and committed again, or refused if there may be one `once`.
        """
        self._require_written()
        known = self.ledger.find((round_, purpose))
        attempt = 0 if known is None else known.attempt
        while True:
            key = (self.ledger.party, round_, purpose, attempt)
            releases, spend = make(self._source.child(*key))
            mark = digest(releases)
            if known is not None and known.attempt == attempt:
                if known.digest == mark:
                    return releases
                if once:
                    raise BudgetError(self._recorded(round_))
                attempt += 1
                continue
            if not self._charge(spend):
                stands = "the last released model stands"
                if known is not None:
                    stands = "a release of it is recorded, whose bits a crash took: the last checkpointed model stands"
                raise BudgetError(f"round {round_}: the {self.ledger.party}'s budget is used up; {stands}")
            self._commit(Entry((round_, purpose), attempt, mark, spend, self._source.kind))
            return releases

    def _recorded(self, round_: int) -> str:
        return (
            f"round {round_}: the {self.ledger.party} recorded a sum of it, and another one would tell shares apart; "
            "the last checkpointed model stands"
        )

    def foresee(self, round_: int, purpose: str, spend: Spend) -> bool:
        """Charge and record a cost without drawing the release: for a forecast. False if the budget does not allow it.

        What a filter charges for it follows earlier releases where the spend has a `charge`. Nothing is charged then:
        most rounds are admitted, and the total is the budget or the sum of the worst cases, whichever is less.
        """
        least = spend if spend.charge is None else replace(spend, charge=0.0)
        if not self._charge(least):
            return False
        self._commit(Entry((round_, purpose), 0, OPEN, least, self._source.kind))
        return True

    def _commit(self, entry: Entry) -> None:
        terms = None if self.budget is None else self.budget.terms
        # a budget that is set later would promise nothing
        if terms not in (None, self.ledger.budget) and not self.ledger.all_entries:
            self._keep(self.ledger.declare(terms or {}))
        self._keep(self.ledger.commit(entry))

    def _keep(self, line: str) -> None:
        self._unwritten = True
        self._store(line)
        self._unwritten = False


@dataclass(frozen=True)
class Round:
    """How a round went, for the log.

    Attributes
    ----------
    number : int
        From 1.
    used : tuple of int
        Partitions whose replies were combined.
    failed, invalid, refused : dict of int to str
        Partitions that raised, whose reply could not be used, and that declined, each with the reason.
    report : mapping of str to float
        The server's figures (sigma, distance, ...).
    spend : Spend
        The server's cost.

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
    """The server of a federation.

    Parameters
    ----------
    method
        What `Federation` takes as one.
    layout, budget, state, store
        As for `fedveil.engines.client.ClientParty`.
    ledger : Ledger, optional
        Default: in memory.
    source : Source, optional
        Randomness of the noise. Default: secure.
    scorer : callable, optional
        Computes public layer scores of received models, for methods that need them.
    tutor : callable, optional
        Trains the broadcast model [d] of a round on public data; returns the trained one, for rules that need it.
    publishing : Publishing, optional
        What clients see of the aggregated metrics. Default: nothing.

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
        super().__init__(ledger or Ledger("memory", SERVER), source or SecureSource(), budget, store)
        method = resolve_method(method)
        self.publishing = publishing or Publishing()
        if self.publishing.metrics != "off" and method.client.trust != "central":
            accepted = "under local trust no metric leaves a client: set it to 'off'"
            raise FieldError("publish.metrics", self.publishing.metrics, accepted)
        if scorer is None and ("public_scores" in method.server.needs or PUBLIC_SCORES in method.client.needs):
            raise FieldError(
                "public_data", None, f"the server of {method.name!r} scores received models on public data"
            )
        if tutor is None and "public_update" in method.server.needs:
            raise FieldError("public_data", None, f"the server of {method.name!r} trains on public data of its own")
        self.method, self.layout, self.scorer, self.tutor = method, layout, scorer, tutor
        # a question is put once: a server that was started again asks others
        self._run = f"{self.ledger.run} {secrets.token_hex(8)}" if self._source.deployable else self.ledger.run
        self._summed = method.client.trust in ("trusted sum", "secure sum")
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
        """Open a round: the models and the public facts that the method needs beside them.

        A secure sum has a roster of all sites that are asked, and an attempt that no question of the round had before.
        """
        scores = None
        if self.scorer is not None and PUBLIC_SCORES in self.method.client.needs:
            scores = tuple(self.scorer(models[:1])[0].tolist())
        public = PublicFacts(
            round=round_, rounds=rounds, cohort=cohort, dimension=self.layout.size, layer_scores=scores
        )
        if roster:
            terms = "" if self.method.noisy is None else self.method.noisy.agreed(self.layout.size)
            public = replace(public, run=self._run, roster=tuple(sorted(roster)), attempt=attempt, terms=terms)
        return Broadcast(models=models, public=public)

    def require_unsummed(self, round_: int) -> None:
        """Refuse, before anybody trains, a round whose trusted sum is recorded, unless its shares can be drawn again.

        Raises
        ------
        BudgetError
            If its bits are lost: a sum of new shares would be another one.
        """
        if self._summed and self._source.deployable and self.ledger.find((round_, COMBINE)) is not None:
            raise BudgetError(self._recorded(round_))

    def combine(
        self,
        broadcast: Broadcast,
        replies: Mapping[int, Releases],
        failed: Mapping[int, str] | None = None,
        refused: Mapping[int, str] | None = None,
        least: int = 1,
    ) -> tuple[Broadcast, Round]:
        """Drop unusable replies, combine the rest, commit, and open the next round.

        Parameters
        ----------
        broadcast : Broadcast
            What opened the round.
        replies : mapping of int to Releases
            By partition, in any order.
        failed, refused : mapping of int to str, optional
            Partitions without a reply, with reasons.
        least : int
            Usable replies that a round needs.

        Raises
        ------
        NoReplyError
            If fewer replies can be used.
        BudgetError
            If the server's budget does not allow the release, or it is another trusted sum of a round that was summed
            before; nothing was handed over.
        """
        usable, invalid = self._admitted(replies, broadcast.models.dtype)
        public, noisy = broadcast.public, self.method.noisy
        failed, refused = ({p: cleaned(why) for p, why in (given or {}).items()} for given in (failed, refused))
        if not usable and refused and not failed and not invalid:
            raise BudgetError(f"round {public.round}: every client declined ({next(iter(refused.values()))})")
        if not usable:
            reasons = {**failed, **invalid, **refused}
            few = dict(list(reasons.items())[:10])
            raise NoReplyError(f"round {public.round}: no usable reply from {len(reasons)} clients; {few}")
        if len(usable) < least:
            lost = dict(list({**failed, **invalid, **refused}.items())[:10])
            usable_replies = f"{len(usable)} usable {'reply' if len(usable) == 1 else 'replies'}"
            raise NoReplyError(f"round {public.round}: {usable_replies}, and min_clients is {least}; {lost}")
        releases = in_order(usable)
        scores = None
        if self.scorer is not None and "public_scores" in self.method.server.needs:
            scores = self.scorer(stack_models(releases))
        lesson = None
        if self.tutor is not None and "public_update" in self.method.server.needs:
            lesson = self.tutor(broadcast.models[0], public.round) - broadcast.models[0]
        facts = ServerFacts(
            broadcast=broadcast,
            layout=self.layout,
            partitions=tuple(usable),
            public_scores=scores,
            public_update=lesson,
            question=None if noisy is None else noisy.question(broadcast, self.layout),
        )
        result: list[Combined] = []

        def make(source: Source) -> tuple[Releases, Spend]:
            combined = self.method.server.combine(releases, facts, self.state, source)
            result[:] = [combined]
            return (Release("model", combined.models),), combined.spend

        self._draw(public.round, COMBINE, make, once=self._summed)
        combined, self.state = result[0], result[0].state
        following = replace(public, round=public.round + 1, roster=(), attempt=0)
        opened = Broadcast(models=combined.models, public=following)
        log = Round(public.round, tuple(usable), failed, invalid, refused, dict(combined.report), combined.spend)
        return opened, log

    def _admitted(
        self, replies: Mapping[int, Releases], dtype: torch.dtype
    ) -> tuple[Mapping[int, Releases], dict[int, str]]:
        """The replies that can be used, ascending by partition, and why the others cannot."""
        if isinstance(replies, CohortReplies) and replies.stacked.sound(self.layout.size, dtype):
            return replies, replies.invalid
        invalid: dict[int, str] = {}
        usable: dict[int, Releases] = {}
        noisy, server = self.method.noisy, self.method.server
        counted = server.rule is not None and server.rule.by_examples
        for partition in sorted(replies):
            try:
                if isinstance(server, SecureSum):
                    server.check_reply(replies[partition], self.layout.size)
                else:
                    check_reply(replies[partition], self.layout.size, dtype, counted)
                if noisy is not None:
                    noisy.require_terms(replies[partition])
                usable[partition] = replies[partition]
            except ReplyError as error:
                invalid[partition] = cleaned(error)
        return usable, invalid

    def publish(self, round_: int, names: Sequence[str], figures: Tensor, counts: Tensor) -> Releases:
        """Commit and hand over the round's metrics; nothing where publishing is off or the budget does not hold them.

        Parameters
        ----------
        round_ : int
            The round that was combined.
        names, figures, counts
            See `Publishing.release`.
        """
        if self.publishing.metrics == "off" or not bool((counts > 0).any()):
            return ()
        return self._measured(round_, PUBLISH, self.publishing, names, figures, counts)

    def validate(self, round_: int, losses: Tensor, validation: Validation) -> float | None:
        """Commit and hand over the noised mean of validation clients' losses [m]; None if the budget lacks it."""
        counts = torch.ones(len(losses))
        released = self._measured(round_, VALIDATE, validation.publishing(), ("loss",), losses[:, None], counts)
        return float(released[0].value) if released else None

    def _measured(
        self, round_: int, purpose: str, publishing: Publishing, names: Sequence[str], figures: Tensor, counts: Tensor
    ) -> Releases:
        relation = self.method.server.relation
        try:
            return self._draw(
                round_, purpose, lambda source: publishing.release(names, figures, counts, relation, source)
            )
        except BudgetError:  # it depends on public costs alone, so that silence tells nothing
            return ()
