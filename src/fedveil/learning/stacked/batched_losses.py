"""Losses of many clients' batches at once, with their gradients."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.learning.losses import IGNORED, RMSE_FLOOR, of_classes

LossAndGradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _cross_entropy(logits: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses [n, b] of classes y [n, b, ...], and the gradient of their sum with weights `scale` [n, b]."""
    logs = torch.log_softmax(logits, 2)
    if y.numel() and int(y.min()) < 0:
        return _entropy_of_some(logs, y, scale)
    index = y.unsqueeze(2)
    losses = logs.gather(2, index).squeeze(2).neg_()
    grad = _less_one_at(logs.exp_(), index)
    losses, scale = _of_examples(losses, scale)
    return losses, _scaled(grad, scale)


def _entropy_of_some(logs: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same as `_cross_entropy` for labels that may be void (-100).

    Each client's mean is over its other labels, as in PyTorch.
    """
    void = y == IGNORED
    if bool(((y < 0) & ~void).any()):
        raise FieldError(
            "y", int(y.min()), f"classes are numbered from 0 on; a void label is {IGNORED}"
        )
    here = (~void).to(logs.dtype)
    weight = scale.view(*scale.shape, *_ones(y.dim() - 2)).expand_as(here)
    every = weight.flatten(1).sum(1)
    others = (weight * here).flatten(1).sum(1)
    least = torch.finfo(logs.dtype).tiny
    more = torch.where(others > 0, every / others.clamp_min(least), 0.0)
    counted = here * more.view(-1, *_ones(y.dim() - 1))
    index = y.clamp_min(0).unsqueeze(2)
    losses = logs.gather(2, index).squeeze(2).neg_().mul_(counted)
    grad = _less_one_at(logs.exp(), index)
    losses, scale = _of_examples(losses, scale)
    return losses, _scaled(grad.mul_(counted.unsqueeze(2)), scale)


def _less_one_at(chances: Tensor, index: Tensor) -> Tensor:
    """Subtract 1 from the probability of the true class, in place."""
    minus_one = torch.full_like(index, -1, dtype=chances.dtype)
    return chances.scatter_add_(2, index, minus_one)


def _of_examples(losses: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss [n, b] of each example over its labels (one, or one for each pixel), and each label's weight."""
    if losses.dim() == 2:
        return losses, scale
    pixels = losses[0, 0].numel()
    return losses.flatten(2).mean(2), scale / pixels


def _mse(output: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared errors [n, b] and the gradient of their sum with weights `scale` [n, b]."""
    if of_classes(output.shape, y, 2):
        y = F.one_hot(y, output.shape[2])
    rest = output.reshape(y.shape) - y.to(output.dtype)
    losses = rest.square().reshape(*scale.shape, -1).mean(2)
    numbers = max(rest[0, 0].numel(), 1)
    grad = (2 / numbers) * rest
    return losses, _scaled(grad, scale).reshape(output.shape)


def _rmse(output: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the root of each client's mean squared error, repeated for its examples [n, b], and the gradient."""
    losses, grad = _mse(output, y, scale)
    mean = (losses * scale).sum(1, keepdim=True)
    root = (mean + RMSE_FLOOR).sqrt()
    factor = (0.5 / root).expand_as(scale)
    return root.expand_as(losses), _scaled(grad, factor)


BATCHED: dict[str, LossAndGradient] = {"cross_entropy": _cross_entropy, "mse": _mse, "rmse": _rmse}


def _scaled(grad: Tensor, scale: Tensor) -> Tensor:
    """Multiply a gradient [n, b, ...] by weights [n, b], in place."""
    return grad.mul_(scale.view(*scale.shape, *_ones(grad.dim() - 2)))


def _ones(axes: int) -> tuple[int, ...]:
    return (1,) * axes
