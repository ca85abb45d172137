"""The clients of one process: their data, and a party for each, with a ledger, a budget and a key of its own."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

from fedveil.accounting import Ledger, Spend, SpendFilter
from fedveil.engines.client import ClientParty
from fedveil.engines.lifetime import read_policy
from fedveil.engines.options import Budgets, Execution
from fedveil.engines.party import LineStore
from fedveil.engines.site_keys import SiteKeys
from fedveil.errors import BudgetError, FieldError, NoReplyError
from fedveil.layout import Layout
from fedveil.learning import ClientData, Figures, choose_each, evaluate_clients
from fedveil.learning.learner import Learned, Learner
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, ClientSide, Method, Refusal, Releases, SecureSum, TrustedServer
from fedveil.secure import FEWEST


class Parties:
    """All clients of a federation, and what their parties are made of.

    Parameters
    ----------
    data : list of ClientData
        By partition. Buffers that a client keeps are written into it.
    method : Method
        Of the federation.
    sides : mapping of int to ClientSide
        Of clients with parameters of their own, by partition.
    layout : Layout
        Of the model's vector.
    learner : Learner
        Trains them.
    source : Source
        Randomness of their noise.
    seed : int
        Of the run; keys of sites follow it where the source is reproducible and none are given.
    budgets : Budgets
        What each may spend, and what their owners allow.
    execution : Execution
        Where their ledgers are, and their keys.
    """

    def __init__(
        self,
        data: list[ClientData],
        method: Method,
        sides: Mapping[int, ClientSide],
        layout: Layout,
        learner: Learner,
        source: Source,
        seed: int,
        budgets: Budgets,
        execution: Execution,
    ) -> None:
        self.data, self.method, self.sides, self.layout, self.learner = data, method, sides, layout, learner
        self.source, self.seed, self.policy = source, seed, read_policy(budgets.policy)
        summed = isinstance(method.server, SecureSum)
        self.site_keys = SiteKeys.of(execution.keys, len(data), source, seed) if summed else SiteKeys()
        make = execution.ledgers or (lambda party: (Ledger(execution.run_id, party), lambda line: None))
        self._ledgers = cache(make)  # one ledger a party, for as long as the federation lives
        self._budgets = budgets.clients
        self._parties: dict[int, ClientParty] = {}
        self._rehearsed: set[int] = set()
        self._states: dict[int, Any] = {}

    def ledger(self, party: str) -> tuple[Ledger, LineStore]:
        """A party's ledger, and what makes its lines durable; the server's, too."""
        return self._ledgers(party)

    def budget(self, partition: int) -> SpendFilter | None:
        """A fresh filter of a client; validation clients are numbered behind those that train."""
        if self._budgets is not None:
            return self._budgets(partition)
        noisy = self.method.noisy if partition < len(self.data) else None
        return noisy.budget() if noisy else None

    def method_of(self, partition: int) -> Method:
        """The method with one client's own side."""
        own = self.sides.get(partition)
        return self.method if own is None else replace(self.method, client=own)

    def party(self, partition: int) -> ClientParty:
        """The party of one client; made when it is first needed."""
        if partition not in self._parties:
            ledger, store = self.ledger(str(partition))
            self._parties[partition] = ClientParty(
                self.method_of(partition),
                self.layout,
                ledger,
                self.source,
                budget=self.budget(partition),
                policy=self.policy,
                state=self._states.pop(partition, None),
                store=store,
                trainer=self.learner.private_trainer,
                rehearsed=self._rehearsed,
                site=self.site_keys.site(partition),
            )
        return self._parties[partition]

    def admit(self, broadcast: Broadcast, asked: Sequence[int]) -> dict[int, Refusal | Releases | None]:
        """What each of those asked answers before data are touched; see `ClientParty.admit`."""
        # of clients that trust the server and count nothing, one answers for all
        alike = type(self.method.client) is TrustedServer and not any(self.party(p).counts for p in asked)
        if alike and asked:
            return dict.fromkeys(asked, self.party(asked[0]).admit(broadcast))
        return {p: self.party(p).admit(broadcast) for p in asked}

    def require_sum(self, round_: int, cohort: Sequence[int], refused: Mapping[int, str], left: Sequence[int]) -> None:
        """Refuse to ask those who are left of a sum's cohort again, where they are too few.

        Raises
        ------
        NoReplyError
            Saying why the others are missing.
        BudgetError
            If that is because clients have used up their budgets.
        """
        if len(left) >= FEWEST:
            return
        why = next(iter(refused.values()), "they failed")
        error = NoReplyError(f"round {round_}: {len(left)} sites are left of a sum ({why})")
        raise BudgetError(str(error)) if len(refused) == len(cohort) else self.used_up(refused, error)

    def used_up(self, refused: Mapping[int, str], error: NoReplyError) -> NoReplyError | BudgetError:
        """The same error, unless a client that released something before declines: then the run is over, not broken."""
        spent = next((p for p in refused if self.party(p).ledger.entries), None)
        if spent is None:
            return error
        return BudgetError(f"client {spent} declines ({refused[spent]}); the last model stands: {error}")

    def take_over(self, partitions: Sequence[int], learned: Sequence[Learned | Exception]) -> None:
        """Keep the buffers of clients that trained, in this order."""
        for partition, outcome in zip(partitions, learned, strict=True):
            if isinstance(outcome, Learned) and outcome.trained.buffers:
                self.data[partition] = replace(self.data[partition], buffers=outcome.trained.buffers)

    def evaluate(self, models: Tensor, metrics: Sequence[str]) -> tuple[list[Figures], Figures | None]:
        """Figures of models [k, d] on what each holds out, by the hypothesis that fits it; then pooled."""
        holders = [client for client in self.data if client.held_out]
        if not holders:
            return [], None
        model, layout = self.learner.model, self.layout
        hypotheses = iter(choose_each(model, layout, models, holders, self.learner.local.loss))
        chosen = [next(hypotheses) if client.held_out else 0 for client in self.data]
        for error in chosen:
            if isinstance(error, Exception):
                raise error
        indices = [index for index in chosen if isinstance(index, int)]
        return evaluate_clients(model, layout, models, self.data, indices, metrics, self.learner.local.loss)

    def books(self, others: Collection[str]) -> dict[str, Ledger]:
        """The ledger of every client, behind those of `others`, by name."""
        return {name: self.ledger(name)[0] for name in (*others, *map(str, range(len(self.data))))}

    def require_books(self, asked: Mapping[int, Sequence[int]]) -> None:
        """Refuse ledgers that lack rounds in which clients were asked, unless budget or policy had them decline.

        What a round cost is read off the ledger of another client of it. Where a cost follows a client's own releases,
        only a ledger without any round is noticed.

        Raises
        ------
        FieldError
            Naming the client and the round.
        """
        if type(self.method.client) is TrustedServer and self.policy is None:
            asked = {p: rounds for p, rounds in asked.items() if self.budget(p) is not None}
        entries = {p: self.ledger(str(p))[0].entries for p in asked}
        held = {p: {entry.key[0] for entry in own} for p, own in entries.items()}
        sides = {p: id(self.sides.get(p, self.method.client)) for p in asked}
        paid = {(entry.key[0], sides[p]): entry.spend for p, own in entries.items() for entry in own}
        combined = set[int]().union(*held.values())
        for p, rounds in asked.items():
            for round_ in (number for number in rounds if number not in held[p]):
                spend = paid.get((round_, sides[p]))
                adaptive = spend is not None and spend.charge is not None and bool(held[p])
                if round_ in combined and (spend is None or adaptive or self._declined(p, spend)):
                    continue
                accepted = f"that of client {p} lacks round {round_}, in which it was asked: the total would be too "
                accepted += "small, and its budget start over. Give the ledgers with which the run was begun"
                raise FieldError("ledgers", round_, accepted)

    def _declined(self, partition: int, spend: Spend) -> bool:
        """Whether a client's budget or policy holds no such spend beside what is in its ledger."""
        past, budget = [e.spend for e in self.ledger(str(partition))[0].entries], deepcopy(self.budget(partition))
        if budget is not None:
            admitted = [budget.admit_spend(one) for one in (*past, spend)]  # all of them are charged
            if not all(admitted):
                return True
        name, trust, deployable = self.method.name, self.method.client.trust, self.source.deployable
        return self.policy is not None and bool(self.policy.refusal(name, trust, deployable, spend, past))

    def states(self) -> dict[int, Any]:
        """State of every client that has one, by partition."""
        return {p: party.state for p, party in self._parties.items()} | self._states

    def resume(self, states: Mapping[int, Any]) -> None:
        """Go on from these states, with parties made anew."""
        self._states = dict(states)
        self._parties.clear()
