"""Combinations of models without a rule: k-means for group privacy, and FedRE's weights for each layer.

k-means starts at the hypotheses (group-privacy paper, Algorithm 1, lines 9 and 10); the weights are PDA-PAM (FedRE,
equations 10 and 11).
"""

import numpy as np
import torch
from torch import Tensor

from fedveil.aggregation.ranks import middle_mean
from fedveil.calibration.distance import squared_distances
from fedveil.clipping import blocks_of
from fedveil.errors import FieldError

_PAIRED = 64  # most vectors whose distances are computed once; with more, every iteration reads the models again
_LEAST = 1 << 8  # least columns of a block


def cluster_means(
    models: Tensor, hypotheses: Tensor, iterations: int = 300
) -> tuple[Tensor, Tensor]:
    """Cluster models by k-means that starts at k hypotheses, and average each cluster.

    Parameters
    ----------
    models : Tensor
        [n, d], received models.
    hypotheses : Tensor
        [k, d], initial centres.
    iterations : int
        Most iterations of Lloyd's algorithm.

    Returns
    -------
    centres : Tensor
        [k, d]; a hypothesis without members is carried over unchanged.
    labels : Tensor
        [n], int64, cluster of each model. There is no randomness: equal inputs give equal clusters.

    Notes
    -----
    Lloyd's iteration is implemented here, because scikit-learn's KMeans refuses fewer models than hypotheses, and moves
    an empty cluster to a far-away point. A centre is a mean of models, so a few models are clustered by their pairwise
    distances alone.
    """
    matrices = models.dim() == hypotheses.dim() == 2
    if not matrices or models.shape[1] != hypotheses.shape[1]:
        raise FieldError(
            "models",
            tuple(models.shape),
            f"must be [n, d] with hypotheses {tuple(hypotheses.shape)}",
        )
    n, k = len(models), len(hypotheses)
    few = n + k <= _PAIRED
    lloyd = _Pairs(models, hypotheses) if few else _Blocks(models, hypotheses)
    labels = torch.full((n,), -1, dtype=torch.int64)
    first_equal = _first_equal(hypotheses)
    for number in range(iterations):
        distances = lloyd.distances(member_weights(labels, k))
        if number == 0:  # rounding must not decide between two equal hypotheses
            distances = distances[:, first_equal]
        assigned = torch.from_numpy(
            np.argmin(distances.numpy(), axis=1)
        )  # ties go to the lowest index
        if torch.equal(assigned, labels):
            break
        labels = assigned
    result = hypotheses.clone()
    shares = member_weights(labels, k).to(models.dtype)
    for columns in blocks_of(n, models.shape[1], _LEAST):
        means = shares @ models[:, columns]
        for j in shares.any(1).nonzero().flatten().tolist():
            result[j, columns] = means[j]
    return result, labels


def _first_equal(rows: Tensor) -> list[int]:
    """Return for each row the index of the first row that is equal to it."""
    indices = []
    for row in rows:
        equal = [torch.equal(other, row) for other in rows]
        indices.append(equal.index(True))
    return indices


def halves(models: Tensor, start: Tensor) -> Tensor:
    """Divide a cluster of models [n, d], trained from one start [d], in two halves; return a mask [n] of the second half.

    The cluster is cut at the median along the direction in which the steps differ most. This direction is computed from
    products of two different clients' steps. In many dimensions independent noises are nearly orthogonal, so these
    products show the steps; a step's own length is mostly noise. Fewer than two models have no second half.
    """
    n = len(models)
    if n < 2:
        return torch.zeros(n, dtype=torch.bool)
    squared = squared_distances(models, start[None])
    lengths = squared[n, :n]
    products = (lengths[:, None] + lengths - squared[:n, :n]).fill_diagonal_(0.0)
    products += torch.diag(products.sum(1) / (n - 1))
    products -= products.mean(1, keepdim=True)
    direction = torch.linalg.eigh(products - products.mean(0))[1][:, -1]
    return torch.gt(direction, direction.median())


def perturbation_weights(scores: Tensor, normalised: bool = True) -> Tensor:
    """Compute the weights of the clients, layer by layer, from public scores.

    Parameters
    ----------
    scores : Tensor
        [n, L], S_l of each received model on the public set.
    normalised : bool
        True: weights proportional to 1/alpha that sum to 1, with alpha = softmax over clients of S. They equal
        softmax(-S). A model with an infinite or NaN score then has weight 0. False: the printed 1 / (K alpha). These
        weights sum to about K, so the step is about K times too long.

    Returns
    -------
    Tensor
        [n, L] float64.
    """
    usable = torch.isfinite(scores)
    enough = usable.any(0) if normalised else usable
    if scores.dim() != 2 or (scores < 0).any() or not enough.all():
        accepted = "must be finite, at least 0, and [n, L]; where noise drowned the models, raise privacy.epsilon"
        raise FieldError("public_scores", tuple(scores.shape), accepted)
    s = torch.where(usable, scores.to(torch.float64), torch.inf)
    if normalised:
        return torch.softmax(-s, dim=0)
    weights = torch.exp(-torch.log_softmax(s, dim=0)) / len(s)
    if not torch.isfinite(weights).all():
        raise FieldError(
            "public_scores", float(s.max()), "are too large for the printed 1/alpha; normalise"
        )
    return weights


class _Pairs:
    """Centres of k-means as weights w of the n models and k hypotheses y.

    Distances follow from |x - Sum w y|^2 = w.D(x, y) - w.D(y, y).w / 2.
    """

    def __init__(self, models: Tensor, hypotheses: Tensor) -> None:
        self._squared = squared_distances(models, hypotheses, close=1e-3)
        self._weights = torch.eye(len(self._squared), dtype=torch.float64)[len(models) :]

    def distances(self, shares: Tensor) -> Tensor:
        """Move each centre to the mean of its members, and return the squared distances to the centres.

        Returns
        -------
        Tensor
            [n, k], up to a constant for each model. A centre without members stays.
        """
        moved, n = shares.any(1), shares.shape[1]
        without_hypotheses = torch.nn.functional.pad(shares[moved], (0, len(shares)))
        self._weights[moved] = without_hypotheses
        mixed = self._weights @ self._squared
        return mixed[:, :n].T - (mixed * self._weights).sum(1) / 2


class _Blocks:
    """Centres of k-means as vectors; each iteration reads all models once."""

    def __init__(self, models: Tensor, hypotheses: Tensor) -> None:
        self._models, self._centres = models, hypotheses.to(torch.float64, copy=True)

    def distances(self, shares: Tensor) -> Tensor:
        """Move the centres and return distances as `_Pairs.distances` does, from float32 products.

        The middle centre is subtracted from models and centres first: without it products would cancel for close models.
        The middle is a median, so that one far centre does not reduce the precision of the others.
        """
        moved = shares.any(1)
        total = torch.zeros(shares.T.shape, dtype=torch.float64)
        shares = shares[moved].to(torch.float32)
        for columns in blocks_of(len(total), self._models.shape[1], _LEAST):
            centres = self._centres[:, columns]
            middle = middle_mean(centres, (len(centres) - 1) // 2).to(self._models.dtype)
            block = (self._models[:, columns] - middle).to(torch.float32)
            centres -= middle
            centres[moved] = (shares @ block).to(torch.float64)
            products = block @ centres.T.to(torch.float32)
            total.add_(centres.square().sum(1)).sub_(products, alpha=2)
            centres += middle
        return total


def member_weights(labels: Tensor, k: int) -> Tensor:
    """Return the weights [k, n] of the models in the mean of each cluster, from labels [n]; 0 for an empty cluster."""
    member = (labels == torch.arange(k)[:, None]).to(torch.float64)
    return member / member.sum(1, keepdim=True).clamp(min=1.0)
