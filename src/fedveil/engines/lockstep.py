"""Many federations side by side: each round, all their clients are trained in one call of the trainer.

Every federation keeps its own parties, ledgers, noise and seeds, and ends in the bits in which it would end alone
(with a trainer whose results do not depend on who else is trained).
"""

from collections.abc import Iterator, Sequence

from fedveil.engines.federation import Federation
from fedveil.engines.history import RoundRecord
from fedveil.errors import BudgetError, FieldError, NoReplyError, require_rounds
from fedveil.learning.learner import Task


class Lockstep:
    """Drive federations round by round.

    Parameters
    ----------
    federations : sequence of Federation
        Fresh or restored, all with the same learner.

    Attributes
    ----------
    stopped : dict of int to str
        Federations that ended early, by their position: a spent budget, a round without a usable reply, no better
        validation loss.

    Raises
    ------
    FieldError
        If the learners differ: then nothing could be trained together.
    """

    def __init__(self, federations: Sequence[Federation]) -> None:
        learners = {id(federation.learner) for federation in federations}
        if len(learners) != 1:
            raise FieldError(
                "federations", len(federations), "must be at least one, all with the same learner"
            )
        self.federations = list(federations)
        self.stopped: dict[int, str] = {}

    def rounds(self, rounds: int) -> Iterator[dict[int, RoundRecord]]:
        """Do one round of every federation after another, up to `rounds` in all; yields those that finished it."""
        rounds = require_rounds("rounds", rounds)
        while True:
            going = self._going(rounds)
            if not going:
                return
            played: dict[int, RoundRecord] = {}
            for i in self._asked(going, rounds):
                try:
                    played[i] = self.federations[i].end()
                except (BudgetError, NoReplyError) as error:
                    self.stopped[i] = str(error)
            yield played

    def _going(self, rounds: int) -> list[int]:
        """Return those that go on, and note why others do not."""
        going = []
        for i, federation in enumerate(self.federations):
            if federation.stopped:
                self.stopped[i] = federation.stopped
            elif federation.round < rounds and i not in self.stopped:
                going.append(i)
        return going

    def _asked(self, going: Sequence[int], rounds: int) -> Sequence[int]:
        """Ask the cohorts of all that go on, and train them together."""
        begun: dict[int, Task] = {}
        for i in going:
            try:
                self.federations[i].begin(rounds)
                begun[i] = self.federations[i].embedded.task
            except BudgetError as error:
                self.stopped[i] = str(error)
        learned = self.federations[0].learner.learn_together(list(begun.values()))
        for i, outcomes in zip(begun, learned, strict=True):
            self.federations[i].embedded.learned(outcomes)
        return list(begun)
