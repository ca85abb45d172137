"""What membership attacks look at: a model's confidence in records, and how an update agrees with their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedveil.attacks.observation import Received
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import predict
from fedveil.learning.losses import evaluating, loss_of, outputs_of

_NUMBERS = 1 << 24  # of a block of single gradients


def confidence(model: nn.Module, layout: Layout, vectors: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Log-odds of the true class, log(p / (1 - p)), of classification models [m, d] on records x, y [N].

    Returns
    -------
    Tensor
        [m, N] float64. The cross-entropy is its softplus with the sign turned: see `loss_of_confidence`.
    """
    rows = []
    for vector in vectors:
        logits = predict(model, layout, vector, x).to(torch.float64)
        own = logits.gather(1, y[:, None])[:, 0]
        rest = logits.scatter(1, y[:, None], -torch.inf).logsumexp(1)
        rows.append(own - rest)
    return torch.stack(rows)


def loss_of_confidence(odds: Tensor) -> Tensor:
    """Cross-entropy (nats) from log-odds: -log p = softplus(-odds)."""
    return torch.nn.functional.softplus(-odds)


def agreement(
    model: nn.Module, layout: Layout, start: Tensor, updates: Tensor, x: Tensor, y: Tensor, loss: str = "cross_entropy"
) -> Tensor:
    """Cosine of each update [K, d] with each record's own step, minus the gradient of its loss at the start [d].

    Returns
    -------
    Tensor
        [K, N] float64; 0 where either is zero.
    """
    function = loss_of(loss)

    def single(vector: Tensor, one: Tensor, label: Tensor) -> Tensor:
        return function(outputs_of(functional_call(model, layout.unflatten(vector), (one[None],))), label[None])

    directions = torch.nn.functional.normalize(updates.to(torch.float64), dim=1)
    size, parts = max(1, _NUMBERS // len(start)), []
    with evaluating(model):
        for a, b in zip(torch.split(x, size), torch.split(y, size), strict=True):
            steps = -vmap(grad(single), in_dims=(None, 0, 0))(start, a.to(start.dtype), b)
            parts.append(directions @ torch.nn.functional.normalize(steps.to(torch.float64), dim=1).T)
    return torch.cat(parts, dim=1)


def by_round_and_client(received: Sequence[Received]) -> tuple[list[int], list[list[Received]]]:
    """Partitions that replied in every round, ascending, and their replies, [rounds][clients].

    Raises
    ------
    FieldError
        If nobody replied in every round.
    """
    rounds = sorted({r.round for r in received})
    found = {(r.round, r.partition): r for r in received}
    partitions = sorted({p for _, p in found if all((r, p) in found for r in rounds)})
    if not partitions:
        raise FieldError("received", len(received), "holds no client that replied in every round")
    return partitions, [[found[r, p] for p in partitions] for r in rounds]
