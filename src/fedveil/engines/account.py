"""What a deployed run has promised so far and whom it lost, in the words of the server's log."""

from copy import deepcopy

from fedveil.accounting import Filter, Guarantee, Spend, total, unprotected
from fedveil.engines.history import total_of
from fedveil.engines.party import Round, ServerParty
from fedveil.methods import Broadcast


class Account:
    """The cost of the rounds so far, as far as a server can know it.

    Parameters
    ----------
    server : ServerParty
        Whose ledger and budget count under central trust.
    rounds : int
        Rounds planned.
    delta : float
        At which an epsilon is stated, unless the budget names its own.
    """

    def __init__(self, server: ServerParty, rounds: int, delta: float) -> None:
        self._server, self.rounds = server, rounds
        terms = server.budget.terms if server.budget is not None else None
        self.delta = delta if terms is None else terms["delta"]
        self._central = server.method.client.trust == "central"
        self._quotes: list[Spend] = []
        self._asked: list[Spend] = []
        self._rounds_of: dict[int, int] = {}
        self._lost: dict[int, tuple[int, str]] = {}

    @property
    def guarantee(self) -> Guarantee:
        """What the rounds so far promise together; under local trust to a client that took part in all of them."""
        if self._central:
            return total_of(self._server.ledger) if self._server.ledger.entries else unprotected()
        return total(s.guarantee for s in self._quotes) if self._quotes else unprotected("local")

    def opened(self, broadcast: Broadcast) -> None:
        """Note what a client is to spend on this question: the quote that it makes itself, which is public."""
        side = self._server.method.client
        quoted = side.quote(broadcast, side.init())
        self._asked += [quoted] if isinstance(quoted, Spend) else []

    def closed(self, log: Round) -> str:
        """Note a finished round, and tell it in one line."""
        self._quotes += self._asked
        self._asked = []
        lost = {**log.failed, **log.invalid}
        for partition in (*log.used, *lost, *log.refused):
            self._rounds_of[partition] = self._rounds_of.get(partition, 0) + 1
        for partition, why in lost.items():
            self._lost[partition] = (self._lost.get(partition, (0, ""))[0] + 1, why)
        asked = len(log.used) + len(lost) + len(log.refused)
        return f"round {log.number} of {self.rounds}: {len(log.used)} of {asked} clients; {self.spent(log)}"

    def spent(self, log: Round | None = None) -> str:
        """Status, unit and epsilon spent, and what is left of the budget."""
        spent = self.guarantee.describe(self.delta)
        if not self._central:
            return f"spent by a client that took part in every round: {spent}; its own ledger counts"
        return f"spent: {spent}{'' if log is None else self._left(log)}"

    def always_failed(self) -> dict[int, str]:
        """Clients that failed in every round in which they were asked, with the last reason.

        Under local trust a failed client answers with a zero update, so that the server sees those alone whose whole
        node failed.
        """
        return {p: why for p, (count, why) in sorted(self._lost.items()) if count == self._rounds_of[p]}

    def _left(self, log: Round) -> str:
        """How many more rounds like the last one the server's budget holds."""
        budget, planned = self._server.budget, self.rounds - log.number
        if budget is None:
            return ""
        copy, more = deepcopy(budget), 0
        while more < planned and copy.admit_spend(log.spend):
            more += 1
        of = f" of epsilon {budget.terms['epsilon']:g}" if isinstance(budget, Filter) and budget.terms else ""
        return f"; left{of}: {more} of the {planned} rounds to come"
