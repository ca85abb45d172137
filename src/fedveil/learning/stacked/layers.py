"""The stages with parameters, each client its own: dense, convolution, normalisation, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from fedveil.learning.losses import channels_last
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


class Convolution(Stage):
    """Conv2d; several clients are groups of one convolution.

    Parameters
    ----------
    weight, bias : str
        Names of the parameters.
    stride, padding, dilation : tuple of int
        As in Conv2d.
    groups : int
        Of each client's own convolution.
    """

    free_output = True

    def __init__(
        self,
        weight: str,
        bias: str | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.names = (weight,) if bias is None else (weight, bias)
        self.stride, self.padding, self.dilation, self.groups = list(stride), list(padding), list(dilation), groups

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Convolve; one client in the memory order that CPU convolutions prefer."""
        n = len(x)
        joined, weight = _join(x), _kernel(weights.values[0])
        bias = weights.values[1].reshape(-1) if len(weights.values) > 1 else None
        y = aten.convolution(
            joined, weight, bias, self.stride, self.padding, self.dilation, False, [0, 0], n * self.groups
        )
        return _part(y, n), joined

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Gradients of the input (not for the first stage), the kernels and the biases."""
        n = len(grad)
        back, weight, bias = aten.convolution_backward(
            _join(grad),
            saved,
            _kernel(weights.values[0]),
            [n * weights.values[0].shape[1]],
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0, 0],
            n * self.groups,
            [not weights.first, True, len(weights.values) > 1],
        )
        weights.put(0, weight.view(weights.targets[0].shape) if n > 1 else weight[None])
        if len(weights.values) > 1:
            weights.put(1, bias.view(weights.targets[1].shape))
        return None if weights.first else _part(back, n)


class Pooling(Stage):
    """Max or average pooling over the last two axes; see `torch.nn.MaxPool2d` and `torch.nn.AvgPool2d`."""

    free_output = True

    def __init__(self, kind: str, *options: object) -> None:
        self.kind, self.options = kind, options

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Pool every image."""
        images = x.flatten(0, 1)
        if self.kind == "max":
            y, where = aten.max_pool2d_with_indices(images, *self.options)
        else:
            y, where = (
                (aten._adaptive_avg_pool2d if self.kind == "adaptive" else aten.avg_pool2d)(images, *self.options),
                None,
            )
        return y.unflatten(0, x.shape[:2]), (images, where)

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Route, or spread, the gradient."""
        if weights.first:
            return None
        images, where = saved
        flat = grad.flatten(0, 1)
        if self.kind == "max":
            back = aten.max_pool2d_with_indices_backward(flat, images, *self.options, where)
        elif self.kind == "adaptive":
            back = aten._adaptive_avg_pool2d_backward(flat, images)
        else:
            back = aten.avg_pool2d_backward(flat, images, *self.options)
        return back.unflatten(0, grad.shape[:2])  # type: ignore[no-any-return]


class Norm(Stage):
    """LayerNorm or GroupNorm with each client's own scale and shift.

    Parameters
    ----------
    names : tuple of str
        Of scale and shift; empty without them.
    eps : float
        Added to the variance.
    shape : tuple of int
        Normalised trailing axes of a LayerNorm; empty for a GroupNorm.
    groups : int
        Of a GroupNorm.
    """

    def __init__(self, names: tuple[str, ...], eps: float, shape: tuple[int, ...] = (), groups: int = 0) -> None:
        self.names, self.eps, self.shape, self.groups = names, eps, shape, groups
        self.free_output = bool(names)

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Normalise, scale, shift."""
        if self.groups:
            rows = x.flatten(0, 1).contiguous()
            b, channels, area = len(rows), rows.shape[1], prod(rows.shape[2:])
            normal, mean, rstd = aten.native_group_norm(rows, None, None, b, channels, area, self.groups, self.eps)
        else:
            rows = x.contiguous()
            normal, mean, rstd = aten.native_layer_norm(rows, self.shape, None, None, self.eps)
        normal = normal.view(x.shape)
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
            inner = grad * self._wide(weights.values[0], grad) if weights.values else grad
            inner = inner.reshape(rows.shape).contiguous()
            if self.groups:
                b, channels, area = len(rows), rows.shape[1], prod(rows.shape[2:])
                back = aten.native_group_norm_backward(
                    inner, rows, mean, rstd, None, b, channels, area, self.groups, [True, False, False]
                )[0]
            else:
                back = aten.native_layer_norm_backward(
                    inner, rows, self.shape, mean, rstd, None, None, [True, False, False]
                )[0]
            back = back.view(grad.shape)
        for i in range(len(weights.targets)):
            weights.put(i, self._narrow(grad if i else grad * normal))
        return back

    def _wide(self, value: Tensor, like: Tensor) -> Tensor:
        if self.groups:
            return value.view(len(value), 1, -1, *(1,) * (like.dim() - 3))
        return value.view(len(value), *(1,) * (like.dim() - 1 - len(self.shape)), *self.shape)

    def _narrow(self, value: Tensor) -> Tensor:
        if self.groups:
            return value.sum(dim=[1, *range(3, value.dim())])
        return value.reshape(len(value), -1, *self.shape).sum(1)


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


def _join(x: Tensor) -> Tensor:
    """[n, b, c, h, w] as the [b, n c, h, w] of a grouped convolution."""
    if len(x) == 1:
        return channels_last(x[0])
    return x.transpose(0, 1).flatten(1, 2)


def _part(y: Tensor, n: int) -> Tensor:
    return y[None] if n == 1 else y.view(len(y), n, -1, *y.shape[2:]).transpose(0, 1)


def _kernel(weight: Tensor) -> Tensor:
    if len(weight) == 1:
        return channels_last(weight[0])
    return weight.flatten(0, 1)
