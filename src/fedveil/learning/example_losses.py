"""Losses that are functions of one whole example: an image, a person, and functions of your own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.learning.torch_losses import IGNORED, Labelwise

OfExample = Callable[[Tensor, Tensor], Tensor]


class OneExample(Labelwise):
    """Loss of each example of a batch, by a call of your function for each example.

    Parameters
    ----------
    function : callable
        Function of one example, see `ExampleLoss`.
    """

    of_classes, has_mask, ignored = False, False, IGNORED

    def __init__(self, function: OfExample) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """Name of the function."""
        return str(getattr(self._function, "__name__", type(self._function).__name__))

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """Return losses [B]; NaN for an example for which the function raises."""
        losses = [self._tried(one, target) for one, target in zip(output, y, strict=True)]
        return torch.stack(losses)

    def of_batch(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch. Unlike in a call, an error of the function is raised."""
        losses = [self._of_one(one, target) for one, target in zip(output, y, strict=True)]
        return torch.stack(losses).mean()

    def _of_one(self, output: Tensor, y: Tensor) -> Tensor:
        value: Any = self._function(output, y)
        if not isinstance(value, Tensor) or value.numel() != 1:
            given = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise FieldError(
                "loss",
                self.name,
                f"must give one number of an example, as a tensor; it gives {given}",
            )
        return value.reshape(())

    def _tried(self, output: Tensor, y: Tensor) -> Tensor:
        try:
            return self._of_one(output, y)
        except Exception:  # an error of this example only
            return output.sum() * torch.nan


class ExampleLoss:
    """Batch loss that is the mean of a function of one example. Record level needs this form.

    Parameters
    ----------
    function : callable
        ``function(output, target)`` of one example, without a batch axis, returns one number. It must keep no state
        between examples. At record level an example counts as zero if the function raises an error for it.
    """

    def __init__(self, function: OfExample) -> None:
        if not callable(function) or isinstance(function, type):
            raise FieldError(
                "function",
                function,
                "must be a function of the output and the target of one example",
            )
        self.each = OneExample(function)

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.each.name

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self.each.of_batch(output, y)


def example_loss(function: OfExample) -> ExampleLoss:
    """Make your own loss for record and person level, from a function of one example.

    Parameters
    ----------
    function : callable
        ``function(output, target)`` without a batch axis; see `ExampleLoss`.

    Examples
    --------
    >>> loss = fv.learning.example_loss(lambda output, y: (output - y).abs().max())
    >>> fv.LocalTraining(loss=loss).loss.name
    '<lambda>'
    """
    return ExampleLoss(function)


class DiceOfImage(Labelwise):
    """Soft Dice loss of each image, with or without the cross-entropy of its pixels; void pixels are ignored.

    Parameters
    ----------
    entropy : bool
        Whether the cross-entropy is added.
    """

    of_classes, has_mask, ignored = True, True, IGNORED

    def __init__(self, entropy: bool) -> None:
        self._entropy = entropy

    @property
    def name(self) -> str:
        """Name of this loss in `LOSSES`."""
        return "dice" if self._entropy else "soft_dice"

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """Return losses [B] of logits [B, C, H, W] and classes [B, H, W]."""
        here = y != self.ignored
        one_hot = F.one_hot(y.where(here, 0), output.shape[1])
        classes = one_hot.movedim(-1, 1).bool()
        return self._of(output, classes & here[:, None], here)

    def of_mask(self, output: Tensor, mask: Tensor) -> Tensor:
        """Return the mean loss of a batch whose true classes are a one-hot mask [B, C, H, W]."""
        return self._of(output, mask, mask.any(1)).mean()

    def _of(self, output: Tensor, mask: Tensor, here: Tensor) -> Tensor:
        """Return losses [B], from a one-hot mask of the classes and from the pixels `here` [B, H, W] that are not void."""
        if output.dim() < 3:
            raise FieldError(
                "loss", self.name, f"needs a class a pixel; the outputs are {tuple(output.shape)}"
            )
        chances = (output.softmax(1) * here[:, None]).flatten(2)[:, 1:]
        truth = mask.flatten(2)[:, 1:].to(chances.dtype)
        both = (chances * truth).sum(2)
        sums = chances.sum(2) + truth.sum(2)
        losses = (1 - (2 * both + 1) / (sums + 1)).mean(1)
        if not self._entropy:
            return losses
        logs = torch.where(mask, output.log_softmax(1), 0.0).sum(1)
        return losses - logs.flatten(1).mean(1)


class Hazards(Labelwise):
    """Survival loss in discrete time: a person's negative log-likelihood, from her hazards in K public intervals.

    Outputs [B, K] are logits of the hazards. Targets are [B, 2]. The first column is the number of whole intervals that
    a person survived. The second is 1 if the event came in the next interval, 0 if she was last seen in it. A person's
    loss depends on no other person. Source: Brown 1975; as a network's loss Gensheimer and Narasimhan 2019 (PeerJ 7,
    e6257).
    """

    of_classes, has_mask, ignored = False, False, IGNORED
    name = "hazards"

    def __init__(self) -> None:
        """Make the loss, which has no options."""

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """Return losses [B]."""
        if output.dim() != 2 or y.dim() != 2 or y.shape[1] != 2:
            shapes = f"outputs {tuple(output.shape)} and targets {tuple(y.shape)}"
            raise FieldError(
                "loss", "hazards", f"needs outputs [N, intervals] and targets [N, 2]: {shapes}"
            )
        targets = y.to(output.dtype)
        time = targets[:, :1]
        event = targets[:, 1:]
        interval = torch.arange(output.shape[1], device=output.device)
        survived = (interval < time) * F.softplus(output)
        ended = (interval == time) * event * F.softplus(-output)
        losses: Tensor = (survived + ended).sum(1)
        return losses
