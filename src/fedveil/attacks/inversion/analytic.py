"""Analytic inversion: the update of a dense first layer is the input, times a factor that its bias tells.

Sources: Phong et al. 2018 (IEEE TIFS 13(5)); Geiping et al. 2020 (arXiv 2003.14053, proposition 3.1).

Threat model: honest-but-curious server; receives the client's own model, knows the architecture. Ignores clipping:
a common factor cancels. One example, or the average of several.

    dL/dW = D x',  dL/db = D          =>  [dL/dW | dL/db] = D [x | 1]', of rank 1

Noise-aware: the nearest matrix of rank 1 (first singular vectors) is the most likely one under equal Gaussian noise;
every row tells the same x, so a wider layer leaks longer. The vector is scaled so that its last entry is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedveil.attacks.inversion.knowledge import Inversion, Reconstruction, ServerKnowledge
from fedveil.attacks.inversion.labels import recover_labels
from fedveil.attacks.observation import Received
from fedveil.errors import FieldError


@dataclass(frozen=True, kw_only=True)
class Analytic(Inversion):
    """Read the input off a dense first layer.

    Parameters
    ----------
    seed : int
        Of the dummy examples that stand in for class probabilities with several examples.
    """

    seed: int = 0

    name: ClassVar[str] = "analytic"
    summary: ClassVar[str] = "first singular vectors of a dense first layer's update"

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        change = first_layer(received.update.to(torch.float64), known)
        vector = torch.linalg.svd(change, full_matrices=False).Vh[0]
        low, high = known.pixels
        last = vector[-1]
        image = vector[:-1] / (last if last.abs() > 1e-12 else vector.abs().max() / high * last.sign())
        labels = recover_labels(received, known, torch.Generator().manual_seed(self.seed))
        image = torch.nan_to_num(image).clamp(low, high).view(known.shape)
        return Reconstruction(image.expand(known.examples, *known.shape), labels, float("nan"))


def first_layer(update: Tensor, known: ServerKnowledge) -> Tensor:
    """The update [outputs, inputs + 1] of the dense layer that sees the examples, its bias last.

    Raises
    ------
    FieldError
        If the first layer with parameters is not dense, has no bias or is not shared.
    """
    inputs = int(torch.tensor(known.shape).prod())
    for name, part in known.model.named_modules():
        if not list(part.parameters(recurse=False)):
            continue
        views = known.layout.views(update)
        keys = [f"{name}.{leaf}".lstrip(".") for leaf in ("weight", "bias")]
        if isinstance(part, nn.Linear) and part.in_features == inputs and all(k in views for k in keys):
            return torch.cat([views[keys[0]], views[keys[1]][:, None]], 1)
        break
    raise FieldError(
        "model", type(known.model).__name__, "the first layer must be dense on the whole input, with a bias"
    )
