"""See-Through's group consistency for larger batches: several reconstructions at once, each drawn to their mean.

Source: Yin, Mallya, Vahdat, Alvarez, Kautz and Molchanov 2021 (See Through Gradients, arXiv 2104.07586). Images are
registered by the Hungarian method among equal labels, not by optical flow, which small pictures do not need.

Threat model: honest-but-curious server; receives the client's own model, knows how it trained.

    sum over seeds g of [cosine's objective of x_g  +  w |x_g - mean of the registered x_h|^2 / pixels]

The seed with the least cosine distance is returned. A group of G costs G times as much as `cosine`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.attacks.inversion.cosine import Cosine
from fedveil.attacks.inversion.knowledge import Reconstruction, ServerKnowledge
from fedveil.attacks.inversion.labels import recover_labels
from fedveil.attacks.inversion.matching import Target, dummy, image_prior, signed_adam
from fedveil.attacks.inversion.metrics import matched
from fedveil.attacks.inversion.simulate import Simulator
from fedveil.attacks.observation import Received


@dataclass(frozen=True, kw_only=True)
class SeeThrough(Cosine):
    """Reconstruct from several seeds that agree with each other; see `Cosine` for the other parameters.

    Parameters
    ----------
    group : int
        Seeds.
    consistency : float
        Weight w.
    register_every : int
        Steps between registrations; the group runs free before the first.
    """

    group: int = 3
    consistency: float = 0.05
    register_every: int = 100

    name: ClassVar[str] = "see-through"
    summary: ClassVar[str] = "as cosine, from several seeds drawn to their mean"

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        generator = torch.Generator().manual_seed(self.seed)
        simulator = Simulator(known, received.start, dtype=torch.float32)
        target = Target.of(received.update, known, torch.float32)
        labels = recover_labels(received, known, generator)
        first = torch.stack([dummy(known, known.examples, generator, torch.float32) for _ in range(self.group)])
        mean, calls = first.mean(0), 0

        def fit(x: Tensor) -> Tensor:
            return target.cosine(simulator.update(x[None], labels))

        def objective(group: Tensor) -> Tensor:
            nonlocal mean, calls
            calls += 1
            if calls % self.register_every == 0:
                mean = _registered(group.detach(), labels)
            total = group.new_zeros(())
            for x in group:
                total = total + fit(x) + image_prior(x, target, known, self.variation)
                if calls >= self.register_every:
                    total = total + self.consistency * (x - in_order(mean, x.detach(), labels)).square().mean()
            return total

        lr = self.lr * known.data_range
        group, _ = signed_adam(objective, first, known.pixels, steps=self.steps, lr=lr)
        fits = torch.stack([fit(x).detach() for x in group])
        best = int(fits.argmin())
        return Reconstruction(group[best].to(torch.float64), labels, float(fits[best]), self.group - 1)


def in_order(images: Tensor, like: Tensor, labels: Tensor) -> Tensor:
    """The images [N, ...] in the order of those they resemble most, within equal labels."""
    result = images.clone()
    for label in set(labels.tolist()):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows) > 1:
            result[rows] = images[rows[matched(like[rows], images[rows])]]
    return result


def _registered(group: Tensor, labels: Tensor) -> Tensor:
    """The mean of a group [G, N, ...] in the order of its first member."""
    return torch.stack([in_order(x, group[0], labels) for x in group]).mean(0)
