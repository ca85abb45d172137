"""Stages of a stack: layers for many clients at once, each client with its own parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
Saved = Any
_SMALL = 400  # multiplications of a client below which torch's batched product uses another kernel


@dataclass
class Weights:
    """Parameters of one stage for the clients of a step, and the tensors that receive their gradients.

    Each gradient is written as ``target <- beta * value + alpha * gradient``. With the parameters themselves as
    targets, alpha = -lr and beta = 1, a backward pass *is* a step of SGD, and no gradient is stored.

    Attributes
    ----------
    values, targets : list of Tensor
        [n, *shape] each, in the order of the stage's names; targets are the values themselves, or overlap none of them.
    alpha, beta : float
        Factors of the formula above.
    first : bool
        Whether the gradient of the stage's input is not needed.
    """

    values: list[Tensor]
    targets: list[Tensor]
    alpha: float
    beta: float
    first: bool

    @cached_property
    def shared(self) -> list[Tensor] | None:
        """Parameters as those of one model if all clients have the same (an expanded tensor), else None."""
        if self.values[0].stride(0) != 0:
            return None
        return [value[0] for value in self.values]

    def put(self, index: int, gradient: Tensor) -> None:
        """Write one gradient to its target."""
        value = self.values[index]
        target = self.targets[index]
        if self.beta == 0:
            torch.mul(gradient, self.alpha, out=target)
            return
        kept = value if self.beta == 1 else value * self.beta
        torch.add(kept, gradient, alpha=self.alpha, out=target)


class Stage:
    """Layer for many clients at once; inputs and outputs are [n, b, ...].

    Attributes
    ----------
    names : tuple of str
        Names in the layout of the stage's parameters, in the stage's order.
    """

    names: tuple[str, ...] = ()

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Return the output, and the values that the backward pass needs."""
        raise NotImplementedError

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Write the gradients of the parameters, and return that of the input (None for the first stage)."""
        raise NotImplementedError


class Pointwise(Stage):
    """Stage of an activation, with its derivative.

    Parameters
    ----------
    function : callable
        Activation function.
    derivative : callable
        (gradient, kept tensor) -> gradient.
    keeps : {"input", "output"}
        Tensor that is kept for the derivative: the input or the output of the activation.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        derivative: Callable[[Tensor, Tensor], Tensor],
        keeps: str = "output",
    ) -> None:
        self.function = function
        self.derivative = derivative
        self.keeps = keeps

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Apply the function."""
        y = self.function(x)
        return y, y if self.keeps == "output" else x

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Multiply by the derivative."""
        return None if weights.first else self.derivative(grad, saved)


def relu() -> Pointwise:
    """Return the stage of max(x, 0)."""
    return Pointwise(torch.relu, partial(aten.threshold_backward, threshold=0))


def tanh() -> Pointwise:
    """Return the stage of the hyperbolic tangent."""
    return Pointwise(torch.tanh, aten.tanh_backward)


def sigmoid() -> Pointwise:
    """Return the stage of 1 / (1 + exp(-x))."""
    return Pointwise(torch.sigmoid, aten.sigmoid_backward)


def gelu(approximate: str = "none") -> Pointwise:
    """Return the stage of x Phi(x), or of its approximation by tanh."""
    function = partial(F.gelu, approximate=approximate)
    derivative = partial(aten.gelu_backward, approximate=approximate)
    return Pointwise(function, derivative, keeps="input")


def softplus(beta: float = 1.0, threshold: float = 20.0) -> Pointwise:
    """Return the stage of log(1 + exp(beta x)) / beta."""
    function = partial(F.softplus, beta=beta, threshold=threshold)
    derivative = partial(aten.softplus_backward, beta=beta, threshold=threshold)
    return Pointwise(function, derivative, keeps="input")


class Flatten(Stage):
    """Join the axes of an example from `start` to `end`, both counted with the batch axis as 0."""

    def __init__(self, start: int = 1, end: int = -1) -> None:
        self.start = start
        self.end = end

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Flatten the axes."""
        end = self.end if self.end < 0 else self.end + 1
        return x.flatten(self.start + 1, end), x.shape

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Give the gradient the input's shape."""
        return None if weights.first else grad.reshape(saved)


class ScaledStage(Stage):
    """First layer without parameters that scales each example; the gradient of its input is not needed.

    Parameters
    ----------
    function : callable
        Function of examples [B, ...].
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Scale the examples of all clients."""
        return self.function(x.flatten(0, 1)).view(x.shape), None

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Return None, as the stage comes before all parameters."""
        return None


class Dropout(Stage):
    """Dropout whose random numbers are drawn by the trainer, from each client's own stream.

    Parameters
    ----------
    p : float
        Probability of dropping.
    axes : int
        Number of trailing axes of an example that are dropped or kept together.

    Attributes
    ----------
    draw : callable
        ``draw(shape of one example's decisions) -> uniform [n, b, ...]``, set by the trainer before each step.
    """

    def __init__(self, p: float, axes: int = 0) -> None:
        self.p = p
        self.axes = axes
        self.draw: Callable[[tuple[int, ...]], Tensor] | None = None

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Set the dropped values to 0, and scale up the others."""
        if self.p == 0 or self.draw is None:
            return x, None
        keep = (self.draw(self._decisions(x)) >= self.p).to(x.device, x.dtype)
        mask = keep / (1 - self.p) if self.p < 1 else torch.zeros_like(keep)
        return x * mask, mask

    def _decisions(self, x: Tensor) -> tuple[int, ...]:
        """Return the shape of one example's mask: one decision for the shared trailing axes."""
        own = x.dim() - 2
        shared = min(self.axes, own)
        return (*x.shape[2 : 2 + own - shared], *[1] * shared)

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Apply the same mask to the gradient."""
        if weights.first:
            return None
        return grad if saved is None else grad * saved


class Dense(Stage):
    """Dense layer: x W^T + b on the last axis."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Multiply by the weights, in one batched product; in one plain product if all clients have the same weights."""
        rows = x if x.dim() == 3 else x.reshape(len(x), -1, x.shape[-1])
        weight, *bias = weights.values
        shared = self._shared(rows, weights)
        if shared:
            y = F.linear(rows.flatten(0, 1), *shared)
        elif bias:
            y = torch.baddbmm(bias[0].unsqueeze(1), rows, weight.transpose(1, 2))
        else:
            y = torch.bmm(rows, weight.transpose(1, 2))
        return y.view(*x.shape[:-1], -1), (rows, x.shape)

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Write the gradients by two batched products. The weight is read first, as writing may overwrite it."""
        rows, shape = saved
        weight = weights.values[0]
        grad = grad.reshape(len(grad), -1, grad.shape[-1])
        back = None if weights.first else self._input_gradient(grad, rows, weights).view(shape)
        torch.baddbmm(
            weight,
            grad.transpose(1, 2),
            rows,
            beta=weights.beta,
            alpha=weights.alpha,
            out=weights.targets[0],
        )
        if len(weights.targets) > 1:
            weights.put(1, grad.sum(1))
        return back

    def _input_gradient(self, grad: Tensor, rows: Tensor, weights: Weights) -> Tensor:
        shared = self._shared(rows, weights)
        if shared:
            return grad.flatten(0, 1) @ shared[0]
        return torch.bmm(grad, weights.values[0])

    def _shared(self, rows: Tensor, weights: Weights) -> list[Tensor] | None:
        """Return the one common model's parameters if a plain product sums in the same order as the batched one; else None."""
        places = rows.shape[1]
        _, outputs, inputs = weights.values[0].shape
        if places == 1 or places * outputs * inputs < _SMALL:
            return None
        return weights.shared


class Norm(Stage):
    """LayerNorm with each client's own scale and shift.

    Parameters
    ----------
    names : tuple of str
        Names of scale and shift; empty without them.
    eps : float
        Constant added to the variance.
    shape : tuple of int
        Normalised trailing axes.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        eps: float,
        shape: tuple[int, ...],
    ) -> None:
        self.names = names
        self.eps = eps
        self.shape = shape

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Normalise, then scale and shift by each client's parameters."""
        rows = x.contiguous()
        normal, mean, rstd = aten.native_layer_norm(rows, self.shape, None, None, self.eps)
        y = normal
        if weights.values:
            y = normal * self._wide(weights.values[0], x)
            if len(weights.values) > 1:
                y += self._wide(weights.values[1], x)
        return y, (rows, normal, mean, rstd)

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Return the input's gradient, and write the gradients of scale and shift."""
        rows, normal, mean, rstd = saved
        back = None
        if not weights.first:
            inner = grad * self._wide(weights.values[0], grad) if weights.values else grad
            wanted = [True, False, False]  # only the gradient of the input
            back, *_ = aten.native_layer_norm_backward(
                inner.contiguous(), rows, self.shape, mean, rstd, None, None, wanted
            )
        for i in range(len(weights.targets)):
            value = grad if i else grad * normal
            weights.put(i, value.reshape(len(value), -1, *self.shape).sum(1))
        return back

    def _wide(self, value: Tensor, like: Tensor) -> Tensor:
        """Reshape each client's parameter so that it broadcasts over `like`."""
        between = [1] * (like.dim() - 1 - len(self.shape))
        return value.view(len(value), *between, *self.shape)


class Embedding(Stage):
    """Embedding layer: rows of each client's table, by integer inputs."""

    def __init__(self, weight: str, padding: int | None) -> None:
        self.names = (weight,)
        self.padding = padding

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Saved]:
        """Return the rows of the table."""
        return weights.values[0][_clients(x), x], x

    def backward(self, grad: Tensor, saved: Saved, weights: Weights) -> Tensor | None:
        """Add each gradient to its row of the table; the padding row gets none."""
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
    """Return the client numbers 0 to n - 1 in a shape that broadcasts with `index` [n, ...]."""
    trailing = [1] * (index.dim() - 1)
    return torch.arange(len(index), device=index.device).view(-1, *trailing)
