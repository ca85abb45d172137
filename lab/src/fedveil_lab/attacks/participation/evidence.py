"""Likelihood ratio of a sequence of scores over rounds, with one Gaussian per world.

Scores of one run are not independent over rounds. Both worlds share a covariance matrix. Rehearsals are few, and twenty
rounds of two kinds of score are forty numbers a run, so a free fit is mostly a fit to noise. Prior knowledge of the
scores decides how much is fitted:

* Steady scores, losses and projections, point the same way in every round, and higher means that the target takes part.
  Each kind gets one standardised gap between the worlds for all rounds: the posterior mean of a gap that is not
  negative, under a flat prior. Correlations are those of the kinds, within a round and between rounds, and the same for
  all rounds.
* Others, such as lengths, may turn from round to round. Correlations are shrunk towards the common ones by the weight
  of oracle approximating shrinkage (Chen et al. 2010). Gaps are shrunk towards one gap for all rounds (positive-part
  James-Stein, Efron and Morris 1973).

With L L^T = Sigma, z = L^-1 (s - middle) and d = L^-1 (gap), L being triangular, z_t depends on s_1 .. s_t alone, and

    log-likelihood ratio after t rounds = sum over i <= t of d_i z_i

is exact for every prefix, if the Gaussians are: a sequential test may look at it after each round.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.errors import FieldError

LEAST = 4  # rehearsals of each world: two means and a common scale need more than two
KEPT = (
    0.7  # of correlations between kinds, so that few rehearsals do not set one kind against another
)
LEAST_EIGENVALUE = (
    0.02  # of a correlation matrix put together from averages, which need not be positive
)


@dataclass(frozen=True, eq=False)
class SequentialEvidence:
    """Fitted likelihood ratio of F kinds of scores per round.

    Attributes
    ----------
    middle : Tensor
        Midpoint between the worlds' means, round by round, [R F].
    gap : Tensor
        Gap between the worlds after whitening, [R F]: d in the module's text.
    factor : Tensor
        Cholesky factor of the covariance, [R F, R F]: L in the module's text.
    kinds : int
        Number F of kinds of scores.
    """

    middle: Tensor
    gap: Tensor
    factor: Tensor
    kinds: int

    @classmethod
    def fit(cls, inside: Tensor, outside: Tensor, steady: bool = True) -> "SequentialEvidence":
        """Fit the Gaussians of both worlds to rehearsals.

        Parameters
        ----------
        inside, outside : Tensor
            Scores [n, R, F] and [m, R, F] of rehearsals with the target and without.
        steady : bool
            Whether a higher score speaks for the target in every round, equally strongly.

        Raises
        ------
        FieldError
            If there are too few rehearsals.
        """
        if (
            min(len(inside), len(outside)) < LEAST
            or inside.dim() != 3
            or inside.shape[1:] != outside.shape[1:]
        ):
            given = (tuple(inside.shape), tuple(outside.shape))
            raise FieldError(
                "rehearsals",
                given,
                f"must be [n, R, F] and [m, R, F] with at least {LEAST} runs each",
            )
        kinds, first, second = (
            inside.shape[2],
            inside.double().flatten(1),
            outside.double().flatten(1),
        )
        means = first.mean(0), second.mean(0)
        residuals = torch.cat([first - means[0], second - means[1]])
        scale = (residuals.square().sum(0) / (len(residuals) - 2)).sqrt()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        correlation = _correlation(residuals / scale, kinds, steady)
        factor = torch.linalg.cholesky(correlation) * scale[:, None]
        seen = ((means[0] - means[1]) / scale).view(-1, kinds)
        variance = 1 / len(first) + 1 / len(second)
        if steady:
            believed = _one_gap(seen, correlation, variance)
        else:
            believed = _towards_mean(seen, variance)
        gap = torch.linalg.solve_triangular(
            factor, (believed.flatten() * scale)[:, None], upper=False
        )[:, 0]
        return cls((means[0] + means[1]) / 2, gap, factor, kinds)

    def weigh(self, scores: Tensor) -> Tensor:
        """Compute the log-likelihood ratio after each round, [..., R], from scores [..., R, F]."""
        rounds = scores.shape[-2]
        size = rounds * self.kinds
        moved = (scores.double().flatten(-2) - self.middle[:size]).reshape(-1, size).T
        z = torch.linalg.solve_triangular(self.factor[:size, :size], moved, upper=False).T
        increments = (self.gap[:size] * z).view(*scores.shape[:-2], rounds, self.kinds).sum(-1)
        return torch.cumsum(increments, -1)


def _correlation(standardised: Tensor, kinds: int, steady: bool) -> Tensor:
    """Estimate the shrunk correlation matrix [R F, R F] of residuals [n, R F] of unit variance."""
    if steady:
        strength = 1.0
    else:
        strength = _shrinkage(standardised)
    raw = standardised.T @ standardised / (len(standardised) - 2)
    shrunk = strength * _common(raw, kinds) + (1 - strength) * raw
    root = shrunk.diagonal().sqrt()
    return torch.div(shrunk / root[:, None], root)


def _shrinkage(rows: Tensor) -> float:
    """Compute oracle approximating shrinkage (Chen et al. 2010, equation 23) of rows [n, p] of mean 0, as in scikit-learn.

    Importing scikit-learn's own takes a second.
    """
    n, p = rows.shape
    covariance = rows.T @ rows / n
    alpha, mean = float(covariance.square().mean()), float(covariance.trace()) / p
    over = (n + 1) * (alpha - mean**2 / p)
    if over == 0:
        return 1.0
    return min((alpha + mean**2) / over, 1.0)


def _common(raw: Tensor, kinds: int) -> Tensor:
    """Make a positive definite matrix [R F, R F] in which each pair of kinds has one correlation for all rounds."""
    rounds = len(raw) // kinds
    blocks = raw.view(rounds, kinds, rounds, kinds)
    within = blocks.diagonal(dim1=0, dim2=2).mean(-1)
    between = (blocks.sum((0, 2)) - rounds * within) / max(1, rounds * (rounds - 1))
    apart = torch.where(torch.eye(kinds, dtype=torch.bool), 1.0, KEPT)
    within, between = apart * within, apart * between
    common = between.repeat(rounds, rounds) + torch.kron(
        torch.eye(rounds, dtype=raw.dtype), within - between
    )
    values, vectors = torch.linalg.eigh(common.fill_diagonal_(1.0))
    return torch.matmul(vectors @ torch.diag(values.clamp(min=LEAST_EIGENVALUE)), vectors.T)


def _one_gap(seen: Tensor, correlation: Tensor, variance: float) -> Tensor:
    """Fit one gap per kind for all rounds, [R, F]: the mean of seen gaps [R, F], constrained not to be negative."""
    rounds, kinds = seen.shape
    of_mean = (
        correlation.view(rounds, kinds, rounds, kinds).mean((0, 2)).diagonal()
    )  # variance of a mean over rounds
    error = (variance * of_mean).sqrt()
    z = seen.mean(0) / error
    hazard = (-z.square() / 2 - math.log(2 * math.pi) / 2 - torch.special.log_ndtr(z)).exp()
    return torch.mul(error, z + hazard).expand(rounds, kinds)


def _towards_mean(seen: Tensor, variance: float) -> Tensor:
    """Shrink gaps [R, F] with this variance towards each kind's mean over rounds, as far as they are uncertain."""
    mean = seen.mean(0)
    scatter = (seen - mean).square().sum(0)
    if len(seen) < 4:
        return seen
    kept = (1 - (len(seen) - 3) * variance / scatter.clamp(min=1e-30)).clamp(min=0)
    return mean + kept * (seen - mean)
