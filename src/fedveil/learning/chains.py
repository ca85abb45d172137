"""Gradients of single examples of chains of dense layers and activations, forwards and backwards by hand.

A dense layer's gradient is the product of its output gradients and its inputs (Goodfellow 2015, arXiv 1510.01799), so
that a step is a pass forwards, the loss's own gradient, a pass backwards, and one product a layer, without autograd.
"""

import torch
from torch import Tensor, nn

from fedveil.layout import Layout
from fedveil.learning.gradients import Gradients, GradientsAndLosses, Piece, Products
from fedveil.learning.losses import IGNORED, of_classes, usable
from fedveil.learning.rules import NotApart, refuse_hooks
from fedveil.learning.stacked import NotStackable, compile_stack
from fedveil.learning.stacked.stages import Dense, Flatten, Pointwise
from fedveil.learning.torch_losses import Labelwise


class ByChain:
    """The way of dense layers and activations, one after another.

    Parameters
    ----------
    model : torch.nn.Module
        Read only.
    layout : Layout
        Of the model.
    loss : {"cross_entropy", "mse"} or Labelwise
        Of an example; one of PyTorch's has no gradient written here.

    Raises
    ------
    NotApart
        If there is anything else in the model.
    """

    held = 1

    def __init__(self, model: nn.Module, layout: Layout, loss: str | Labelwise) -> None:
        refuse_hooks(model)
        if not isinstance(loss, str):
            raise NotApart("its loss has no gradient written here")
        try:
            stages = compile_stack(model, layout).stages
        except NotStackable as error:
            raise NotApart(error.reason) from error
        if any(type(stage) not in (Dense, Pointwise, Flatten) for stage in stages):
            raise NotApart("it is no chain of dense layers")
        every = dict(model.named_parameters())
        self._layout, self._loss = layout, loss
        self._steps = [(stage, [every[name] for name in stage.names]) for stage in stages if type(stage) is not Flatten]
        self._flattens = [stage for stage in stages if isinstance(stage, Flatten)]
        self._first = next(i for i, (stage, _) in enumerate(self._steps) if isinstance(stage, Dense))
        self.reads_examples = self._first == 0
        dense = [weights for stage, weights in self._steps if isinstance(stage, Dense)]
        self.head = dense[0] if self.reads_examples and len(dense) == 1 else None

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Check with dummies.

        Raises
        ------
        NotApart
            If layers see more than a row an example, or the loss is none that has a gradient written here.
        """
        flat = x
        for stage in self._flattens:
            flat = flat.flatten(stage.start, min(stage.end, flat.dim() - 1))
        if flat.dim() != 2 or flat.shape[1] != self._steps[self._first][1][0].shape[1]:
            raise NotApart("a layer sees more than a row an example")
        outputs = len(next(w[0] for _, w in reversed(self._steps) if w))
        if self._loss == "cross_entropy":
            fits = not y.is_floating_point() and y.dim() == 1
        else:
            fits = of_classes((1, outputs), y, 1) or y[0].numel() == outputs
        if not fits:
            raise NotApart("its labels are not the outputs of an example")

    def __call__(self, x: Tensor, y: Tensor, here: Tensor, lengths: Tensor | None = None) -> GradientsAndLosses:
        """Gradients, losses [B], and which examples [B] have both; `lengths` [B] are the examples' squared norms."""
        with torch.no_grad():
            rows = x.reshape(len(x), -1)
            output, kept = rows.T, []  # columns are examples: narrow products and softmax are twice as fast so
            for stage, weights in self._steps:
                before = output
                if isinstance(stage, Dense):
                    weight, *bias = weights
                    output = torch.addmm(bias[0][:, None], weight, output) if bias else weight @ output
                    kept.append(before)
                else:
                    assert isinstance(stage, Pointwise)
                    output = stage.function(output)
                    kept.append(before if stage.keeps == "input" else output)
            losses, grad, good = self._gradient(output, y)
            pieces: list[Piece] = []
            for i in range(len(self._steps) - 1, self._first - 1, -1):
                stage, weights = self._steps[i]
                if isinstance(stage, Pointwise):
                    grad = stage.derivative(grad, kept[i])
                    continue
                names = dict(zip(("weight", "bias"), stage.names, strict=False))
                first = i == 0
                pieces.append(Products(names, rows if first else kept[i].T, grad, lengths if first else None))
                if i > self._first:
                    grad = weights[0].T @ grad
            return Gradients(pieces, self._layout), losses, here if good is None else here & good

    def _gradient(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Losses [B], their gradients [C, B], and which labels [B] are usable, unless all are."""
        if self._loss == "mse":
            y, fits = usable(y, output.T.shape, self._loss)
            classes = of_classes(output.T.shape, y, 1)
            target = nn.functional.one_hot(y, len(output)) if classes else y.reshape(len(y), -1)
            rest = output - target.T.to(output.dtype)
            return rest.square().mean(0), rest * (2 / len(output)), fits
        logs = torch.log_softmax(output, 0)
        low, high = (int(value) for value in y.aminmax())
        good: Tensor | None = None
        passed: Tensor | None = None
        if low < 0 or high >= len(output):
            y, good = usable(y, output.T.shape, self._loss)
            passed = y == IGNORED
            y = y.masked_fill(passed, 0)
        index = y[None]
        losses = logs.gather(0, index)[0].neg_()
        grad = logs.exp_().scatter_add_(0, index, logs.new_full((1, 1), -1.0).expand_as(index))
        if passed is not None:
            losses, grad = losses.masked_fill(passed, 0), grad.masked_fill(passed, 0)
        return losses, grad, good
