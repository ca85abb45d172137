"""Many federations side by side: each round, all their clients are trained in one call of the trainer.

Every federation keeps its own parties, ledgers, noise and seeds, and ends in the bits in which it would end alone
(with a trainer whose results do not depend on who else is trained).
"""

from collections.abc import Iterator, Sequence

from fedveil.engines.federation import Federation
from fedveil.engines.history import RoundRecord
from fedveil.errors import BudgetError, FieldError, NoReplyError, require_rounds


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
        if not federations or any(f.learner is not federations[0].learner for f in federations):
            raise FieldError("federations", len(federations), "must be at least one, all with the same learner")
        self.federations = list(federations)
        self.stopped: dict[int, str] = {}

    def rounds(self, rounds: int) -> Iterator[dict[int, RoundRecord]]:
        """Do one round of every federation after another, up to `rounds` in all; yields those that finished it."""
        rounds = require_rounds("rounds", rounds)
        learner = self.federations[0].learner
        while True:
            self.stopped |= {i: f.stopped for i, f in enumerate(self.federations) if f.stopped}
            going = [i for i, f in enumerate(self.federations) if f.round < rounds and i not in self.stopped]
            if not going:
                return
            asked = [self.federations[i].ask(rounds) for i in going]
            learned = learner.learn_together([a.task for a in asked])
            played: dict[int, RoundRecord] = {}
            for i, opened, outcomes in zip(going, asked, learned, strict=True):
                federation = self.federations[i]
                collected = federation.collect(opened, outcomes)
                try:
                    played[i] = federation.close(opened, collected)
                except (BudgetError, NoReplyError) as error:
                    self.stopped[i] = str(error)
            yield played
