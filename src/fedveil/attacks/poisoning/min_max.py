"""MinMax: as far from the honest mean as the honest updates are from each other.

Source: Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine" (NDSS, section IV-D).

    sent = start + m + g p        p: -m / |m|, -s or -sign(m), scaled to length 1; g the largest for which no honest
                                  update is further away than two honest ones are from each other

Threat model: colluding malicious clients that know all honest updates of the round; no rule is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.attacks.poisoning.informed import InformedUpdate, check_honest
from fedveil.errors import require_choice


def min_max(honest: Tensor, direction: str = "mean") -> Tensor:
    """The vector [d]: as far from the honest mean along a direction as the honest updates' diameter allows.

    For each x_i the bound |m + g p - x_i| <= R is a quadratic in g; the smallest of their positive roots is exact,
    where the paper halves an interval.

    Parameters
    ----------
    honest : Tensor
        [h, d], at least two.
    direction : {"mean", "std", "sign"}
        The opposite of the mean, of the deviations, or of the mean's signs.
    """
    check_honest(honest)
    x = honest.to(torch.float64)
    mean = x.mean(0)
    towards = {"mean": -mean, "std": -x.std(0), "sign": -mean.sign()}
    p = towards[require_choice("direction", direction, towards)]
    if not float(p.norm()) > 0:
        return honest.mean(0)
    p, away = p / p.norm(), mean - x
    diameter = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").max()
    b, c = away @ p, away.square().sum(1) - diameter**2  # g^2 + 2 b g + c = 0, and c <= 0
    g = (-b + (b.square() - c).clamp_(min=0.0).sqrt()).min()
    found: Tensor = (mean + g * p).to(honest.dtype)
    return found


@dataclass(frozen=True, eq=False, kw_only=True)
class MinMax(InformedUpdate):
    """MinMax along `direction`; it looks at no rule."""

    direction: str = "mean"

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        """See `min_max`."""
        return min_max(honest, self.direction)
