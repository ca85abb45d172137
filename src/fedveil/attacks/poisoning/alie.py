"""ALIE: a deviation from the honest mean that hides in the honest updates' own spread.

Source: "A little is enough" (Baruch, Baruch and Goldberg 2019, arXiv 1902.06156, section 3.3).

    sent = start + m - z s        m, s: mean and deviations of the honest updates, coordinate by coordinate

Threat model: colluding malicious clients that know all honest updates of the round, and perhaps the server's rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import scipy
from torch import Tensor

from fedveil.attacks.poisoning.informed import InformedUpdate, check_honest, furthest
from fedveil.errors import require_count


def alie(honest: Tensor, malicious: int, z: float | None = None) -> Tensor:
    """The vector [d] that f malicious clients send beside honest updates [h, d].

    Parameters
    ----------
    honest : Tensor
        At least two.
    malicious : int
        f.
    z : float, optional
        By default the paper's: of n = h + f clients, s = floor(n / 2) + 1 - f honest ones are needed for a majority,
        and z is the quantile of (h - s) / h.
    """
    check_honest(honest)
    if z is None:
        h = len(honest)
        needed = (h + require_count("malicious", malicious)) // 2 + 1 - malicious
        z = float(scipy.special.ndtri(min(max((h - needed) / h, 0.5), 1 - 1e-6)))
    return honest.mean(0) - z * honest.std(0)


@dataclass(frozen=True, eq=False, kw_only=True)
class ALIE(InformedUpdate):
    """A little is enough; `z` as in `alie`, or the strongest against `rule`."""

    z: float | None = None

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        """See `alie`."""
        if self.rule is None or self.z is not None:
            return alie(honest, malicious, self.z)
        return furthest(lambda z: alie(honest, malicious, z), honest, malicious, self.rule)[0]
