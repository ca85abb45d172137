"""EfficientNet-B0 as MONAI builds it, with weights from a user's file: the backbone of the SGA-LDP paper."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedveil.errors import FieldError, kind_of, require_count
from fedveil.registry import optional

SOURCE = "https://github.com/lukemelas/EfficientNet-PyTorch/releases/download/1.0/efficientnet-b0-355c32eb.pth"
BEGINS = "355c32eb"  # the SHA-256 of that file: ImageNet's weights, 21 MB


class FrozenNorm(nn.Module):
    """Batch normalisation with constant statistics; they hold no client's data, and no buffer is shared.

    Parameters
    ----------
    norm : BatchNorm2d
        Layer whose statistics are kept; its scale and shift stay trainable.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        if norm.running_mean is None or norm.running_var is None:
            raise FieldError("norm", kind_of(norm), "must have running statistics")
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.mean = nn.Parameter(norm.running_mean.clone(), requires_grad=False)
        self.variance = nn.Parameter(norm.running_var.clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [n, channels, height, width]."""
        scale = self.weight * (self.variance + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.mean * scale)[:, None, None]


class Resized(nn.Module):
    """Network that enlarges its input images first."""

    def __init__(self, network: nn.Module, pixels: int) -> None:
        super().__init__()
        self.network, self.pixels = network, pixels

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores [n, classes] of images [n, 3, height, width]."""
        if x.shape[-1] != self.pixels:
            x = interpolate(x, size=(self.pixels, self.pixels), mode="bilinear", antialias=False)
        scores: Tensor = self.network(x)
        return scores


def efficientnet_b0(
    input_shape: Sequence[int],
    outputs: int,
    *,
    weights: str,
    sha256: str = BEGINS,
    head: bool = True,
    pixels: int = 224,
    dropout: float = 0.2,
) -> nn.Module:
    """Make EfficientNet-B0 (Tan and Le 2019, arXiv 1905.11946; MONAI 1.6) with frozen normalisation statistics.

    Parameters
    ----------
    input_shape : sequence of int
        Shape of a colour image, normalised as for the weights.
    outputs : int
        Number of classes.
    weights : str
        A file of a state dictionary, such as efficientnet-b0-355c32eb.pth of lukemelas/EfficientNet-PyTorch (release
        1.0, on GitHub); FedVeil downloads none. A last layer of other classes is left out.
    sha256 : str
        First characters of the file's SHA-256, at least 8 hexadecimal digits.
    head : bool
        Whether only the last layer is trained (1,281 parameters per class); else everything but the statistics (4.0
        million).
    pixels : int
        Side to which images are enlarged.
    dropout : float
        Dropout rate before the last layer. Stochastic depth is off, as it does not use the run's random generators.

    Raises
    ------
    FieldError
        If the file is missing, is a different one, or lacks weights.
    FedVeilError
        If MONAI is not installed.
    """
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise FieldError(
            "input_shape", tuple(input_shape), "must be (3, height, width): colour images"
        )
    given = _weights(weights, sha256)
    monai = optional("monai.networks.nets", "EfficientNet-B0 needs MONAI", "monai")
    network: nn.Module = monai.EfficientNetBN(
        "efficientnet-b0", pretrained=False, num_classes=outputs
    )
    own, loaded = network.state_dict(), {}
    for key, value in own.items():  # MONAI numbers blocks by stage, too
        stored = given.get(key, given.get(re.sub(r"(.+)\.\d+(\.\d+\..+)", r"\1\2", key)))
        if stored is not None and stored.shape == value.shape:
            loaded[key] = stored
    missing = [
        k
        for k in own
        if k not in loaded and not k.startswith("_fc.") and not k.endswith("num_batches_tracked")
    ]
    if missing:
        raise FieldError(
            "model.weights",
            weights,
            f"lacks {len(missing)} of EfficientNet-B0's arrays, as {missing[0]}",
        )
    network.load_state_dict(loaded, strict=False)
    network.set_swish(memory_efficient=False)  # type: ignore[operator]
    for part in list(network.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(part, name, FrozenNorm(child))
            elif isinstance(child, nn.Dropout):
                setattr(part, name, nn.Dropout(dropout))
        if hasattr(part, "drop_connect_rate"):
            part.drop_connect_rate = 0.0  # type: ignore[assignment]
    for key, parameter in network.named_parameters():
        if head and not key.startswith("_fc."):
            parameter.requires_grad_(False)
    return Resized(network, require_count("pixels", pixels, 32))


def _weights(path: str, begins: str) -> dict[str, Tensor]:
    file = Path(path).expanduser()
    if not path or not file.is_file():
        raise FieldError("model.weights", path, f"is no file; ImageNet's weights are at {SOURCE}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if len(begins) < 8 or not digest.startswith(begins.lower()):
        accepted = (
            f"the file's SHA-256 begins with {digest[:16]}; if you trust it, say so in model.sha256"
        )
        raise FieldError("model.sha256", begins, accepted)
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict) or not all(
        isinstance(value, Tensor) for value in loaded.values()
    ):
        raise FieldError("model.weights", path, "must hold a state dictionary: names and tensors")
    return loaded
