"""Scaling: send a multiple of the trained update, up to replacing the whole mean.

Source: model replacement (Bagdasaryan et al. 2020, arXiv 1807.00459, equation 3).

    sent = start + factor (trained - start)        factor n / f: f malicious of n replace a uniform mean

Threat model: malicious clients that train (mostly on poisoned data) and scale what they send.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedveil.attacks.poisoning.goal import Goal
from fedveil.engines.behaviour import Behaviour, Turn
from fedveil.errors import require_positive
from fedveil.learning import ClientData


def scaled(update: Tensor, factor: float) -> Tensor:
    """A multiple of an update [d]."""
    return update * factor


@dataclass(frozen=True, eq=False, kw_only=True)
class Scaling(Behaviour):
    """Scale what another behaviour would send.

    Parameters
    ----------
    of : Behaviour
        What it trains on; an honest client if it is left out.
    factor : float, optional
        By default cohort / malicious clients.
    bypass : bool
        Leave the method's protection (its clipping) out.
    """

    of: Behaviour = field(default_factory=Behaviour)
    factor: float | None = None
    bypass: bool = False

    def __post_init__(self) -> None:
        """Check the factor."""
        if self.factor is not None:
            require_positive("factor", self.factor)

    def data(self, data: ClientData, partition: int, round_: int) -> ClientData:
        """The other behaviour's."""
        return self.of.data(data, partition, round_)

    def model(self, turn: Turn) -> Tensor:
        """The start plus a multiple of the other behaviour's update."""
        sent = self.of.model(turn)
        update = turn.update if sent is None else sent - turn.start
        factor = turn.broadcast.public.cohort / len(turn.fellows) if self.factor is None else self.factor
        return turn.start + scaled(update, factor)

    def goal(self, x: Tensor, y: Tensor) -> Goal | None:
        """The other behaviour's, if it has one."""
        return goal_of(self.of, x, y)


def goal_of(behaviour: Behaviour, x: Tensor, y: Tensor) -> Goal | None:
    """What a behaviour wants to be wrong on; None if it only wants to harm."""
    make = getattr(behaviour, "goal", None)
    return None if make is None else make(x, y)
