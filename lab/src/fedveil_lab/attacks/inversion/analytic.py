"""Read inputs (from a dense first layer) and labels (from the last layer) directly from a client's update."""

from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, kind_of
from fedveil_lab.attacks.inversion.knowledge import (
    INVERSIONS,
    Inversion,
    Reconstruction,
    ServerKnowledge,
)
from fedveil_lab.attacks.inversion.matching import Matching
from fedveil_lab.attacks.observation import Received


def recover_labels(
    received: Received, known: ServerKnowledge, generator: torch.Generator
) -> Tensor:
    """Find the labels on which a client trained from the update of the last layer; int64 [N], ascending.

    Labels that `known` already holds are returned.

    Sources: Zhao et al. 2020 (iDLG, arXiv 2001.02610) for one example, Geng et al. 2021 (arXiv 2110.09074) for counts.

    Threat model: honest-but-curious server; knows the training.

    With cross-entropy the gradient of the last bias is the mean of p - onehot(y), and that of the last weight (p - y)
    h'. One example: the left singular vector of the last layer's update has its largest entry at y. (The printed rule,
    the sign of the entry, is the same without noise; this one also works under noise and needs no bias.) N examples:
    class c occurs N (mean p_c - s g_c) times. Here g is the update of the last bias. The mean of p is measured on dummy
    examples, before and after training. s is 1 / (lr steps). If updates are clipped, s is the scale that fits whole
    counts best.

    Raises
    ------
    FieldError
        If the model does not end in a shared dense layer.
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
        matching = Matching(received, known)
        ends = [received.start]
        if not bool(known.deviations().any()):
            ends.append(received.model)
        mean = torch.stack(
            [matching.outputs(v.double(), dummies.double()).softmax(1).mean(0) for v in ends]
        ).mean(0)
    gradient = -change[:, -1]
    cut = known.clip is not None or known.example_clip is not None
    steps = known.local.epochs * ceil(known.examples / known.local.batch_size)
    usual = 1 / (known.local.rate() * steps)
    if cut:
        scales = usual * torch.logspace(0, 4, 400, dtype=torch.float64)
    else:
        scales = torch.tensor([usual])
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
    """Return the last dense layer's update [classes, features (+ 1)], the bias last."""
    dense = [name for name, part in known.model.named_modules() if isinstance(part, nn.Linear)]
    weight, bias = _shared(update, known, dense[-1]) if dense else (None, None)
    if weight is None:
        raise FieldError(
            "model",
            kind_of(known.model),
            "labels are read from a dense last layer: give `labels`",
        )
    if bias is not None:
        return torch.cat([weight, bias[:, None]], 1)
    if known.examples > 1:
        accepted = "counts are read from the last layer's bias: give `labels`"
        raise FieldError("model", kind_of(known.model), accepted)
    return weight


def _shared(
    update: Tensor, known: ServerKnowledge, name: str
) -> tuple[Tensor | None, Tensor | None]:
    """Return the updates of a layer's weight and bias; None for one that does not exist or is not shared."""
    views = known.layout.views(update)
    weight, bias = (views.get(f"{name}.{leaf}".lstrip(".")) for leaf in ("weight", "bias"))
    return weight, bias


def _whole(wanted: Tensor, total: int) -> Tensor:
    """Round to whole counts that add up to `total`, nearest to the wanted ones: largest remainders."""
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


@INVERSIONS.register("analytic")
@dataclass(frozen=True, kw_only=True)
class Analytic(Inversion):
    """Attack that reads the input directly from the update of a dense first layer.

    Analytic inversion: the update of a dense first layer is the input, times a factor that the bias's update gives.

    Sources: Phong et al. 2018 (IEEE TIFS 13(5)); Geiping et al. 2020 (arXiv 2003.14053, proposition 3.1).

    Threat model: honest-but-curious server; receives the client's own model, knows the architecture. Ignores clipping:
    a common factor cancels. One example, or the average of several.

        dL/dW = D x',  dL/db = D          =>  [dL/dW | dL/db] = D [x | 1]', of rank 1

    Noise-aware: the nearest matrix of rank 1 (first singular vectors) is the most likely one under equal Gaussian
    noise; every row holds the same x, so a wider layer leaks under more noise. The vector is scaled so that its last
    entry is 1.

    Parameters
    ----------
    seed : int
        Seed of the dummy examples, from which class probabilities are estimated if there are several examples.
    """

    seed: int = 0

    summary: ClassVar[str] = "first singular vectors of a dense first layer's update"

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        change = first_layer(received.update.to(torch.float64), known)
        vector = torch.linalg.svd(change, full_matrices=False).Vh[0]
        low, high = known.pixels
        last = vector[-1]
        image = vector[:-1] / (
            last if last.abs() > 1e-12 else vector.abs().max() / high * last.sign()
        )
        labels = recover_labels(received, known, torch.Generator().manual_seed(self.seed))
        image = torch.nan_to_num(image).clamp(low, high).view(known.shape)
        return Reconstruction(image.expand(known.examples, *known.shape), labels, float("nan"))


def first_layer(update: Tensor, known: ServerKnowledge) -> Tensor:
    """Return the update [outputs, inputs + 1] of the dense layer that sees the examples, its bias last.

    Raises
    ------
    FieldError
        If the first layer with parameters is not dense, has no bias or is not shared.
    """
    name, part = next(
        (name, part)
        for name, part in known.model.named_modules()
        if list(part.parameters(recurse=False))
    )
    weight, bias = _shared(update, known, name)
    dense = isinstance(part, nn.Linear) and part.in_features == prod(known.shape)
    if not dense or weight is None or bias is None:
        accepted = "the first layer must be dense on the whole input, with a bias"
        raise FieldError("model", kind_of(known.model), accepted)
    return torch.cat([weight, bias[:, None]], 1)
