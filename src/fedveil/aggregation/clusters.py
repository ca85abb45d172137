"""k-means over received models, started at the hypotheses (group-privacy paper, Algorithm 1, lines 9 and 10)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedveil.errors import FieldError


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
        [n], int64: each model's cluster.

    Notes
    -----
    Fewer models than hypotheses is legal, which scikit-learn's KMeans refuses, and it moves an empty cluster to a
    far-away point instead of keeping the hypothesis: hence Lloyd's iteration here.
    """
    if models.dim() != 2 or hypotheses.dim() != 2 or models.shape[1] != hypotheses.shape[1]:
        raise FieldError("models", tuple(models.shape), f"must be [n, d] with hypotheses {tuple(hypotheses.shape)}")
    points = models.to(torch.float64)
    centres = hypotheses.to(torch.float64).clone()
    labels = torch.full((len(points),), -1, dtype=torch.int64)
    for _ in range(iterations):
        # differences, not a Gram expansion: close models must not cancel
        distances = torch.stack([(points - centre).square().sum(1) for centre in centres], dim=1)
        assigned = torch.from_numpy(np.argmin(distances.numpy(), axis=1))  # ties go to the lowest index
        if torch.equal(assigned, labels):
            break
        labels = assigned
        for j in range(len(centres)):
            if (labels == j).any():
                centres[j] = points[labels == j].mean(0)
    result = hypotheses.clone()
    for j in range(len(centres)):
        if (labels == j).any():
            result[j] = centres[j].to(models.dtype)
    return result, labels
