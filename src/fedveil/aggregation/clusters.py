"""What combines models where no rule does: group privacy's k-means, and FedRE's weights layer by layer.

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

_PAIRED = 64  # up to this many vectors their distances are taken once; above, every iteration reads the models again
_LEAST = 1 << 8  # columns of a block


def cluster_means(models: Tensor, hypotheses: Tensor, iterations: int = 300) -> tuple[Tensor, Tensor]:
    """Cluster models around k hypotheses and average each cluster.

    Parameters
    ----------
    models : Tensor
        [n, d], received models.
    hypotheses : Tensor
        [k, d], the initial centres.
    iterations : int
        At most this many of Lloyd's.

    Returns
    -------
    centres : Tensor
        [k, d]; a hypothesis without members is carried over unchanged.
    labels : Tensor
        [n], int64: each model's cluster. Nothing is drawn: the same input has the same clusters.

    Notes
    -----
    Fewer models than hypotheses is legal, which scikit-learn's KMeans refuses, and it moves an empty cluster to a
    far-away point instead of keeping the hypothesis: hence Lloyd's iteration here. A centre is a mean of models, so a
    few models (long ones, as a rule) are clustered by their distances from each other alone.
    """
    if models.dim() != 2 or hypotheses.dim() != 2 or models.shape[1] != hypotheses.shape[1]:
        raise FieldError("models", tuple(models.shape), f"must be [n, d] with hypotheses {tuple(hypotheses.shape)}")
    n, k = len(models), len(hypotheses)
    lloyd = (_Pairs if n + k <= _PAIRED else _Blocks)(models, hypotheses)
    labels = torch.full((n,), -1, dtype=torch.int64)
    twins = [next(i for i in range(k) if torch.equal(hypotheses[i], h)) for h in hypotheses]
    for number in range(iterations):
        distances = lloyd.distances(member_weights(labels, k))
        if number == 0:  # rounding must not decide between two equal hypotheses
            distances = distances[:, twins]
        assigned = torch.from_numpy(np.argmin(distances.numpy(), axis=1))  # ties go to the lowest index
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


def halves(models: Tensor, start: Tensor) -> Tensor:
    """Which of the models [n, d] trained from one start [d] are the second half of their cluster, [n] bool.

    Cut at the median along the direction in which their steps differ most. It is found from the products of two
    clients' steps alone: independent noises are nearly at right angles in many dimensions, so that the products keep
    the steps where the steps' own lengths are mostly noise. Of fewer than two models there is no second half.
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
    """Weights of the clients, layer by layer, from public scores.

    Parameters
    ----------
    scores : Tensor
        [n, L], S_l of each received model on the public set.
    normalised : bool
        True: proportional to 1/alpha with alpha = softmax over clients of S, normalised to sum to 1, which is exactly
        softmax(-S). False: the printed 1 / (K alpha), which sums to about K (the step is about K times too long).
        Normalised, a model so extreme that its score is infinite or no number weighs 0.

    Returns
    -------
    Tensor
        [n, L] float64.
    """
    usable = torch.isfinite(scores)
    if scores.dim() != 2 or (scores < 0).any() or not (usable.any(0) if normalised else usable).all():
        accepted = "must be finite, at least 0, and [n, L]; where noise drowned the models, raise privacy.epsilon"
        raise FieldError("public_scores", tuple(scores.shape), accepted)
    s = torch.where(usable, scores.to(torch.float64), torch.inf)
    if normalised:
        return torch.softmax(-s, dim=0)
    weights = torch.exp(-torch.log_softmax(s, dim=0)) / len(s)
    if not torch.isfinite(weights).all():
        raise FieldError("public_scores", float(s.max()), "are too large for the printed 1/alpha; normalise")
    return weights


class _Pairs:
    """Centres that move, as weights of the n models and k hypotheses: |x - Sum w y|^2 = w.D(x, y) - w.D(y, y).w / 2."""

    def __init__(self, models: Tensor, hypotheses: Tensor) -> None:
        self._squared = squared_distances(models, hypotheses, close=1e-3)
        self._weights = torch.eye(len(self._squared), dtype=torch.float64)[len(models) :]

    def distances(self, shares: Tensor) -> Tensor:
        """Move each centre to the mean of its members; squared distances to the centres [n, k], up to one a model.

        A centre without members stays where it is. One product with the matrix of distances.
        """
        moved, n = shares.any(1), shares.shape[1]
        self._weights[moved] = torch.nn.functional.pad(shares[moved], (0, len(shares)))
        mixed = self._weights @ self._squared
        return mixed[:, :n].T - (mixed * self._weights).sum(1) / 2


class _Blocks:
    """Centres that move, as vectors: each iteration passes over the models once."""

    def __init__(self, models: Tensor, hypotheses: Tensor) -> None:
        self._models, self._centres = models, hypotheses.to(torch.float64, copy=True)

    def distances(self, shares: Tensor) -> Tensor:
        """As in `_Pairs`, by float32 products around the middle of the centres: raw ones cancel for close models.

        The middle is a median, so that one far centre does not blur the others.
        """
        moved, total = shares.any(1), torch.zeros(shares.T.shape, dtype=torch.float64)
        shares = shares[moved].to(torch.float32)
        for columns in blocks_of(len(total), self._models.shape[1], _LEAST):
            centres = self._centres[:, columns]
            middle = middle_mean(centres, (len(centres) - 1) // 2).to(self._models.dtype)
            block = (self._models[:, columns] - middle).to(torch.float32)
            centres -= middle
            centres[moved] = (shares @ block).to(torch.float64)
            total.add_(centres.square().sum(1)).sub_(block @ centres.T.to(torch.float32), alpha=2)
            centres += middle
        return total


def member_weights(labels: Tensor, k: int) -> Tensor:
    """Weights [k, n] of members in the mean of their cluster, by their labels [n]; zeros for one without members."""
    member = (labels == torch.arange(k)[:, None]).to(torch.float64)
    return member / member.sum(1, keepdim=True).clamp(min=1.0)
