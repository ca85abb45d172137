"""Parties of all clients in one process, each with its data, ledger, budget and site key."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from fedveil.accounting import Ledger, SpendFilter
from fedveil.engines.client import ClientParty
from fedveil.engines.lifetime import read_policy
from fedveil.engines.options import Budgets, Execution
from fedveil.engines.party import SERVER, LineStore, forget
from fedveil.engines.site_keys import SiteKeys
from fedveil.errors import BudgetError, NoReplyError
from fedveil.layout import Layout
from fedveil.learning import ClientData, Figures, choose_each, evaluate_clients
from fedveil.learning.learner import Learned, Learner
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, ClientSide, Method, Refusal, Releases, SecureSum
from fedveil.secure import FEWEST


class Parties:
    """Parties of all clients of a federation; each is made when it is first needed.

    Parameters
    ----------
    data : list of ClientData
        Data by partition; they are updated with buffers that clients keep.
    method : Method
        Method of the federation.
    sides : mapping of int to ClientSide
        Client sides with their own parameters, by partition.
    layout : Layout
        Layout of the model.
    learner : Learner
        Learner of the clients.
    source : Source
        Randomness of the clients' noise.
    seed : int
        Seed of the run. Sites' keys are derived from it if the source is reproducible and no keys are given.
    budgets : Budgets
        Budget of each client, and the owners' policy.
    execution : Execution
        Execution options, with the ledgers and keys.
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
        self.data, self.method, self.sides, self.layout, self.learner = (
            data,
            method,
            sides,
            layout,
            learner,
        )
        self.source, self.seed, self.policy = source, seed, read_policy(budgets.policy)
        self.site_keys = SiteKeys()
        if isinstance(method.server, SecureSum):
            self.site_keys = SiteKeys.of(execution.keys, len(data), source, seed)
        self._make_ledger = execution.ledgers or partial(_in_memory, execution.run_id)
        self._ledgers: dict[str, tuple[Ledger, LineStore]] = {}
        self._budgets = budgets.clients
        self._parties: dict[int, ClientParty] = {}
        self._rehearsed: set[int] = set()
        self._states: dict[int, Any] = {}

    def ledger(self, party: str) -> tuple[Ledger, LineStore]:
        """Return the ledger of a client or the server, and its line store.

        Each party has one ledger for the life of the federation.
        """
        if party not in self._ledgers:
            self._ledgers[party] = self._make_ledger(party)
        return self._ledgers[party]

    def budget(self, partition: int) -> SpendFilter | None:
        """Make a fresh filter for a client, or None; validation clients are numbered after those that train."""
        if self._budgets is not None:
            return self._budgets(partition)
        if self.method.noisy is None or partition >= len(self.data):
            return None
        return self.method.noisy.budget()

    def side(self, partition: int) -> ClientSide:
        """Return a client's side of the method: with its own parameters if it has some, else the common one."""
        return self.sides.get(partition, self.method.client)

    def method_of(self, partition: int) -> Method:
        """Return the method with a client's own side."""
        if partition not in self.sides:
            return self.method
        return replace(self.method, client=self.sides[partition])

    def party(self, partition: int) -> ClientParty:
        """Return the party of one client."""
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

    def admit(
        self, broadcast: Broadcast, asked: Sequence[int]
    ) -> dict[int, Refusal | Releases | None]:
        """Ask each client before data are touched; see `ClientParty.admit`."""
        return {partition: self.party(partition).admit(broadcast) for partition in asked}

    def require_sum(
        self, round_: int, cohort: Sequence[int], refused: Mapping[int, str], left: Sequence[int]
    ) -> None:
        """Check that the remaining clients of a secure sum suffice to be asked again.

        Raises
        ------
        NoReplyError
            If they are too few; the text gives the reasons why others are missing.
        BudgetError
            If they are too few because clients have used up their budgets.
        """
        if len(left) >= FEWEST:
            return
        why = next(iter(refused.values()), "they failed")
        error = NoReplyError(f"round {round_}: {len(left)} sites are left of a sum ({why})")
        if len(refused) == len(cohort):
            raise BudgetError(str(error))
        raise self.used_up(refused, error)

    def used_up(
        self, refused: Mapping[int, str], error: NoReplyError
    ) -> NoReplyError | BudgetError:
        """Return `error`, or a BudgetError if a client that made releases before declines now: the run has then ended."""
        for partition, reason in refused.items():
            if self.party(partition).ledger.entries:
                return BudgetError(
                    f"client {partition} declines ({reason}); the last model stands ({error})"
                )
        return error

    def keep_buffers(
        self, partitions: Sequence[int], learned: Sequence[Learned | Exception]
    ) -> None:
        """Save the buffers of clients after training; `learned` has the order of `partitions`."""
        for partition, outcome in zip(partitions, learned, strict=True):
            if isinstance(outcome, Learned) and outcome.trained.buffers:
                self.data[partition] = replace(
                    self.data[partition], buffers=outcome.trained.buffers
                )

    def evaluate(
        self, models: Tensor, metrics: Sequence[str]
    ) -> tuple[list[Figures], Figures | None]:
        """Compute metrics of models [k, d] on held-out examples, for each client (with its best hypothesis) and pooled.

        Raises
        ------
        Exception
            Error of a client if the model does not accept its examples.
        """
        holders = [client for client in self.data if client.held_out]
        if not holders:
            return [], None
        model, layout, loss = self.learner.model, self.layout, self.learner.local.loss
        hypotheses = iter(choose_each(model, layout, models, holders, loss))
        chosen: list[int] = []
        for client in self.data:
            index = next(hypotheses) if client.held_out else 0
            if isinstance(index, Exception):
                raise index
            chosen.append(index)
        return evaluate_clients(model, layout, models, self.data, chosen, metrics, loss)

    def books(self) -> dict[str, Ledger]:
        """Return the ledgers of the server and of every client, by name."""
        names = [SERVER, *map(str, range(len(self.data)))]
        return {name: self.ledger(name)[0] for name in names}

    def states(self) -> dict[int, Any]:
        """Return the state of every client that has one, by partition."""
        states = dict(self._states)
        for partition, party in self._parties.items():
            states[partition] = party.state
        return states

    def resume(self, states: Mapping[int, Any]) -> None:
        """Continue from saved states of clients, by partition, with new parties."""
        self._states = dict(states)
        self._parties.clear()


def _in_memory(run: str, party: str) -> tuple[Ledger, LineStore]:
    return Ledger(run, party), forget
