"""Loop over rounds, the same under every engine; an engine gives it a courier that carries the messages.

The server opens a round, a `Courier` carries it to a cohort, and the server combines the answers. The embedded engine's
courier is `fedveil.engines.embedded.Cohort`, Flower's `fedveil.engines.flower.roster.Nodes`, NVIDIA FLARE's
`fedveil.engines.nvflare.controller.FlareSites`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from fedveil.engines.answers import Collected
from fedveil.engines.server import Round
from fedveil.methods import Broadcast
from fedveil.secure import PublicKey


class Courier(Protocol):
    """Interface of couriers: they carry a broadcast to clients, and return their answers."""

    def reach(self, number: int, cohort: Sequence[int]) -> Mapping[int, PublicKey | None]:
        """Return the reachable members of a cohort, each with its public key for a secure sum (else None).

        Raises
        ------
        NoReplyError, BudgetError
            If there are too few for a secure sum.
        """

    def ask(self, broadcast: Broadcast, partitions: Sequence[int]) -> None:
        """Ask the clients whether they take part, before any of them trains."""

    def collect(self) -> Collected:
        """Return the answers of the clients that were asked last."""

    def again(self, answers: Collected) -> Sequence[int]:
        """Return the clients to ask again if a secure sum is incomplete; empty if it is complete.

        Raises
        ------
        NoReplyError, BudgetError
            If too few clients are left for a sum.
        """


class RoundServer(Protocol):
    """Interface of the server of a round: `ObservedServer` in one process, `Serving` in a deployed run."""

    def open(
        self,
        models: Tensor,
        round_: int,
        rounds: int,
        cohort: int,
        roster: Sequence[PublicKey] = (),
        attempt: int = 0,
    ) -> Broadcast:
        """Open a round and return its broadcast."""

    def require_unsummed(self, round_: int) -> None:
        """Refuse a round whose trusted sum was already released."""

    def asked(self, answers: Collected) -> None:
        """Record the answers to a question, even if the round then fails."""

    def close(self, broadcast: Broadcast, answers: Collected) -> tuple[Tensor, Round]:
        """Combine the answers; return the next models [k, d] and the log of the round."""


class RoundLoop:
    """Loop over rounds. `begin` asks a cohort; `end` collects its answers and combines them.

    Parameters
    ----------
    server : RoundServer
        Server that opens and combines the rounds.
    courier : Courier
        Courier of the rounds.

    Attributes
    ----------
    broadcast : Broadcast, optional
        Broadcast of the last round; None before the first.
    """

    def __init__(self, server: RoundServer, courier: Courier) -> None:
        self._server, self._courier = server, courier
        self.broadcast: Broadcast | None = None

    def begin(
        self, models: Tensor, number: int, rounds: int, size: int, cohort: Sequence[int]
    ) -> None:
        """Open a round and ask its cohort; `size` is the planned size of the cohort."""
        self._server.require_unsummed(number)
        self._ask(models, number, rounds, size, cohort, 0)

    def end(self) -> tuple[Collected, Tensor, Round]:
        """Collect the answers (again if a secure sum is incomplete), and combine them.

        Returns
        -------
        tuple
            Answers, next models [k, d], and log of the round.
        """
        assert self.broadcast is not None  # a round was begun
        answers = self._collected()
        anew = self._courier.again(answers)
        while anew:
            public = self.broadcast.public
            self._ask(
                self.broadcast.models,
                public.round,
                public.rounds,
                public.cohort,
                anew,
                public.attempt + 1,
            )
            answers = answers.followed_by(self._collected())
            anew = self._courier.again(answers)
        models, log = self._server.close(self.broadcast, answers)
        return answers, models, log

    def _ask(
        self,
        models: Tensor,
        number: int,
        rounds: int,
        size: int,
        cohort: Sequence[int],
        attempt: int,
    ) -> None:
        reached = self._courier.reach(number, cohort)
        roster = [key for key in reached.values() if key is not None]
        self.broadcast = self._server.open(models, number, rounds, size, roster, attempt)
        self._courier.ask(self.broadcast, list(reached))

    def _collected(self) -> Collected:
        answers = self._courier.collect()
        self._server.asked(answers)
        return answers
