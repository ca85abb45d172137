"""Several federations trained together: in each round, all their clients are trained by one call of the trainer.

Every federation keeps its own parties, ledgers, noise and seeds. Its result has the same bits as alone, if the
trainer's result for a client does not depend on other clients.
"""

from collections.abc import Iterator, Sequence

from fedveil.engines.federation import Federation
from fedveil.engines.history import RoundRecord
from fedveil.errors import BudgetError, FieldError, NoReplyError, require_rounds
from fedveil.learning.learner import Task


class Lockstep:
    """Run several federations round by round, with their clients trained together.

    Parameters
    ----------
    federations : sequence of Federation
        Fresh or restored federations with the same learner.

    Attributes
    ----------
    stopped : dict of int to str
        Reason for each federation that ended early, by position: a spent budget, a round without a usable reply, or no
        better validation loss.

    Raises
    ------
    FieldError
        If the learners differ: their clients cannot be trained together.
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
        """Yield the records of each round, by position of the federation, up to `rounds` in total."""
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
        """Return the federations that continue; record why the others ended."""
        going = []
        for i, federation in enumerate(self.federations):
            if federation.stopped:
                self.stopped[i] = federation.stopped
            elif federation.round < rounds and i not in self.stopped:
                going.append(i)
        return going

    def _asked(self, going: Sequence[int], rounds: int) -> Sequence[int]:
        """Ask the cohorts of all continuing federations, and train them together."""
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
