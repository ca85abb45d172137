"""What attacks share that optimise against the honest updates: one vector for all fellows, and the strongest factor.

An adversary that knows the server's rule takes the factor that moves the result of the rule furthest from the honest
mean (as ByzFL's "optimal" variants do, arXiv 2505.24802).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedveil.aggregation import Aggregator
from fedveil.engines.behaviour import Behaviour, Turn
from fedveil.errors import FieldError
from fedveil.mechanisms import ReproducibleSource

_FACTORS = tuple(float(f) for f in torch.logspace(-1, 1.7, 19))  # .1 to 50


def furthest(make: Callable[[float], Tensor], honest: Tensor, malicious: int, rule: Aggregator) -> tuple[Tensor, float]:
    """The vector that moves a rule's result furthest from the honest mean, and its factor.

    Parameters
    ----------
    make : callable
        ``factor -> vector [d]``; 19 factors from .1 to 50 are tried, and 8 around the best of them.
    honest : Tensor
        [h, d].
    malicious : int
        How many send the vector.
    rule : Aggregator
        The server's; what it draws, remembers or trains is not known to the adversary, who takes a draw of its own, no
        memory, and the honest mean for the server's update.
    """
    mean = honest.mean(0)
    weights = torch.full((len(honest) + malicious,), 1 / (len(honest) + malicious), dtype=torch.float64)
    source = ReproducibleSource(0)
    known = rule.for_round(rule.init(len(mean), mean.dtype), source, mean)

    def moved(factor: float) -> float:
        vectors = torch.cat([honest, make(factor).expand(malicious, -1)])
        return float((known.reduce(vectors, weights) - mean).norm())

    best = max(_FACTORS, key=moved)
    best = max((best * r for r in (0.75, 0.8, 0.86, 0.93, 1.0, 1.08, 1.16, 1.25, 1.35)), key=moved)
    return make(best), best


def check_honest(honest: Tensor) -> None:
    """Refuse fewer than two honest updates [h, d]."""
    if honest.dim() != 2 or len(honest) < 2:
        raise FieldError("honest", tuple(honest.shape), "needs at least two honest updates [h, d]")


@dataclass(frozen=True, eq=False, kw_only=True)
class InformedUpdate(Behaviour):
    """A malicious client that knows the honest updates: all of them send the same vector, worked out once a round.

    Give all of them the same instance. With fewer than two honest updates it sends what it trained.

    Parameters
    ----------
    bypass : bool
        Leave the method's protection out; the vector then follows the honest updates as the server receives them
        (with their noise), and otherwise as they are before protection.
    rule : Aggregator, optional
        The server's, where the adversary knows it.
    """

    omniscient = True
    bypass: bool = False
    rule: Aggregator | None = None
    _sent: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False, repr=False)  # against which, what

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        """The vector [d] against honest updates [h, d]."""
        raise NotImplementedError

    def model(self, turn: Turn) -> Tensor | None:
        """The start plus the vector."""
        honest = turn.released if self.bypass else turn.honest
        if len(honest) < 2:
            return None
        if not self._sent or self._sent[0][0] is not honest:  # a fellow of the same round is shown the same tensor
            self._sent[:] = [(honest, self.vector(honest, len(turn.fellows)))]
        return turn.start + self._sent[0][1]
