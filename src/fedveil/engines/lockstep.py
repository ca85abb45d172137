"""Many federations side by side: each round, all their clients are trained in one call of the trainer.

Every federation keeps its own parties, ledgers, noise and seeds, and ends in the bits in which it would end alone
(with a trainer whose results do not depend on who else is trained).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedveil.engines.history import Asked, Collected, RoundRecord
from fedveil.engines.local import Federation
from fedveil.errors import BudgetError, FieldError, NoReplyError, require_count
from fedveil.learning.learner import Learned

# A malicious client: (federation, round as it was opened, partition, trained model [d]) -> the model it sends instead.
Craft = Callable[[int, Asked, int, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Played:
    """One federation's round: as it was opened, what the server received, how it ended."""

    asked: Asked
    collected: Collected
    record: RoundRecord


class Lockstep:
    """Drive federations round by round.

    Parameters
    ----------
    federations : sequence of Federation
        Fresh or restored, all with the same learner.
    craft : callable, optional
        Changes the models that clients trained, before their methods protect them: for malicious clients.

    Attributes
    ----------
    stopped : dict of int to str
        Federations that ended early, by their position: a spent budget, or a round without a usable reply.

    Raises
    ------
    FieldError
        If the learners differ: then nothing could be trained together.
    """

    def __init__(self, federations: Sequence[Federation], craft: Craft | None = None) -> None:
        if not federations or any(f.learner is not federations[0].learner for f in federations):
            raise FieldError("federations", len(federations), "must be at least one, all with the same learner")
        self.federations, self._craft = list(federations), craft
        self.stopped: dict[int, str] = {}

    def rounds(self, rounds: int) -> Iterator[dict[int, Played]]:
        """Do one round of every federation after another, up to `rounds` in all; yields those that finished it."""
        rounds = require_count("rounds", rounds)
        learner = self.federations[0].learner
        while True:
            going = [i for i, f in enumerate(self.federations) if f.round < rounds and i not in self.stopped]
            if not going:
                return
            asked = [self.federations[i].ask(rounds) for i in going]
            learned = learner.learn_together([a.task for a in asked])
            played: dict[int, Played] = {}
            for i, opened, outcomes in zip(going, asked, learned, strict=True):
                federation = self.federations[i]
                collected = federation.collect(opened, self._crafted(i, opened, outcomes))
                try:
                    played[i] = Played(opened, collected, federation.close(opened, collected))
                except (BudgetError, NoReplyError) as error:
                    self.stopped[i] = str(error)
            yield played

    def _crafted(self, i: int, asked: Asked, outcomes: Sequence[Learned | Exception]) -> Sequence[Learned | Exception]:
        if self._craft is None:
            return outcomes
        changed: list[Learned | Exception] = []
        for partition, outcome in zip(asked.partitions, outcomes, strict=True):
            if isinstance(outcome, Learned):
                model = self._craft(i, asked, partition, outcome.trained.model)
                outcome = replace(outcome, trained=replace(outcome.trained, model=model))
            changed.append(outcome)
        return changed
