"""A small U-Net: one score a class and pixel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, require_choice, require_count, require_non_negative, require_positive

_ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "softplus": nn.Softplus}


class UNet(nn.Module):
    """Ronneberger et al. 2015 (arXiv 1505.04597), with group normalisation, which carries no statistics of the data.

    Parameters
    ----------
    channels : int
        Of the images.
    classes : int
        Scores a pixel.
    widths : sequence of int
        Feature maps a level, from full resolution down; each level halves height and width. Multiples of 4.
    activation : {"relu", "gelu", "softplus"}
        The latter two are twice differentiable.
    mean, deviation : float
        Of the pixels, public constants: the first layer sees (x - mean) / deviation.
    """

    def __init__(
        self, channels: int, classes: int, widths: Sequence[int], activation: str, mean: float, deviation: float
    ) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation
        self.down = nn.ModuleList(_block(a, b, activation) for a, b in pairwise([channels, *widths]))
        self.up = nn.ModuleList(_block(a + b, b, activation) for a, b in pairwise(reversed(widths)))
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, C, H, W] to scores [B, classes, H, W]."""
        kept: list[Tensor] = []
        x = (x - self.mean) / self.deviation
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            kept.append(x)
        for block, skip in zip(self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat([self.grow(x), skip], 1))
        scores: Tensor = self.head(x)
        return scores


def unet(
    input_shape: Sequence[int],
    outputs: int,
    *,
    widths: Sequence[int] = (16, 24, 32),
    activation: str = "relu",
    mean: float = 0.0,
    deviation: float = 1.0,
) -> nn.Module:
    """A small U-Net for a class a pixel; height and width must be divisible by 2 at every level but the first."""
    require_choice("activation", activation, _ACTIVATIONS)
    if not widths or any(require_count("widths", w) % 4 for w in widths):
        raise FieldError("widths", list(widths), "must be multiples of 4, one a level")
    step = 1 << (len(widths) - 1)
    if len(input_shape) != 3 or any(side % step or side < 2 * step for side in input_shape[1:]):
        raise FieldError("input_shape", tuple(input_shape), f"must be (channels, height, width), multiples of {step}")
    require_non_negative("mean", mean)
    return UNet(input_shape[0], outputs, list(widths), activation, mean, require_positive("deviation", deviation))


def _block(before: int, after: int, activation: str) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a in (before, after):
        parts += [nn.Conv2d(a, after, 3, padding=1, bias=False), nn.GroupNorm(4, after), _ACTIVATIONS[activation]()]
    return nn.Sequential(*parts)
