"""Small U-Net for segmentation, and a trivial detector of tampered pixels to compare it with."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, pad, pixel_shuffle, pixel_unshuffle

from fedveil.errors import (
    FieldError,
    require_choice,
    require_count,
    require_non_negative,
    require_positive,
)

_ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "softplus": nn.Softplus}
_SECOND = [0, 1, -2, 1, 0]
_FILTERS = torch.tensor(
    [
        [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0], _SECOND, [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]],
        [[0, 0, v, 0, 0] for v in _SECOND],
        [[0, 0, 0, 0, 0], [0, -1, 2, -1, 0], [0, 2, -4, 2, 0], [0, -1, 2, -1, 0], [0, 0, 0, 0, 0]],
        [
            [-1, 2, -2, 2, -1],
            [2, -6, 8, -6, 2],
            [-2, 8, -12, 8, -2],
            [2, -6, 8, -6, 2],
            [-1, 2, -2, 2, -1],
        ],
    ],
    dtype=torch.float32,
)
_GAIN, _MOST = (
    20.0,
    3.0,
)  # range of residuals, a few hundredths of that of pixels; scaled to the size of pixels, and limited smoothly


class UNet(nn.Module):
    """U-Net of Ronneberger et al. 2015 (arXiv 1505.04597) with group normalisation: one score for each class and pixel.

    Parameters
    ----------
    channels : int
        Number of channels of the images.
    classes : int
        Number of classes, with one score each in every pixel.
    widths : sequence of int
        Number of feature maps in each level, from full resolution down; each level halves height and width. Multiples
        of 4.
    activation : {"relu", "gelu", "softplus"}
        Activation; the latter two are twice differentiable.
    mean, deviation : float
        Public constants: the first layer sees (x - mean) / deviation.
    patch : int
        Side, in pixels, of squares that become the channels of one pixel before the first layer, and squares again
        after the last. This takes patch^2 times less work, and still gives scores for each pixel.
    residuals : bool
        Whether the first layer also sees each channel through four fixed high-pass filters. Traces of forgery show
        better there (Fridrich and Kodovsky 2012, 10.1109/TIFS.2012.2190402).
    rank : int
        If above 0: each 3x3 convolution is frozen, and only an added change of this rank is trained.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        widths: Sequence[int],
        activation: str,
        mean: float,
        deviation: float,
        patch: int = 1,
        residuals: bool = False,
        rank: int = 0,
    ) -> None:
        super().__init__()
        self.mean = mean
        self.deviation = deviation
        self.patch = patch
        self.residuals = residuals
        filters = len(_FILTERS) if residuals else 0
        first = channels * patch**2 * (1 + filters)
        self.down = nn.ModuleList()
        for before, after in pairwise([first, *widths]):
            self.down.append(_block(before, after, activation, rank))
        self.up = nn.ModuleList()
        for below, after in pairwise(reversed(widths)):
            self.up.append(_block(below + after, after, activation, rank))
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(widths[0], classes * patch**2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to scores [B, classes, H, W]."""
        kept: list[Tensor] = []
        seen = (x - self.mean) / self.deviation
        if self.residuals:
            seen = torch.cat([seen, _residuals(x)], 1)
        x = pixel_unshuffle(seen, self.patch)
        for level, block in enumerate(self.down):
            if level:
                x = self.pool(x)
            x = block(x)
            kept.append(x)
        for block, skip in zip(self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat([self.grow(x), skip], 1))
        return pixel_shuffle(self.head(x), self.patch)


def unet(
    input_shape: Sequence[int],
    outputs: int,
    *,
    widths: Sequence[int] = (16, 24, 32),
    activation: str = "relu",
    mean: float = 0.0,
    deviation: float = 1.0,
    patch: int = 1,
    residuals: bool = False,
    frozen: int = 0,
    rank: int = 0,
) -> nn.Module:
    """Build a small U-Net. Height and width must be divisible by `patch`, and then by 2 for each level after the first.

    Two options reduce the number of noised parameters. The first `frozen` levels on the way down are not trained.
    Convolutions learn only a change of low `rank` (at least 1; 0: they are trained whole).
    """
    require_count("rank", rank, least=0)
    require_choice("activation", activation, _ACTIVATIONS)
    are_multiples = all(require_count("widths", width) % 4 == 0 for width in widths)
    if not widths or not are_multiples:
        raise FieldError("widths", list(widths), "must be multiples of 4, one a level")
    step = require_count("patch", patch) << (len(widths) - 1)
    sides_fit = all(side % step == 0 and side >= 2 * step for side in input_shape[1:])
    if len(input_shape) != 3 or not sides_fit:
        raise FieldError(
            "input_shape",
            tuple(input_shape),
            f"must be (channels, height, width), multiples of {step}",
        )
    require_non_negative("mean", mean)
    require_positive("deviation", deviation)
    if require_count("frozen", frozen, least=0) > len(widths):
        raise FieldError("frozen", frozen, f"must be at most {len(widths)}, the number of levels")
    net = UNet(
        input_shape[0], outputs, list(widths), activation, mean, deviation, patch, residuals, rank
    )
    net.down[:frozen].requires_grad_(False)
    return net


class Sharpness(nn.Module):
    """Trivial detector of tampering, which uses only the sharpness of edges around a pixel."""

    def __init__(self, classes: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.head = nn.Conv2d(2, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to scores [B, classes, H, W]."""
        edges = _residuals(x.mean(1, keepdim=True))[:, 2:3].abs()
        mean = avg_pool2d(edges, self.window, 1, self.window // 2, count_include_pad=False)
        scores: Tensor = self.head(torch.cat([mean, mean.sqrt()], 1))
        return scores


def sharpness(
    input_shape: Sequence[int],
    outputs: int,
    *,
    window: int = 9,
) -> nn.Module:
    """Build a trivial detector of tampered pixels, from the sharpness of edges in an odd `window`; 6 parameters."""
    if require_count("window", window) % 2 == 0:
        raise FieldError("window", window, "must be odd")
    if len(input_shape) != 3 or min(input_shape[1:]) < window:
        raise FieldError(
            "input_shape",
            tuple(input_shape),
            f"must be (channels, height, width), at least {window}",
        )
    return Sharpness(outputs, window)


def _residuals(x: Tensor) -> Tensor:
    """Filter images [B, C, H, W] (at least 3x3) with four high-pass filters: residuals [B, 4 C, H, W] in (-3, 3)."""
    scaled = _FILTERS / _FILTERS.amin((1, 2), keepdim=True).abs()
    filters = scaled[:, None].to(x.device, x.dtype)
    padded = pad(x, (2, 2, 2, 2), mode="replicate")
    residuals = conv2d(padded.flatten(0, 1)[:, None], filters)
    by_image = residuals.reshape(len(x), -1, *x.shape[2:])
    return _MOST * torch.tanh(_GAIN / _MOST * by_image)


class _LowRank(nn.Module):
    """Frozen convolution plus a trained one of low rank (Hu et al. 2021, arXiv 2106.09685)."""

    def __init__(self, before: int, after: int, rank: int) -> None:
        super().__init__()
        self.fixed = nn.Conv2d(before, after, 3, padding=1, bias=False).requires_grad_(False)
        self.reduce = nn.Parameter(torch.randn(rank, before, 3, 3) / (3 * before**0.5))
        self.expand = nn.Parameter(torch.zeros(after, rank, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        reduced = conv2d(x, self.reduce, padding=1)
        return torch.add(self.fixed(x), conv2d(reduced, self.expand))


def _block(before: int, after: int, activation: str, rank: int) -> nn.Sequential:
    """Return two convolutions, each with its normalisation and activation."""
    parts: list[nn.Module] = []
    for inputs in (before, after):
        if rank:
            parts.append(_LowRank(inputs, after, rank))
        else:
            parts.append(nn.Conv2d(inputs, after, 3, padding=1, bias=False))
        parts.append(nn.GroupNorm(4, after))
        parts.append(_ACTIVATIONS[activation]())
    return nn.Sequential(*parts)
