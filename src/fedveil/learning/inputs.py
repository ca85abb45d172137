"""Conversion of examples to a model's device, number type and memory order."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedveil.learning.rules import NotIsolated, is_known, refuse_hooks

_OURS = ("fedveil", "fedveil_lab", "fedveil_studies")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Conversion of examples to a model's device, number type and memory order; call it with a batch.

    Attributes
    ----------
    like : Tensor
        First floating-point parameter of the model; examples go to its device.
    types : frozenset of torch.dtype
        Number types of the model's floating-point parameters. Floating-point examples of another type are converted to
        that of `like`.
    last : bool
        Whether float32 images on a CPU are stored channels last, see `takes_channels_last`. All other examples are
        stored row by row, as a ``DataLoader`` gives them.
    """

    like: Tensor
    types: frozenset[torch.dtype]
    last: bool

    @classmethod
    def of(cls, model: nn.Module) -> "Inputs":
        """Return the conversion for this model."""
        real = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
        types = frozenset(parameter.dtype for parameter in real)
        return cls(real[0], types, takes_channels_last(model))

    def __call__(self, x: Tensor) -> Tensor:
        """Return examples [B, ...] in the form that the model takes; integers stay integers."""
        has_other_type = x.is_floating_point() and x.dtype not in self.types
        dtype = self.like.dtype if has_other_type else x.dtype
        return self.stored(x.to(self.like.device, dtype))

    def stored(self, value: Tensor) -> Tensor:
        """Return images or kernels in the memory order that this model takes; the values are the same."""
        if self._may_be_channels_last(value):
            return channels_last(value)
        return value.contiguous()

    def _may_be_channels_last(self, value: Tensor) -> bool:
        return self.last and value.dtype == torch.float32 and value.device.type == "cpu"

    def in_memory_order(self, x: Tensor) -> Tensor:
        """Return the same values [B, ...] in the fixed memory order of their shape.

        PyTorch chooses kernels by strides, and kernels round differently. Without this, one dummy or infinite record
        led to other strides and changed the rounding of all rows (a sum by 13 C).
        """
        if x.dim() == 4 and self._may_be_channels_last(x):
            batch, channels, height, width = x.shape
            flat = x.permute(0, 2, 3, 1).contiguous().view(-1)
            return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return x.contiguous().view(-1).view(x.shape)


def takes_channels_last(model: nn.Module) -> bool:
    """Whether images may be stored channels last; true for FedVeil's own networks and chains of known layers.

    A user's forward method may depend on strides (``.view``), and so may hooks. PyTorch's GroupNorm ends the process if
    it gets such a batch without a gradient, so a trained layer has to come before it.
    """
    try:
        refuse_hooks(model)
    except NotIsolated:
        return False
    is_ours = _is_ours(model)
    trained = False
    for module in model.modules():
        own = _is_ours(module)
        part = is_ours and type(module).__module__.startswith("torch.nn.")
        if not (own or part or is_known(module)):
            return False
        if isinstance(module, nn.GroupNorm) and not trained:
            return False
        for parameter in module.parameters(recurse=False):
            trained = trained or parameter.requires_grad
    return True


def _is_ours(module: nn.Module) -> bool:
    """Whether the class of a module is from one of FedVeil's packages."""
    package, _, _ = type(module).__module__.partition(".")
    return package in _OURS


def channels_last(value: Tensor) -> Tensor:
    """Store an image batch [B, C, H, W] in the memory order batch, height, width, channel; leave other tensors unchanged.

    With a single channel, torch treats both orders as equal and keeps the old strides. A first convolution and its
    pooling then take 15 times longer (measured at 40x40), so the strides are set explicitly.
    """
    if value.dim() != 4:
        return value
    if value.shape[1] > 1:
        return value.contiguous(memory_format=torch.channels_last)
    height, width = value.shape[2:]
    return value.contiguous().as_strided(value.shape, (height * width, 1, width, 1))
