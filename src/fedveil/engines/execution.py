"""How a federation is carried out, apart from what it is: for runners and measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedveil.accounting import Ledger
from fedveil.engines.party import Store
from fedveil.errors import require_choice, require_count
from fedveil.learning.learner import Learner
from fedveil.learning.trainers import TRAINERS
from fedveil.secure import SiteKey


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a federation is carried out.

    Parameters
    ----------
    trainer : {"auto", "batched", "sequential"}
        How clients are trained; see `fedveil.learning.make_trainer`.
    workers : int
        Threads that train clients.
    learner : Learner, optional
        Trains instead of one that is built from the federation's model, local training and region, and the two above.
    run_id : str
        Names the ledgers.
    single_examples : bool
        Whether a silo of record-level privacy may hold one example, as where an attack is to be the strongest.
    tell : callable, optional
        Takes each warning. Default: ``warnings.warn``.
    keys : sequence of SiteKey, optional
        Of secure sums, one a client. Default: keys that follow the seed, which anybody can compute, or with a secure
        source fresh ones.
    ledgers : callable, optional
        ``party -> (Ledger, Store)``; by default ledgers live in memory.
    """

    trainer: str = "auto"
    workers: int = 1
    learner: Learner | None = None
    run_id: str = "memory"
    single_examples: bool = False
    tell: Callable[[str], None] | None = None
    keys: Sequence[SiteKey] = ()
    ledgers: Callable[[str], tuple[Ledger, Store]] | None = None

    def __post_init__(self) -> None:
        """Check the trainer and the workers."""
        require_choice("trainer", self.trainer, TRAINERS)
        require_count("workers", self.workers)
