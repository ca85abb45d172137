"""Bulyan: select by Krum again and again, then trim each coordinate around its median."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.aggregation.base import Aggregator
from fedveil.aggregation.robust import krum_order
from fedveil.calibration.pairs import squared_distances
from fedveil.checks import Natural
from fedveil.clipping import blocks_of


@dataclass(frozen=True)
class Bulyan(Aggregator):
    """Bulyan of Krum (El Mhamdi, Guerraoui and Rouault 2018, arXiv 1802.07927, section 4).

    Of n updates, theta = n - 2 f are selected one at a time, each by Krum among those that are left. Of every
    coordinate, the beta = theta - 2 f values closest to the median of the selected are averaged.

    Parameters
    ----------
    malicious : int
        Bad clients to withstand, f; the rule needs n >= 4 f + 3.

    Examples
    --------
    >>> seven = torch.cat([updates, updates[:2]])
    >>> fv.Bulyan(malicious=1).reduce(seven, torch.full((7,), 1 / 7, dtype=torch.float64)).round(decimals=1)
    tensor([1., 0.], dtype=torch.float64)
    """

    malicious: Natural = 0

    @property
    def least(self) -> int:
        """4 f + 3."""
        return 4 * self.malicious + 3 if self.malicious else 1

    def bears(self, n: int) -> int:
        """(n - 3) / 4, rounded down."""
        return max(0, (n - 3) // 4)

    def shares(self, updates: Tensor, weights: Tensor) -> Tensor:
        """One share each for the selected, before single coordinates are left out."""
        n, f = len(updates), self.malicious
        self.admit(f, n)
        left, squared = torch.arange(n), squared_distances(updates)
        chosen: list[int] = []
        while len(chosen) < n - 2 * f:
            best = int(krum_order(squared[left[:, None], left], f)[0]) if len(left) > 1 else 0
            chosen.append(int(left[best]))
            left = torch.cat([left[:best], left[best + 1 :]])
        return torch.zeros(n, dtype=torch.float64).index_fill_(0, torch.tensor(chosen), 1 / len(chosen))

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Trimmed mean around the median of each coordinate of the selected updates; summed in float64."""
        rows = self.shares(updates, weights).nonzero().flatten()
        kept, result = len(rows) - 2 * self.malicious, torch.empty(updates.shape[1], dtype=torch.float64)
        for columns in blocks_of(*updates.shape):
            block = updates[rows, columns].to(torch.float64).sort(dim=0).values
            middle = (block[(len(rows) - 1) // 2] + block[len(rows) // 2]) / 2
            nearest = (block - middle).abs().sort(dim=0, stable=True).indices[:kept]
            result[columns] = block.gather(0, nearest).mean(0)
        return result

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float | None:
        """2 C sqrt(theta / beta), whatever n; none for add/remove, which changes both.

        By Cauchy and Schwarz the square of a coordinate is at most the mean of the beta squares behind it, so the
        square of the result is at most the sum of the theta squared norms over beta: the result lies within
        C sqrt(theta / beta), before and after. It does not fall with n: one update decides which Krum selects.
        """
        n, f = max(len(weights), self.least), self.malicious  # of fewer updates nothing is made
        return None if relation == "add/remove" else 2 * clip * float((n - 2 * f) / (n - 4 * f)) ** 0.5
