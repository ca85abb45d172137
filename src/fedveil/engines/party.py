"""The parties of a federation: each holds state, filter and ledger; the order is admit, draw, commit, hand over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedveil.accounting import Entry, Ledger, Relation, Release, Spend, SpendFilter, digest
from fedveil.errors import BudgetError, FieldError, LedgerError, NoReplyError, ReplyError
from fedveil.layout import Layout
from fedveil.mechanisms import NoSource, Source
from fedveil.methods import (
    Broadcast,
    ClientFacts,
    Combined,
    Method,
    PublicFacts,
    Refusal,
    Releases,
    ServerFacts,
    check_reply,
    stack_models,
)
from fedveil.methods.publishing import Publishing

Scorer = Callable[[Tensor], Tensor]  # models [n, d] -> public layer scores [n, L]
Store = Callable[[str], None]  # takes a committed ledger line; durable when it returns

PROTECT, COMBINE, PUBLISH = "protect", "combine", "publish"
PUBLIC_SCORES = "public_layer_scores"


def _forget(line: str) -> None:
    """The store of a ledger that lives in memory."""


class Party:
    """What clients and the server share: a ledger, a filter, a source."""

    def __init__(
        self, ledger: Ledger, source: Source, budget: SpendFilter | None = None, store: Store = _forget
    ) -> None:
        self.ledger, self.budget = ledger, budget
        self._source, self._store = source, store
        self._overspent = self._unwritten = False
        if budget is not None:  # a filter that starts over after a resume would allow the budget twice
            for entry in ledger.entries:
                # what a (lowered) budget does not hold was spent all the same: nothing more may be admitted
                self._overspent |= not budget.admit_spend(entry.spend)

    def _charge(self, spend: Spend) -> bool:
        """Charge the filter, if there is one; False if the budget does not allow it."""
        return self.budget is None or (not self._overspent and self.budget.admit_spend(spend))

    def _draw(self, round_: int, purpose: str, make: Callable[[Source], tuple[Releases, Spend]], charged: bool) -> None:
        """Draw a release, commit it, and return only then.

        A release already committed under this key is handed over again if the draw gives the same bits; otherwise it
        is drawn under the next attempt, charged again and committed again. `charged` says that the first attempt was
        charged when the party was admitted.
        """
        if self._unwritten:  # the same bits would find their entry in memory, and go out without one on the disk
            raise LedgerError(f"the ledger of {self.ledger.party!r} could not be written: go on from what is stored")
        known = self.ledger.find((round_, purpose))
        attempt = 0 if known is None else known.attempt
        while True:
            key = (self.ledger.party, round_, purpose, attempt)
            releases, spend = make(self._source.child(*key))
            mark = digest(releases)
            if known is not None and known.attempt == attempt:
                if known.digest == mark:
                    return
                attempt += 1
                continue
            if not (charged and attempt == 0) and not self._charge(spend):
                stands = "the last released model stands"
                if known is not None:
                    stands = "a release of it is recorded, whose bits a crash took: the last checkpointed model stands"
                raise BudgetError(f"round {round_}: the {self.ledger.party}'s budget is used up; {stands}")
            self._commit(Entry((round_, purpose), attempt, mark, spend))
            return

    def _commit(self, entry: Entry) -> None:
        line = self.ledger.commit(entry)
        self._unwritten = True
        self._store(line)
        self._unwritten = False


class ClientParty(Party):
    """One client of a federation.

    Under central trust its side of the method is a declared identity: it draws nothing and spends nothing. Unless a
    filter counts its participations there is nothing to commit then, and its ledger stays empty.

    Parameters
    ----------
    method : Method
        Its client side is used.
    layout : Layout
        The model's layout.
    ledger : Ledger
        The client's own, possibly resumed.
    source : Source
        Randomness of the noise.
    budget : SpendFilter, optional
        Stops the client before a budget is exceeded.
    state : optional
        State to resume from.
    store : callable
        Makes a ledger line durable.
    """

    def __init__(
        self,
        method: Method,
        layout: Layout,
        ledger: Ledger,
        source: Source,
        *,
        budget: SpendFilter | None = None,
        state: Any = None,
        store: Store = _forget,
    ) -> None:
        super().__init__(ledger, source, budget, store)
        self.method, self.layout = method, layout
        self._identity = method.client.trust == "central" and budget is None
        self.state = method.client.init() if state is None else state
        self._quoted: Spend | None = None

    def admit(self, broadcast: Broadcast) -> Refusal | None:
        """Ask, before training, whether the client may take part; None is yes."""
        quoted, public = self.method.client.quote(broadcast, self.state), broadcast.public
        if isinstance(quoted, Refusal):
            return quoted
        again = self.ledger.find((public.round, PROTECT)) is not None  # a resumed round was charged before
        if not again and not self._charge(quoted):
            return Refusal("the client's privacy budget is used up")
        self._quoted = quoted
        return None

    def release(self, releases: Releases, facts: ClientFacts) -> Releases:
        """Protect a trained client's releases, commit them, hand them over."""
        if self._identity:
            protected = self.method.client.protect(releases, facts, self.state, NoSource())
            self.state = protected.state
            return protected.releases
        result: list[tuple[Releases, Any]] = []

        def make(source: Source) -> tuple[Releases, Spend]:
            protected = self.method.client.protect(releases, facts, self.state, source)
            if self._quoted is not None and _dearer(protected.spend, self._quoted):
                told = "must not cost more than was quoted before training: did the broadcast tell the truth?"
                raise FieldError("spend", protected.spend.guarantee.describe(), told)
            result[:] = [(protected.releases, protected.state)]
            return protected.releases, protected.spend

        self._draw(facts.broadcast.public.round, PROTECT, make, charged=True)
        released, self.state = result[0]
        return released

    def abandon(self, public: PublicFacts) -> None:
        """Record an admitted participation from which nothing left (something failed): it stays charged."""
        if self._identity:
            return
        if self._quoted is not None and self.ledger.find((public.round, PROTECT)) is None:
            self._commit(Entry((public.round, PROTECT), 0, digest(()), self._quoted))

    def report(self, releases: Releases, facts: ClientFacts) -> Releases:
        """Protect evaluation releases (metrics, counts); under local trust none of them leaves.

        Raises
        ------
        FieldError
            For anything else: a model that left here would be in no ledger.
        """
        if kinds := {r.kind for r in releases} - {"metric", "count"}:
            raise FieldError("releases", sorted(kinds), "an evaluation has metrics and counts; use `release`")
        source = self._source.child(self.ledger.party, facts.broadcast.public.round, "evaluate", 0)
        return self.method.client.protect(releases, facts, self.state, source).releases


def _dearer(spend: Spend, quoted: Spend) -> bool:
    """Whether a spend is worse than a quote, which is what filters were charged."""
    pairs = (
        (spend.guarantee.cost, quoted.guarantee.cost),
        (spend.charge or 0.0, quoted.charge or 0.0),
        (spend.leakage or 0.0, quoted.leakage or 0.0),
    )
    return spend.guarantee.status != quoted.guarantee.status or any(cost > told for cost, told in pairs)


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
    """

    number: int
    used: tuple[int, ...]
    failed: Mapping[int, str]
    invalid: Mapping[int, str]
    refused: Mapping[int, str]
    report: Mapping[str, float]
    spend: Spend


class ServerParty(Party):
    """The server of a federation; see `ClientParty` for the parameters.

    Parameters
    ----------
    scorer : callable, optional
        Computes public layer scores of received models, for methods that need them.
    publishing : Publishing, optional
        What clients see of the aggregated metrics. Default: nothing.
    """

    def __init__(
        self,
        method: Method,
        layout: Layout,
        ledger: Ledger,
        source: Source,
        *,
        budget: SpendFilter | None = None,
        state: Any = None,
        store: Store = _forget,
        scorer: Scorer | None = None,
        publishing: Publishing | None = None,
    ) -> None:
        super().__init__(ledger, source, budget, store)
        self.publishing = publishing or Publishing()
        if self.publishing.metrics != "off" and method.client.trust == "local":
            accepted = "under local trust no metric leaves a client: set it to 'off'"
            raise FieldError("publish.metrics", self.publishing.metrics, accepted)
        if scorer is None and ("public_scores" in method.server.needs or PUBLIC_SCORES in method.client.needs):
            raise FieldError(
                "public_data", None, f"the server of {method.name!r} scores received models on public data"
            )
        self.method, self.layout, self.scorer = method, layout, scorer
        self.state = method.server.init(layout.size, layout.dtype) if state is None else state

    def open(self, models: Tensor, round_: int, rounds: int, cohort: int) -> Broadcast:
        """Open a round: the models and the public facts that the method needs beside them."""
        scores = None
        if self.scorer is not None and PUBLIC_SCORES in self.method.client.needs:
            scores = tuple(self.scorer(models[:1])[0].tolist())
        public = PublicFacts(
            round=round_, rounds=rounds, cohort=cohort, dimension=self.layout.size, layer_scores=scores
        )
        return Broadcast(models=models, public=public)

    def combine(
        self,
        broadcast: Broadcast,
        replies: Mapping[int, Releases],
        failed: Mapping[int, str] | None = None,
        refused: Mapping[int, str] | None = None,
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

        Raises
        ------
        NoReplyError
            If no reply can be used.
        BudgetError
            If the server's budget does not allow the release; nothing was handed over.
        """
        invalid: dict[int, str] = {}
        usable: dict[int, Releases] = {}
        rule = getattr(self.method.server, "aggregator", None)
        counted = getattr(rule, "weighting", "uniform") == "examples"
        for partition in sorted(replies):
            try:
                check_reply(replies[partition], self.layout.size, broadcast.models.dtype, counted)
                usable[partition] = replies[partition]
            except ReplyError as error:
                invalid[partition] = str(error)
        failed, refused, public = dict(failed or {}), dict(refused or {}), broadcast.public
        if not usable and refused and not failed and not invalid:
            raise BudgetError(f"round {public.round}: every client declined ({next(iter(refused.values()))})")
        if not usable:
            reasons = {**failed, **invalid, **refused}
            raise NoReplyError(f"round {public.round}: no usable reply from {len(reasons)} clients; {reasons}")
        releases = list(usable.values())
        scores = None
        if self.scorer is not None and "public_scores" in self.method.server.needs:
            scores = self.scorer(stack_models(releases))
        facts = ServerFacts(broadcast=broadcast, layout=self.layout, partitions=tuple(usable), public_scores=scores)
        result: list[Combined] = []

        def make(source: Source) -> tuple[Releases, Spend]:
            combined = self.method.server.combine(releases, facts, self.state, source)
            result[:] = [combined]
            return (Release("model", combined.models),), combined.spend

        self._draw(public.round, COMBINE, make, charged=False)
        combined, self.state = result[0], result[0].state
        opened = Broadcast(models=combined.models, public=replace(public, round=public.round + 1))
        log = Round(public.round, tuple(usable), failed, invalid, refused, dict(combined.report), combined.spend)
        return opened, log

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
        relation: Relation = getattr(self.method.server, "relation", "zero-out")
        result: list[Releases] = []

        def make(source: Source) -> tuple[Releases, Spend]:
            releases, spend = self.publishing.release(names, figures, counts, relation, source)
            result[:] = [releases]
            return releases, spend

        try:
            self._draw(round_, PUBLISH, make, charged=False)
        except BudgetError:  # it depends on public costs alone, so that silence tells nothing
            return ()
        return result[0]
