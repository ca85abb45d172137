"""Which labels a client trained on, from the update of the last layer.

Sources: Zhao et al. 2020 (iDLG, arXiv 2001.02610) for one example, Geng et al. 2021 (arXiv 2110.09074) for counts.

Threat model: honest-but-curious server; knows the training.

With cross-entropy the gradient of the last bias is the mean of p - onehot(y), and that of the last weight (p - y) h'.
One example: the left singular vector of the last layer's update has its largest entry at y. (The printed rule, the sign
of the entry, is the same without noise; this one also works under noise and needs no bias.)
N examples: class c occurs N (mean p_c - s g_c) times, where mean p comes from dummy examples under the model before and
after training and s is 1 / (lr steps) or, where updates are cut, the scale that fits whole counts best.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedveil.attacks.inversion.knowledge import ServerKnowledge
from fedveil.attacks.inversion.simulate import Simulator
from fedveil.attacks.observation import Received
from fedveil.errors import FieldError


def recover_labels(received: Received, known: ServerKnowledge, generator: torch.Generator) -> Tensor:
    """The labels int64 [N], ascending; those of `known` if they are known.

    Raises
    ------
    FieldError
        If the model does not end in a dense layer that is shared.
    """
    if known.labels is not None:
        return known.labels
    change = _last_layer(received.update.to(torch.float64), known)
    if known.examples == 1:
        u = torch.linalg.svd(change, full_matrices=False).U[:, 0]
        return torch.argmax(u.abs()).view(1)
    dummies = known.reference
    if dummies is None:
        low, high = known.pixels
        dummies = low + (high - low) * torch.rand(64, *known.shape, generator=generator)
    with torch.no_grad():
        simulator = Simulator(known, received.start)
        ends = (received.start, received.model) if not bool(known.deviations().any()) else (received.start,)
        mean = torch.stack([simulator.outputs(v.double(), dummies.double()).softmax(1).mean(0) for v in ends]).mean(0)
    gradient = -change[:, -1]
    cut = known.clip is not None or known.example_clip is not None
    usual = 1 / (known.local.rate() * known.steps)
    scales = usual * torch.logspace(0, 4, 400, dtype=torch.float64) if cut else torch.tensor([usual])
    best, counts = float("inf"), torch.zeros(len(mean), dtype=torch.int64)
    for scale in scales.tolist():
        wanted = known.examples * (mean - scale * gradient)
        if cut and float(wanted.clamp(min=0).sum()) > 1.5 * known.examples:
            break  # larger scales ask for still more of some classes, and for fewer than none of others
        whole = _whole(wanted, known.examples)
        misfit = float((wanted - whole).norm() / wanted.norm())
        if misfit < best:
            best, counts = misfit, whole
    return torch.repeat_interleave(torch.arange(len(mean)), counts)


def _last_layer(update: Tensor, known: ServerKnowledge) -> Tensor:
    """The last dense layer's update [classes, features (+ 1)], the bias last."""
    dense = [(name, part) for name, part in known.model.named_modules() if isinstance(part, nn.Linear)]
    shapes = known.layout.shapes
    if not dense or f"{dense[-1][0]}.weight".lstrip(".") not in shapes:
        raise FieldError("model", type(known.model).__name__, "labels are read from a dense last layer: give `labels`")
    name, views = dense[-1][0], known.layout.views(update)
    parts = [views[f"{name}.weight".lstrip(".")]]
    bias = f"{name}.bias".lstrip(".")
    if bias in shapes:
        parts.append(views[bias][:, None])
    elif known.examples > 1:
        raise FieldError(
            "model", type(known.model).__name__, "counts are read from the last layer's bias: give `labels`"
        )
    return torch.cat(parts, 1)


def _whole(wanted: Tensor, total: int) -> Tensor:
    """Whole counts that add up to `total`, nearest to the wanted ones: largest remainders."""
    counts = wanted.clamp(min=0).floor().to(torch.int64)
    rest = wanted - counts
    while int(counts.sum()) > total:
        taken = torch.where(counts > 0, rest, torch.full_like(rest, float("inf"))).argmin()
        counts[taken] -= 1
        rest[taken] += 1
    while int(counts.sum()) < total:
        given = rest.argmax()
        counts[given] += 1
        rest[given] -= 1
    return counts
