"""FedRE's perturbation-aware weights: PDA-PAM (FedRE, equations 10 and 11)."""

import torch
from torch import Tensor

from fedveil.errors import FieldError


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
