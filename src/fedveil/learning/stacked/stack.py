"""A chain of stages on stacked parameters: loss and gradients of many clients in one pass."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.layout import Layout
from fedveil.learning.losses import RMSE_FLOOR, of_classes
from fedveil.learning.stacked.stages import Dropout, Stage, Weights

Parameters = dict[str, Tensor]


class Stack:
    """A straight chain of layers for n clients, each with its own parameters.

    Parameters
    ----------
    stages : sequence of Stage
        In order.
    layout : Layout
        Of the parameters.
    """

    def __init__(self, stages: Sequence[Stage], layout: Layout) -> None:
        self.stages, self.layout = list(stages), layout
        self.dropouts = [s for s in self.stages if isinstance(s, Dropout) and s.p > 0]
        self._first = next((i for i, s in enumerate(self.stages) if s.names), len(self.stages))

    def cut(self, rows: Tensor) -> Parameters:
        """Stacked parameters [n, d] by name, each [n, *shape]: views."""
        return {b.name: rows[:, b.start : b.stop].view(len(rows), *b.shape) for b in self.layout.blocks}

    def weights(self, values: Parameters, targets: Parameters, n: int, alpha: float, beta: float) -> list[Weights]:
        """The parameters of the first n clients, stage by stage.

        Parameters
        ----------
        values, targets : dict of str to Tensor
            The parameters, and where gradients go: ``beta * value + alpha * gradient``.
        """
        result = []
        for i, stage in enumerate(self.stages):
            own, into = ([given[name][:n] for name in stage.names] for given in (values, targets))
            result.append(Weights(own, into, alpha, beta, first=i <= self._first))
        return result

    def descend(self, x: Tensor, y: Tensor, scale: Tensor, weights: Sequence[Weights], loss: str) -> Tensor:
        """One pass forwards and one backwards.

        Parameters
        ----------
        x, y : Tensor
            [n, b, ...], a batch of each client.
        scale : Tensor
            [n, b], the weight of each example's loss; 0 takes an example out.
        weights : sequence of Weights
            From `weights`; what they say happens with the gradients happens.
        loss : {"cross_entropy", "mse", "rmse"}
            Per example, averaged over the trailing axes; rmse per batch.

        Returns
        -------
        Tensor
            [n, b], the loss of each example; with rmse, of its batch.
        """
        kept = []
        for stage, own in zip(self.stages, weights, strict=True):
            x, saved = stage.forward(x, own)
            kept.append(saved)
        losses, grad = BATCHED[loss](x, y, scale)
        for stage, saved, own in zip(reversed(self.stages), reversed(kept), reversed(weights), strict=True):
            back = stage.backward(grad, saved, own)
            if back is None:
                break
            grad = back
        return losses


def _cross_entropy(logits: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(logits, 2)
    index = y.unsqueeze(2)
    losses = logs.gather(2, index).squeeze(2).neg_()
    grad = logs.exp_().scatter_add_(2, index, torch.full_like(index, -1, dtype=logs.dtype))
    if losses.dim() > 2:  # one label a pixel
        scale = scale / losses[0, 0].numel()
        losses = losses.flatten(2).mean(2)
    return losses, _scaled(grad, scale)


def _mse(output: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    if of_classes(output, y, 2):
        y = F.one_hot(y, output.shape[2])
    rest = output.reshape(y.shape) - y.to(output.dtype)
    losses = rest.square().reshape(*scale.shape, -1).mean(2)
    return losses, _scaled((2 / max(rest[0, 0].numel(), 1)) * rest, scale).reshape(output.shape)


def _rmse(output: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    losses, grad = _mse(output, y, scale)
    root = ((losses * scale).sum(1, keepdim=True) + RMSE_FLOOR).sqrt()
    return root.expand_as(losses), _scaled(grad, (0.5 / root).expand_as(scale))


BATCHED = {"cross_entropy": _cross_entropy, "mse": _mse, "rmse": _rmse}


def _scaled(grad: Tensor, scale: Tensor) -> Tensor:
    return grad.mul_(scale.view(*scale.shape, *(1,) * (grad.dim() - 2)))
