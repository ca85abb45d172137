"""Malicious clients of SGA-LDP: lie about the budget, or pull the similarity's reference.

Source: the limits that the SGA-LDP paper names (a client works out its own budget), built here.

    lie       sent = start + clip(update) + N(0, sigma^2 I)        sigma as if the similarity were 1, or 0
    pull      sent = start + C u                              u the same direction for all fellows, kept over rounds

Pulling: the reference is the last global change, mean of all that was sent. Honest clients send noise of norm about
sigma sqrt(d), which averages out; f fellows that agree add f C / n along u in every round. The cosine of an honest
update with the reference falls, and so does its budget, while u's own rises.

Threat model: malicious clients with modified software, so that no method protects what they send (`bypass`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedveil.attacks.poisoning.goal import BEHAVIOURS, Around
from fedveil.checks import NonNegative, Positive
from fedveil.clipping import clip
from fedveil.engines.seams import Turn
from fedveil.mechanisms import keyed_seed


def pulled(update: Tensor, kept: Tensor, bound: float) -> Tensor:
    """A vector [d] of length `bound` along the sum of what fellows sent before and one's own update, both unit."""
    total = sum((v / v.norm() for v in (update, kept) if float(v.norm()) > 0), torch.zeros_like(update))
    length = float(total.norm())
    return total * (bound / length) if length > 0 else total


@BEHAVIOURS.register("lying-budget")
@dataclass(frozen=True, eq=False, kw_only=True)
class LyingBudget(Around):
    """Send a clipped update with less noise than the method asks for.

    Parameters
    ----------
    clip : float
        C, which the server could check.
    sigma : float
        Deviation of the noise: that of epsilon_max (the client claims a similarity of 1), or 0 for none.
    of : Behaviour
        What it trains on and sends.
    """

    clip: Positive
    sigma: NonNegative = 0.0
    seed: int = 0
    bypass: bool = True

    def model(self, turn: Turn) -> Tensor:
        """The other behaviour's update, clipped, with that noise."""
        sent = self.of.model(turn)
        update = clip(turn.update if sent is None else sent - turn.start, self.clip)
        key = keyed_seed("lying", self.seed, turn.broadcast.public.round, turn.partition)
        noise = torch.randn(len(update), generator=torch.Generator().manual_seed(key), dtype=update.dtype)
        return turn.start + update + self.sigma * noise


@BEHAVIOURS.register("pull-reference")
@dataclass(frozen=True, eq=False, kw_only=True)
class PullReference(Around):
    """Agree on a direction, so that the last global change points there; give all fellows the same instance.

    Parameters
    ----------
    clip : float
        C.
    of : Behaviour
        What it trains on: the direction is that of the fellows' updates so far.
    """

    clip: Positive
    bypass: bool = True
    _kept: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _now: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def model(self, turn: Turn) -> Tensor:
        """The start plus C along the agreed direction; the first fellow of a round adds its own update to it."""
        now = turn.broadcast.public.round
        if now not in self._now:
            if any(then > now for then in self._now):  # another run began
                self._kept.clear()
            self._now.clear()
            kept = self._kept.get("direction", torch.zeros_like(turn.start))
            self._now[now] = self._kept["direction"] = pulled(turn.update, kept, self.clip)
        return turn.start + self._now[now]
