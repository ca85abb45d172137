"""Labels checked by row: what raises for one label would raise for the whole batch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.learning.losses import LossFunction, mse

IGNORED = -100  # the label that torch's cross-entropy passes over


def usable(y: Tensor, outputs: Sequence[int], loss: str) -> tuple[Tensor, Tensor]:
    """Targets without what is no class of a model, and which examples had none such.

    Parameters
    ----------
    y : Tensor
        [B, ...].
    outputs : sequence of int
        Shape of the model's outputs [B, ...].
    loss : {"cross_entropy", "mse"}
        What they are for.

    Returns
    -------
    y : Tensor
        [B, ...], with 0 for the targets of the others.
    good : Tensor
        [B] of bool.
    """
    good = torch.ones(len(y), dtype=torch.bool, device=y.device)
    if loss == "mse" and not _one_of_several(y, outputs):
        return y, good
    if not _is_class(y) or len(outputs) < 2 or not y.numel():
        return y, good
    low, high = (int(value) for value in y.aminmax())
    if low >= 0 and high < outputs[1]:
        return y, good
    fits = (y >= 0) & (y < outputs[1])
    if loss == "cross_entropy":
        fits |= y == IGNORED
    return y.masked_fill(~fits, 0), fits.reshape(len(y), -1).all(1)


def masked(y: Tensor, outputs: Sequence[int], loss: str) -> tuple[Tensor, LossFunction]:
    """Targets as numbers, and the mean loss of a batch of them: no index, which raises, is taken from a label."""
    if not _is_class(y):
        return y, mse if loss == "mse" else F.cross_entropy
    if loss == "mse":
        return (F.one_hot(y, outputs[-1]) if _one_of_several(y, outputs) else y), mse
    each = torch.arange(outputs[1], device=y.device).view(-1, *[1] * (y.dim() - 1))
    return y[:, None] == each, _masked_cross_entropy


def _one_of_several(y: Tensor, outputs: Sequence[int]) -> bool:
    return _is_class(y) and y.dim() == 1 == len(outputs) - 1 and outputs[-1] > 1


def _is_class(y: Tensor) -> bool:
    return not y.is_floating_point()


def _masked_cross_entropy(output: Tensor, mask: Tensor) -> Tensor:
    return -torch.where(mask, output.log_softmax(1), 0.0).sum(1).mean()
