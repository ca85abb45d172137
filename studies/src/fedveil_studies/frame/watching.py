"""What studies' probes that look at a whole run have in common."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from fedveil.config import Config
from fedveil.runs.prepare import Setup


class WholeRun:
    """Base of a `fedveil.runs.runner.Judge` that trains nothing after the run.

    Attributes
    ----------
    kept : int
        Parameter vectors that it keeps of a run.
    """

    kept: ClassVar[int] = 0

    def __init__(self, _config: Config | None = None) -> None:
        """Everything is taken from the run."""

    def load(self, setup: Setup) -> tuple[int, int]:
        """What it keeps, and that it trains on nothing."""
        return self.kept, 0

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Of each run what `concluded` says."""
        return [judge.concluded() for judge in judges]

    def concluded(self) -> dict[str, Any]:
        """Nothing, where the figures stand in the rounds."""
        return {}
