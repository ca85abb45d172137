"""The stages with parameters, each client its own: dense, normalisation, embedding."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.learning.stacked.stage import Saved, Stage, Weights, aten

_SMALL = 400  # multiplications of a client, below which torch's batched product has a kernel of its own


class Dense(Stage):
    """x W^T + b on the last axis."""

    free_output = True

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """One batched matrix product; where all clients have the same weight, one product."""
        rows = x.reshape(len(x), -1, x.shape[-1]) if x.dim() != 3 else x
        weight, *bias = weights.values
        if shared := self._shared(rows, weights):
            y = F.linear(rows.flatten(0, 1), *shared)
        elif bias:
            y = torch.baddbmm(bias[0].unsqueeze(1), rows, weight.transpose(1, 2))
        else:
            y = torch.bmm(rows, weight.transpose(1, 2))
        return y.view(*x.shape[:-1], -1), (rows, x.shape)

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Two batched matrix products; the weight is read before it may be overwritten."""
        (rows, shape), back, weight = saved, None, weights.values[0]
        grad = grad.reshape(len(grad), -1, grad.shape[-1])
        if not weights.first:
            shared = self._shared(rows, weights)
            back = (grad.flatten(0, 1) @ shared[0] if shared else torch.bmm(grad, weight)).view(shape)
        torch.baddbmm(
            weight, grad.transpose(1, 2), rows, beta=weights.beta, alpha=weights.alpha, out=weights.targets[0]
        )
        if len(weights.targets) > 1:
            weights.put(1, grad.sum(1))
        return back

    def _shared(self, rows: Tensor, weights: Weights) -> list[Tensor] | None:
        """The one model's parameters, if a single product takes its sums in the order of the batched one."""
        places, (_, outputs, inputs) = rows.shape[1], weights.values[0].shape
        return weights.shared if places > 1 and places * outputs * inputs >= _SMALL else None


class Norm(Stage):
    """LayerNorm with each client's own scale and shift.

    Parameters
    ----------
    names : tuple of str
        Of scale and shift; empty without them.
    eps : float
        Added to the variance.
    shape : tuple of int
        Normalised trailing axes.
    """

    def __init__(self, names: tuple[str, ...], eps: float, shape: tuple[int, ...]) -> None:
        self.names, self.eps, self.shape = names, eps, shape
        self.free_output = bool(names)

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Normalise, scale, shift."""
        rows = x.contiguous()
        normal, mean, rstd = aten.native_layer_norm(rows, self.shape, None, None, self.eps)
        y = normal
        if weights.values:
            y = normal * self._wide(weights.values[0], x)
            if len(weights.values) > 1:
                y += self._wide(weights.values[1], x)
        return y, (rows, normal, mean, rstd)

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """The gradient of the normalisation, and the sums for scale and shift."""
        rows, normal, mean, rstd = saved
        back = None
        if not weights.first:
            inner = (grad * self._wide(weights.values[0], grad) if weights.values else grad).contiguous()
            back = aten.native_layer_norm_backward(
                inner, rows, self.shape, mean, rstd, None, None, [True, False, False]
            )[0]
        for i in range(len(weights.targets)):
            value = grad if i else grad * normal
            weights.put(i, value.reshape(len(value), -1, *self.shape).sum(1))
        return back

    def _wide(self, value: Tensor, like: Tensor) -> Tensor:
        return value.view(len(value), *(1,) * (like.dim() - 1 - len(self.shape)), *self.shape)


class Embedding(Stage):
    """Rows of a table by integer inputs."""

    def __init__(self, weight: str, padding: int | None) -> None:
        self.names, self.padding = (weight,), padding

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Look up."""
        return weights.values[0][_clients(x), x], x

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Add every row's gradient to its place; the padding row has none."""
        if self.padding is not None:
            grad = grad.masked_fill((saved == self.padding).unsqueeze(-1), 0)
        target = weights.targets[0]
        if weights.beta == 0:
            target.zero_()
        elif weights.beta != 1 or weights.shared:
            torch.mul(weights.values[0], weights.beta, out=target)
        target.index_put_((_clients(saved), saved), grad * weights.alpha, accumulate=True)
        return None


def _clients(index: Tensor) -> Tensor:
    return torch.arange(len(index), device=index.device).view(-1, *(1,) * (index.dim() - 1))
