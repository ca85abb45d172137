"""The loop of a round, the same under every engine: who moves the messages is handed in.

A round is opened by the server, carried to a cohort by a `Courier`, and combined by the server from what comes back.
The embedded engine's courier is `fedveil.engines.embedded.Cohort`, Flower's `fedveil.engines.flower.roster.Nodes`,
NVIDIA FLARE's `fedveil.engines.nvflare.controller.FlareSites`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from fedveil.aggregation import RunningSum
from fedveil.engines.server import Round
from fedveil.methods import Broadcast, Releases
from fedveil.secure import PublicKey


@dataclass(frozen=True, eq=False)
class Collected:
    """Answers of a cohort to a question.

    Attributes
    ----------
    replies : dict of int to Releases
        By partition.
    failed, refused : dict of int to str
        Clients without a reply, and those that declined, with the reason.
    lost : set of int
        Those of the failed that may be back when they are asked anew.
    added : RunningSum, optional
        The sum of the models, where they were added as they came: then no reply holds one.
    trained : sequence of int
        Who trained; the experimenter's view, like all that follows.
    scales : dict of int to tuple of float
        Scale of each client's own noise.
    zeroed : dict of int to str
        Clients of which something failed under local trust, with the reason. Their reply is a zero update, and the
        server cannot tell.
    loss : float, optional
        Median training loss of those who trained.
    seals : dict of int to str
        What the replies' receipts are made with, by partition.
    asked : int
        Number of clients that were asked the question.
    """

    replies: dict[int, Releases] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    added: RunningSum | None = None
    trained: Sequence[int] = ()
    scales: dict[int, tuple[float, ...]] = field(default_factory=dict)
    zeroed: dict[int, str] = field(default_factory=dict)
    loss: float | None = None
    seals: dict[int, str] = field(default_factory=dict)
    asked: int = 0

    def followed_by(self, later: "Collected") -> "Collected":
        """Add the replies to a second question; who is missing is known by the last question to each."""
        failed, refused = {**self.failed, **later.failed}, {**self.refused, **later.refused}
        for partition in self.failed.keys() & later.refused.keys():
            failed.pop(partition)
        for partition in self.refused.keys() & later.failed.keys() - later.refused.keys():
            refused.pop(partition)
        for partition in later.replies:
            failed.pop(partition, None)
            refused.pop(partition, None)
        return replace(later, failed=failed, refused=refused)


class Courier(Protocol):
    """Carries a broadcast to clients, and their answers back."""

    def reach(self, number: int, cohort: Sequence[int]) -> Mapping[int, PublicKey | None]:
        """Return those of a cohort that can be asked in a round, each with its site's key where sums are secure.

        Raises
        ------
        NoReplyError, BudgetError
            If they are too few for a sum.
        """

    def ask(self, broadcast: Broadcast, partitions: Sequence[int]) -> None:
        """Ask who takes part, before anybody trains."""

    def collect(self) -> Collected:
        """Return the answers of those who were asked last."""

    def again(self, answers: Collected) -> Sequence[int]:
        """Name those to ask anew, as somebody is missing from a secure sum; nobody where the answers are whole.

        Raises
        ------
        NoReplyError, BudgetError
            If too few are left of a sum.
        """


class RoundServer(Protocol):
    """Opens and combines rounds: an `ObservedServer`, or `Serving`, which keeps the books of a deployed run."""

    def open(
        self,
        models: Tensor,
        round_: int,
        rounds: int,
        cohort: int,
        roster: Sequence[PublicKey] = (),
        attempt: int = 0,
    ) -> Broadcast:
        """Open a round."""

    def require_unsummed(self, round_: int) -> None:
        """Refuse a round that must not be summed again."""

    def asked(self, answers: Collected) -> None:
        """Note the answers to a question, whether or not a round comes of it."""

    def close(self, broadcast: Broadcast, answers: Collected) -> tuple[Tensor, Round]:
        """Combine; return the next models [k, d], and how the round went."""


class RoundLoop:
    """One round after another: `begin` asks a cohort, `end` collects, asks again where a sum is not whole, combines.

    Parameters
    ----------
    server : RoundServer
        Opens and combines the rounds.
    courier : Courier
        Carries them.

    Attributes
    ----------
    broadcast : Broadcast, optional
        What opened the last round; None before the first.
    """

    def __init__(self, server: RoundServer, courier: Courier) -> None:
        self._server, self._courier = server, courier
        self.broadcast: Broadcast | None = None

    def begin(
        self, models: Tensor, number: int, rounds: int, size: int, cohort: Sequence[int]
    ) -> None:
        """Open a round of a cohort of a planned size, and ask it."""
        self._server.require_unsummed(number)
        self._ask(models, number, rounds, size, cohort, 0)

    def end(self) -> tuple[Collected, Tensor, Round]:
        """Collect and combine; return the answers, the next models [k, d], and how the round went."""
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
