"""PyTorch losses in the form that record level needs: the loss of each label, of which the batch loss is the mean."""

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.errors import FieldError

_CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_NUMBER_LOSSES = (
    nn.BCEWithLogitsLoss,
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.PoissonNLLLoss,
)
_FUNCTIONS: tuple[tuple[Any, Any], ...] = (
    (F.cross_entropy, nn.CrossEntropyLoss),
    (F.nll_loss, nn.NLLLoss),
    (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
    (F.mse_loss, nn.MSELoss),
    (F.l1_loss, nn.L1Loss),
    (F.smooth_l1_loss, nn.SmoothL1Loss),
    (F.huber_loss, nn.HuberLoss),
    (F.poisson_nll_loss, nn.PoissonNLLLoss),
)
IGNORED = -100  # label that torch's cross-entropy ignores
NAMES = tuple(kind.__name__ for kind in (*_CLASS_LOSSES, *_NUMBER_LOSSES))


def mean_of_mask(logs: Tensor, mask: Tensor) -> Tensor:
    """Return the mean negative log-probability over labels, for true classes as a one-hot mask; a void label counts as 0.

    `logs` and `mask` are [B, classes, ...].
    """
    return -torch.where(mask, logs, 0.0).sum(1).mean()


def paired(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Convert outputs and targets to the same shape and number type; outputs [B, 1] fit targets [B]."""
    fitted = output.reshape(y.shape) if output.numel() == y.numel() else output
    return fitted, y.to(output.dtype)


class Paired:
    """PyTorch loss for regression that also accepts outputs [B, 1] with targets [B].

    Parameters
    ----------
    loss : torch.nn.Module
        Loss of a regression, of a class in `NAMES`.
    """

    def __init__(self, loss: nn.Module) -> None:
        self.loss = loss

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch.

        Raises
        ------
        FieldError
            If the shapes differ.
        """
        return self.each.of_batch(output, y)

    @property
    def each(self) -> "Labelwise":
        """Function that gives the loss of each number."""
        return Labelwise(self.loss, paired=True)


class Labelwise:
    """PyTorch loss that returns the loss of each label in place of the batch's mean.

    Class weights multiply an example's loss. They are public, and the mean of a batch is not divided by their sum.

    Parameters
    ----------
    loss : torch.nn.Module
        Loss whose class is exactly one of `NAMES`, with ``reduction="mean"``.
    paired : bool
        Whether an output [B, 1] fits targets [B], and targets may be whole numbers.

    Attributes
    ----------
    ignored : int
        Label that the loss ignores.
    of_classes : bool
        Whether the targets are class numbers.
    """

    def __init__(self, loss: nn.Module, *, paired: bool = False) -> None:
        self._paired = paired
        own: Any = deepcopy(loss)
        own.reduction = "none"
        self._loss = own
        self.of_classes = isinstance(loss, _CLASS_LOSSES)
        self.ignored = int(getattr(loss, "ignore_index", IGNORED))

    @property
    def name(self) -> str:
        """Name of the loss in PyTorch."""
        return type(self._loss).__name__

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """Return losses [B, ...]; outputs and numeric targets must have the same shape."""
        if self._paired:
            output, y = paired(output, y)
        if not self.of_classes and output.shape != y.shape:
            raise FieldError(
                "y", tuple(y.shape), f"must be like the outputs, {tuple(output.shape)}"
            )
        target = y.to(output.dtype) if y.is_floating_point() else y
        losses: Tensor = self._loss.to(output.device, output.dtype)(output, target)
        return losses

    def of_batch(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self(output, y).mean()

    def of_mask(self, output: Tensor, mask: Tensor) -> Tensor:
        """Return the mean loss of a batch whose true classes are a one-hot mask [B, classes, ...].

        A mask is used because indexing by an invalid label would raise an error.
        """
        logs = output if isinstance(self._loss, nn.NLLLoss) else output.log_softmax(1)
        if self._loss.weight is not None:
            trailing = [1] * (logs.dim() - 2)
            logs = logs * self._loss.weight.to(logs).view(-1, *trailing)
        return mean_of_mask(logs, mask)

    @property
    def has_mask(self) -> bool:
        """Whether `of_mask` computes this loss."""
        return self.of_classes and not getattr(self._loss, "label_smoothing", 0.0)


def labelwise(loss: Any) -> Labelwise | str | None:
    """Convert a PyTorch loss to `Labelwise`, or to its name if FedVeil has the loss; None for any other loss."""
    module = _as_module(loss)
    if type(module) not in (*_CLASS_LOSSES, *_NUMBER_LOSSES) or module.reduction != "mean":
        return None
    if type(module) is nn.CrossEntropyLoss and _has_no_options(module):
        return "cross_entropy"
    return Labelwise(module)


def _as_module(loss: Any) -> Any:
    """Return the loss module for a PyTorch loss function with its keywords; anything else is returned unchanged."""
    function = loss
    keywords: dict[str, Any] = {}
    if isinstance(loss, partial) and loss.keywords and not loss.args:
        function = loss.func
        keywords = loss.keywords
    for known, kind in _FUNCTIONS:
        if known is function:
            try:
                return kind(**keywords)
            except TypeError:  # a keyword that only the function has
                return None
    return loss


def _has_no_options(loss: nn.CrossEntropyLoss) -> bool:
    return loss.weight is None and not loss.label_smoothing and loss.ignore_index == IGNORED
