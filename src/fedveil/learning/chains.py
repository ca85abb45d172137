"""Gradients of single examples in chains of dense layers and activations, with hand-written passes.

A dense layer's gradient is the product of its output gradients and its inputs (Goodfellow 2015, arXiv 1510.01799). So a
step needs no autograd: a forward pass, the loss's gradient, a backward pass, and one product for each layer.
"""

import torch
from torch import Tensor, nn

from fedveil.layout import Layout
from fedveil.learning.gradients import Gradients, GradientsAndLosses, Piece, Products
from fedveil.learning.losses import IGNORED, of_classes, usable
from fedveil.learning.rules import NotIsolated, refuse_hooks
from fedveil.learning.stacked import NotStackable, compile_stack
from fedveil.learning.stacked.stages import Dense, Flatten, Pointwise, ScaledStage
from fedveil.learning.torch_losses import Labelwise


class ByChain:
    """Gradient rule for a chain of dense layers and activations.

    Parameters
    ----------
    model : torch.nn.Module
        Model, only read.
    layout : Layout
        Layout of the model.
    loss : {"cross_entropy", "mse"} or Labelwise
        Loss of an example; this rule has no gradient for other PyTorch losses.

    Raises
    ------
    NotIsolated
        If the model contains anything else.
    """

    numbers_an_example = 1  # numbers held for one example's gradient

    def __init__(self, model: nn.Module, layout: Layout, loss: str | Labelwise) -> None:
        refuse_hooks(model)
        if not isinstance(loss, str):
            raise NotIsolated("its loss has no gradient written here")
        try:
            stages = compile_stack(model, layout).stages
        except NotStackable as error:
            raise NotIsolated(error.reason) from error
        every = dict(model.named_parameters())
        self._layout = layout
        self._loss = loss
        self._scaled: list[ScaledStage] = []
        self._flattens: list[Flatten] = []
        self._steps: list[tuple[Dense | Pointwise, list[Tensor]]] = []
        for stage in stages:
            if type(stage) is Flatten:
                self._flattens.append(stage)
            elif type(stage) is ScaledStage:
                self._scaled.append(stage)
            elif type(stage) is Dense or type(stage) is Pointwise:
                self._steps.append((stage, [every[name] for name in stage.names]))
            else:
                raise NotIsolated("it is no chain of dense layers")
        dense = [i for i, (stage, _) in enumerate(self._steps) if isinstance(stage, Dense)]
        self._first = dense[0]
        self._last = dense[-1]
        self.reads_examples = self._first == 0 and not self._scaled
        self.head: list[Tensor] | None = (
            None  # weight and bias of the only dense layer, if no layer comes before it
        )
        if self.reads_examples and len(dense) == 1:
            self.head = self._steps[0][1]

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Check the model on dummies.

        Raises
        ------
        NotIsolated
            If layers see more than one row for each example, or the loss has no gradient here.
        """
        flat = x
        for stage in self._flattens:
            flat = flat.flatten(stage.start, min(stage.end, flat.dim() - 1))
        inputs = self._weight_of(self._first).shape[1]
        if flat.dim() != 2 or flat.shape[1] != inputs:
            raise NotIsolated("a layer sees more than a row an example")
        if not self._fits(y):
            raise NotIsolated("its labels are not the outputs of an example")

    def _weight_of(self, i: int) -> Tensor:
        """Return the weight of the dense layer in step i."""
        return self._steps[i][1][0]

    def _fits(self, y: Tensor) -> bool:
        """Whether labels [B, ...] are one class for each example, or one number for each output."""
        if self._loss == "cross_entropy":
            return not y.is_floating_point() and y.dim() == 1
        outputs = len(self._weight_of(self._last))
        return of_classes((1, outputs), y, 1) or y[0].numel() == outputs

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        here: Tensor,
        lengths: Tensor | None = None,
    ) -> GradientsAndLosses:
        """Return gradients, losses [B], and a bool [B] that marks the examples with finite results.

        `lengths` [B] are the squared norms of x, if they are known.
        """
        with torch.no_grad():
            rows = x.reshape(len(x), -1)
            for scaled in self._scaled:
                rows = scaled.function(rows)
            output, kept = self._forward(rows)
            losses, grad, usable_labels = self._gradient(output, y)
            pieces = self._backward(rows, kept, grad, lengths)
        good = here if usable_labels is None else here & usable_labels
        return Gradients(pieces, self._layout), losses, good

    def _forward(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return outputs [C, B], and the tensors that each step of the backward pass needs.

        Columns are examples: narrow products and softmax are twice as fast in this order.
        """
        output = rows.T
        kept: list[Tensor] = []
        for stage, weights in self._steps:
            before = output
            if isinstance(stage, Dense):
                weight, *bias = weights
                output = torch.addmm(bias[0][:, None], weight, output) if bias else weight @ output
                kept.append(before)
            else:
                output = stage.function(output)
                kept.append(before if stage.keeps == "input" else output)
        return output, kept

    def _backward(
        self,
        rows: Tensor,
        kept: list[Tensor],
        grad: Tensor,
        lengths: Tensor | None,
    ) -> list[Piece]:
        """Return the gradients of each dense layer, from the loss's gradients [C, B] at the outputs."""
        pieces: list[Piece] = []
        for i in range(len(self._steps) - 1, self._first - 1, -1):
            stage, weights = self._steps[i]
            if isinstance(stage, Pointwise):
                grad = stage.derivative(grad, kept[i])
                continue
            names = dict(zip(("weight", "bias"), stage.names, strict=False))
            if i == 0:
                pieces.append(Products(names, rows, grad, lengths))
            else:
                pieces.append(Products(names, kept[i].T, grad))
            if i > self._first:
                grad = weights[0].T @ grad
        return pieces

    def _gradient(
        self,
        output: Tensor,
        y: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return losses [B], their gradients [C, B], and a bool [B] that marks usable labels; None if all are usable."""
        if self._loss == "mse":
            return self._squared(output, y)
        return self._entropy(output, y)

    def _squared(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = output.T.shape
        y, good = usable(y, shape, self._loss)
        if of_classes(shape, y, 1):
            target = nn.functional.one_hot(y, len(output))
        else:
            target = y.reshape(len(y), -1)
        rest = output - target.T.to(output.dtype)
        return rest.square().mean(0), rest * (2 / len(output)), good

    def _entropy(
        self,
        output: Tensor,
        y: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        logs = torch.log_softmax(output, 0)
        low, high = y.aminmax()
        good: Tensor | None = None
        passed: Tensor | None = None
        if int(low) < 0 or int(high) >= len(output):
            y, good = usable(y, output.T.shape, self._loss)
            passed = y == IGNORED
            y = y.masked_fill(passed, 0)
        index = y[None]
        losses = logs.gather(0, index)[0].neg_()
        minus_one = logs.new_full((1, 1), -1.0).expand_as(index)
        grad = logs.exp_().scatter_add_(0, index, minus_one)
        if passed is not None:
            losses = losses.masked_fill(passed, 0)
            grad = grad.masked_fill(passed, 0)
        return losses, grad, good
