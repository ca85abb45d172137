"""Source inference: which client holds a record that is known to be a member of somebody's data.

Source: Hu et al. 2021, "Source inference attacks in federated learning" (arXiv 2109.05659): the client whose model has
the least loss on it. Chance is 1 / K.

Threat model: honest-but-curious server that received K models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedveil.attacks.statistics import rate
from fedveil.attacks.verdict import Verdict
from fedveil.errors import FieldError


def guess(measure: Tensor) -> Tensor:
    """Index [N] of the client whose measure [K, N] (minus the loss, say) is largest."""
    return measure.argmax(0)


def source_inference(measure: Tensor, owner: Tensor, setting: str, attack: str = "source inference") -> Verdict:
    """How many records are put down to their owner.

    Parameters
    ----------
    measure : Tensor
        [K, N], or [R, K, N], of which the mean over rounds counts.
    owner : Tensor
        [N], index of the client that holds each record.
    setting, attack : str
        For reports.
    """
    flat = measure.mean(0) if measure.dim() == 3 else measure
    if len(owner) != flat.shape[1] or int(owner.max()) >= len(flat):
        raise FieldError("owner", tuple(owner.shape), f"must name one of {len(flat)} clients for each record")
    found = rate(int((guess(flat) == owner).sum()), len(owner))
    most = float(torch.bincount(owner).max()) / len(owner)
    return Verdict(
        attack=attack,
        setting=setting,
        figure="top-1 accuracy",
        point=found.point,
        low=found.low,
        high=found.high,
        n=len(owner),
        replication="one record of one run",
        threat="honest-but-curious server",
        details={"chance": 1 / len(flat), "largest client's share": most},
    )
