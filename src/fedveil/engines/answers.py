"""Answers of clients to a round's question: what a server combines, and what an experimenter sees beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from fedveil.aggregation import RunningSum
from fedveil.methods import Releases


@dataclass(frozen=True, eq=False)
class RoundAnswers:
    """Answers to a question of a round, as the server receives them.

    Attributes
    ----------
    replies : dict of int to Releases
        Replies by partition, in any order.
    failed, refused : dict of int to str
        Reasons, by partition: of clients without a reply, and of clients that declined.
    added : RunningSum, optional
        Sum of the models, if each was added on arrival; then no reply holds a model.
    seals : dict of int to str
        Seals of the replies by partition; required if the broadcast has a receipt.
    asked : int
        Number of clients that were asked, for the receipt.
    """

    replies: dict[int, Releases] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    added: RunningSum | None = None
    seals: dict[int, str] = field(default_factory=dict)
    asked: int = 0

    def followed_by(self, later: Self) -> Self:
        """Add the answers to a second question; a client is missing if it did not answer its last question."""
        failed, refused = {**self.failed, **later.failed}, {**self.refused, **later.refused}
        for partition in self.failed.keys() & later.refused.keys():
            failed.pop(partition)
        for partition in self.refused.keys() & later.failed.keys() - later.refused.keys():
            refused.pop(partition)
        for partition in later.replies:
            failed.pop(partition, None)
            refused.pop(partition, None)
        return replace(later, failed=failed, refused=refused)


@dataclass(frozen=True, eq=False)
class Collected(RoundAnswers):
    """Answers to a question of a round, with facts that only an experimenter sees.

    Attributes
    ----------
    lost : set of int
        Failed clients that may be back when they are asked again.
    trained : sequence of int
        Clients that trained.
    scales : dict of int to tuple of float
        Deviation of each client's own noise, by partition.
    zeroed : dict of int to str
        Clients that failed under local trust, with the reason. They replied with a protected zero update, so the server
        cannot see it.
    loss : float, optional
        Median training loss of the clients that trained.
    """

    lost: set[int] = field(default_factory=set)
    trained: Sequence[int] = ()
    scales: dict[int, tuple[float, ...]] = field(default_factory=dict)
    zeroed: dict[int, str] = field(default_factory=dict)
    loss: float | None = None
