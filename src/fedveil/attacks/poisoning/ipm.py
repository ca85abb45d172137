"""IPM: turn the sign of the inner product of the result with the honest mean.

Source: inner product manipulation (Xie, Koyejo and Gupta 2020, arXiv 1903.03936).

    sent = start - factor m        m: mean of the honest updates

Threat model: colluding malicious clients that know all honest updates of the round, and perhaps the server's rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveil.attacks.poisoning.informed import InformedUpdate, furthest


def ipm(honest: Tensor, factor: float = 1.0) -> Tensor:
    """The vector [d]: minus `factor` times the honest mean."""
    return honest.mean(0) * -factor


@dataclass(frozen=True, eq=False, kw_only=True)
class IPM(InformedUpdate):
    """Inner product manipulation; `factor` as in `ipm`, or the strongest against `rule`."""

    factor: float | None = None

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        """See `ipm`."""
        if self.rule is None or self.factor is not None:
            return ipm(honest, 1.0 if self.factor is None else self.factor)
        return furthest(lambda factor: ipm(honest, factor), honest, malicious, self.rule)[0]
