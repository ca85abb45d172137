"""Evidence over rounds: the likelihood ratio of a sequence of scores, under one Gaussian a world.

Scores of one run are not independent over rounds. Both worlds share a covariance matrix. Rehearsals are few, so

* correlations are drawn towards one common correlation for each pair of kinds of score, as strongly as oracle
  approximating shrinkage (Chen et al. 2010) draws them towards none;
* the gap between the worlds' means is drawn towards the same gap in every round (positive-part James-Stein, Efron and
  Morris 1973).

With L L^T = Sigma, z = L^-1 (s - middle) and d = L^-1 (gap), L being triangular, z_t depends on s_1 .. s_t alone, and

    log-likelihood ratio after t rounds = sum over i <= t of d_i z_i

is exact for every prefix: a sequential test may look at it after each round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.covariance import oas
from torch import Tensor

from fedveil.errors import FieldError

LEAST = 4  # rehearsals of each world: two means and a common scale need more than two


@dataclass(frozen=True, eq=False)
class SequentialEvidence:
    """A fitted likelihood ratio of F kinds of score a round.

    Attributes
    ----------
    middle : Tensor
        [R F], halfway between the worlds' means, round by round.
    gap : Tensor
        [R F], d above.
    factor : Tensor
        [R F, R F], L above.
    kinds : int
        F.
    """

    middle: Tensor
    gap: Tensor
    factor: Tensor
    kinds: int

    @classmethod
    def fit(cls, inside: Tensor, outside: Tensor) -> SequentialEvidence:
        """Learn both worlds from rehearsals.

        Parameters
        ----------
        inside, outside : Tensor
            [n, R, F] and [m, R, F], scores of runs that are not evaluated.

        Raises
        ------
        FieldError
            If there are too few.
        """
        if min(len(inside), len(outside)) < LEAST or inside.dim() != 3 or inside.shape[1:] != outside.shape[1:]:
            given = (tuple(inside.shape), tuple(outside.shape))
            raise FieldError("rehearsals", given, f"must be [n, R, F] and [m, R, F] with at least {LEAST} runs each")
        kinds, first, second = inside.shape[2], inside.double().flatten(1), outside.double().flatten(1)
        means = first.mean(0), second.mean(0)
        residuals = torch.cat([first - means[0], second - means[1]])
        scale = (residuals.square().sum(0) / (len(residuals) - 2)).sqrt()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        factor = torch.linalg.cholesky(_correlation(residuals / scale, kinds)) * scale[:, None]
        seen = ((means[0] - means[1]) / scale).view(-1, kinds)
        variance = 1 / len(first) + 1 / len(second)
        believed = torch.stack([_towards_mean(column, variance) for column in seen.T], dim=1).flatten() * scale
        gap = torch.linalg.solve_triangular(factor, believed[:, None], upper=False)[:, 0]
        return cls((means[0] + means[1]) / 2, gap, factor, kinds)

    def weigh(self, scores: Tensor) -> Tensor:
        """Log-likelihood ratio after each round, [..., R], of scores [..., R, F] (the first R of the fitted rounds)."""
        rounds = scores.shape[-2]
        size = rounds * self.kinds
        moved = (scores.double().flatten(-2) - self.middle[:size]).reshape(-1, size).T
        z = torch.linalg.solve_triangular(self.factor[:size, :size], moved, upper=False).T
        increments = (self.gap[:size] * z).view(*scores.shape[:-2], rounds, self.kinds).sum(-1)
        evidence: Tensor = increments.cumsum(-1)
        return evidence


def _correlation(standardised: Tensor, kinds: int) -> Tensor:
    """Shrunk correlation matrix [R F, R F] of residuals [n, R F] of unit variance."""
    strength = float(oas(standardised.numpy(), assume_centered=True)[1])
    raw = standardised.T @ standardised / (len(standardised) - 2)
    identity = torch.eye(len(raw), dtype=raw.dtype)
    off = ~identity.bool()
    rounds = len(raw) // kinds
    blocks = (raw * off).view(rounds, kinds, rounds, kinds).sum((0, 2))
    pairs = torch.full((kinds, kinds), float(rounds * rounds), dtype=raw.dtype) - rounds * torch.eye(kinds)
    values, vectors = torch.linalg.eigh(blocks / pairs.clamp(min=1))
    common = vectors @ torch.diag(values.clamp(0, 0.99)) @ vectors.T
    target = common.repeat(rounds, rounds) * off + identity
    shrunk: Tensor = strength * target + (1 - strength) * (raw * off + identity) + 1e-9 * identity
    return shrunk


def _towards_mean(values: Tensor, variance: float) -> Tensor:
    """Shrink values [R], each seen with this variance, towards their mean by what their scatter leaves to doubt."""
    mean = values.mean()
    scatter = float((values - mean).square().sum())
    if len(values) < 4 or scatter == 0:
        return values
    return mean + max(0.0, 1 - (len(values) - 3) * variance / scatter) * (values - mean)
