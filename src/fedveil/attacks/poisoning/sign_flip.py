"""Sign flip: send the trained update turned round.

Source: Li et al. 2019 (arXiv 1811.03761) and others.

    sent = start - factor (trained - start)

Threat model: malicious clients that know nothing of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveil.engines.behaviour import Behaviour, Turn
from fedveil.errors import require_positive


def opposite(update: Tensor, factor: float = 1.0) -> Tensor:
    """The update [d] turned round."""
    return update * -factor


@dataclass(frozen=True, eq=False, kw_only=True)
class SignFlip(Behaviour):
    """Send the trained update turned round, `factor` times as long."""

    factor: float = 1.0
    bypass: bool = False

    def __post_init__(self) -> None:
        """Check the factor."""
        require_positive("factor", self.factor)

    def model(self, turn: Turn) -> Tensor:
        """The start less the update."""
        return turn.start + opposite(turn.update, self.factor)
