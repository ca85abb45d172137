"""FLTrust: weigh updates by their cosine with one that the server trained on public data."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.aggregation.base import Aggregator, WeightedMean
from fedveil.clipping import blocks_of, norms
from fedveil.errors import FieldError
from fedveil.mechanisms import Source


@dataclass(frozen=True)
class FLTrust(Aggregator):
    """Trust by direction (Cao, Fang, Liu and Gong 2021, arXiv 2012.13995, equations 2 to 4).

    With g0 the server's own update, ``TS_i = max(0, cos(x_i, g0))`` and the result is the mean of
    ``x_i |g0| / |x_i|`` weighted by TS. The server needs public data like the clients' and trains on them as a client
    does; engines hand g0 over as the server fact ``public_update``, to `for_round`. If no update is trusted the model
    stays.

    Examples
    --------
    >>> rule = fv.FLTrust()
    >>> sorted(rule.needs)
    ['public_update']
    """

    reference: Tensor | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def needs(self) -> frozenset[str]:
        """The server's own update."""
        return frozenset({"public_update"})

    def for_round(self, state: Any, source: Source, public_update: Tensor | None = None) -> "FLTrust":
        """Take the server's update of this round."""
        return self._filled(reference=public_update)

    def bears(self, n: int) -> int:
        """Any number, as long as the public data are like the clients': none of them moves the server's own update."""
        return n

    def shares(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Trust scores, scaled to sum to 1; all 0 where nobody is trusted."""
        if self.reference is None or self.reference.shape != updates.shape[1:]:
            found = None if self.reference is None else tuple(self.reference.shape)
            accepted = f"FLTrust needs the server's own update [{updates.shape[1]}]: give the federation public data"
            raise FieldError("public_update", found, accepted)
        dots = torch.zeros(len(updates), dtype=torch.float64)
        for columns in blocks_of(*updates.shape):
            dots += updates[:, columns].to(torch.float64) @ self.reference[columns].to(torch.float64)
        lengths = norms(updates) * norms(self.reference)
        trust = torch.where(lengths > 0, dots / lengths, torch.zeros_like(dots)).clamp_(min=0.0)
        total = float(trust.sum())
        return trust / total if total > 0 else trust

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Trusted updates at the length of the server's; `weights` only say how many updates there are."""
        shares = self.shares(updates, weights)
        assert self.reference is not None
        scale = norms(self.reference) / norms(updates)
        return WeightedMean().reduce(updates, torch.where(shares > 0, shares * scale, shares))

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float | None:
        """None that noise could be calibrated to beforehand.

        The result is a mean of vectors of length |g0|, so it moves by at most 2 |g0|, which is public but changes
        with the rounds. It does not fall with n: where one client alone is trusted, the result is |g0| long, and 0
        without it.
        """
        return None if self.reference is None else 2 * float(norms(self.reference))
