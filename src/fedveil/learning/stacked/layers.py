"""The stages with parameters, each client its own: dense, normalisation, embedding."""

import torch
from torch import Tensor

from fedveil.learning.stacked.stage import Saved, Stage, Weights, aten


class Dense(Stage):
    """x W^T + b on the last axis."""

    free_output = True

    def __init__(self, weight: str, bias: str | None) -> None:
        self.names = (weight,) if bias is None else (weight, bias)

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """One batched matrix product."""
        weight = weights.values[0]
        rows = x.reshape(len(x), -1, x.shape[-1]) if x.dim() != 3 else x
        turned = weight.transpose(1, 2)
        y = (
            torch.bmm(rows, turned)
            if len(weights.values) == 1
            else torch.baddbmm(weights.values[1].unsqueeze(1), rows, turned)
        )
        return (y if x.dim() == 3 else y.view(*x.shape[:-1], y.shape[-1])), (rows, x.shape)

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Two batched matrix products; the weight is read before it may be overwritten."""
        rows, shape = saved
        grad = grad.reshape(len(grad), -1, grad.shape[-1])
        back = None if weights.first else torch.bmm(grad, weights.values[0]).view(shape)
        weights.targets[0].baddbmm_(grad.transpose(1, 2), rows, beta=weights.beta, alpha=weights.alpha)
        if len(weights.targets) > 1:
            weights.put(1, grad.sum(1))
        return back


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
        if weights.beta != 1:
            target.mul_(weights.beta) if weights.beta else target.zero_()
        target.index_put_((_clients(saved), saved), grad * weights.alpha, accumulate=True)
        return None


def _clients(index: Tensor) -> Tensor:
    return torch.arange(len(index), device=index.device).view(-1, *(1,) * (index.dim() - 1))
