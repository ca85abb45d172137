"""Dropout that draws from a stream of its own instead of the global random state."""

import torch
from torch import Tensor, nn

# Trailing axes that one decision covers: a whole channel for the spatial kinds.
_SHARED_AXES: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


class KeyedDropout(nn.Module):
    """Dropout under an explicit generator.

    Parameters
    ----------
    p : float
        Probability of dropping.
    axes : int
        Trailing axes that share one decision (0 for ordinary dropout).
    generator : torch.Generator
        On the CPU; masks are drawn there whatever the device of the input, so the device does not change them.
    """

    def __init__(self, p: float, axes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.p, self.axes, self.generator = p, axes, generator

    def forward(self, x: Tensor) -> Tensor:
        """Drop and rescale in training mode, pass through otherwise."""
        if not self.training or self.p == 0:
            return x
        shape = x.shape[: max(x.dim() - self.axes, 0)] + (1,) * min(self.axes, x.dim())
        keep = torch.rand(shape, generator=self.generator, dtype=torch.float32) >= self.p
        return x * (keep.to(x.device, x.dtype) / (1 - self.p) if self.p < 1 else torch.zeros((), device=x.device))


def with_keyed_dropout(module: nn.Module, generator: torch.Generator) -> None:
    """Replace every dropout layer inside a module, in place, by one that draws from `generator`."""
    replaced: dict[int, KeyedDropout] = {}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in _SHARED_AXES:
                rate: float = vars(child)["p"]
                new = replaced.setdefault(id(child), KeyedDropout(rate, _SHARED_AXES[type(child)], generator))
                new.training = child.training
                setattr(parent, name, new)
