"""Layer that scales inputs inside a model: by a public constant, or each example by its own values.

Nothing here is learned or computed from several examples, so no privacy promise depends on it. Noise of one size in all
directions harms least if inputs lie around 0.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from fedveil.errors import require_choice

MIDDLE = 0.5  # middle of declared ranges, which are scaled to 0 to 1
FLAT = (
    0.05  # added to an example's own deviation, so that the noise of a flat image is not amplified
)

Scaling = Literal["given", "centred", "standardised"]
SCALINGS = ("given", "centred", "standardised")


class ScaledInputs(nn.Module):
    """First layer of a model, without parameters, that scales inputs.

    Parameters
    ----------
    scaling : {"centred", "standardised"}
        ``"centred"``: subtract one half, for inputs declared to lie within 0 and 1. ``"standardised"``: subtract each
        example's own mean, and divide by its own deviation plus 0.05.

    Examples
    --------
    >>> ScaledInputs("centred")(torch.tensor([[0.0, 1.0]]))
    tensor([[-0.5000,  0.5000]])
    """

    def __init__(self, scaling: Scaling) -> None:
        super().__init__()
        self.scaling = require_choice("inputs", scaling, SCALINGS[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Scale examples x [B, ...]."""
        if self.scaling == "centred":
            return x - MIDDLE
        axes = tuple(range(1, x.dim()))
        deviation, mean = torch.std_mean(x, dim=axes, keepdim=True, correction=0)
        return (x - mean) / (deviation + FLAT)
