"""Gradients of single examples from layers' inputs and output gradients, for models of known layers alone.

One forward and one backward pass to the layers' outputs give each layer's inputs and output gradients, from which norms
and clipped sums follow without a second pass (the "book-keeping" of Bu et al. 2023, arXiv 2210.00038): a dense layer's
gradients are never formed.

Row i of every tensor belongs to example i because every module is of a type that is listed here, or its own method is
replaced by what `fedveil.learning.recognised` reads in it, and nothing listens: a subclass, a hook or a parametrisation
may mix rows, and a model with one goes another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from fedveil.layout import Layout
from fedveil.learning.dropout import KeyedDropout
from fedveil.learning.labels import usable
from fedveil.learning.losses import losses_of
from fedveil.learning.recognised import NotApart, check, recognised

_BLOCK = 1 << 20  # numbers that are converted to float64 at once

# (module, inputs, output gradients) -> gradients [B, *shape] of each of its parameters, by name
Rule = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]
Layers = dict[nn.Module, dict[str, str]]


def _has_hooks(layer: nn.Module) -> bool:
    """Whether something listens to a module or its parameters, or stands in for one of its methods."""
    if any(getattr(layer, name, None) for name in _HOOKS) or layer._compiled_call_impl is not None:
        return True
    if any(callable(getattr(type(layer), name, None)) for name in vars(layer)):
        return True
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
    every = list(layer.parameters(recurse=False))
    return any(type(p) is not nn.Parameter or any(getattr(p, name, None) for name in hooks) for p in every)


@dataclass
class _Tap:
    """What one layer saw in a forward pass."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[tuple[Tensor, int]] = field(default_factory=list)


def known_layers(model: nn.Module, layout: Layout, names: dict[int, str]) -> Layers:
    """The layers with shared parameters, each with the layout's name (by identity, in `names`) of its parameters.

    Raises
    ------
    NotApart
        If a shared parameter belongs to something else.
    """
    found: Layers = {}
    for layer in model.modules():
        own = {k: names[id(p)] for k, p in layer.named_parameters(recurse=False) if names[id(p)] in layout.names}
        if own and (type(layer) not in _RULES or len(own) != len(list(layer.parameters(recurse=False)))):
            raise NotApart(f"{type(layer).__name__} is no known layer, or trained in part")
        if own:
            found[layer] = own
    if sum(map(len, found.values())) != len(layout.names):
        raise NotApart("a parameter is in no layer that is used, or in two")
    return found


def _is_known(layer: nn.Module) -> bool:
    """Whether a module is exactly what torch or FedVeil wrote, and keeps the rows of a batch apart."""
    if isinstance(layer, nn.Flatten | nn.Unflatten | nn.Softmax | nn.LogSoftmax):
        axis = getattr(layer, "start_dim", getattr(layer, "dim", None))
        if not isinstance(axis, int) or axis < 1:
            return False
    if type(layer) is nn.Conv2d and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return False
    return type(layer) in _RULES or type(layer) in _PLAIN


class ByLayers:
    """The way of known layers.

    Parameters
    ----------
    model : torch.nn.Module
        Read only.
    layout : Layout
        Of the model.
    loss : str
        Of an example.

    Raises
    ------
    NotApart
        If the model has a module that is not known.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: str) -> None:
        self._model, self._layout, self._loss = model, layout, loss
        if torch_module._has_any_global_hook() or any(_has_hooks(m) for m in model.modules()):  # type: ignore[no-untyped-call]
            raise NotApart("a module has hooks")
        if not all(_is_known(m) for m in model.modules()):
            self._model = recognised(model, _is_known)
        names = {id(p): name for name, p in model.named_parameters()}
        self._layers = known_layers(self._model, layout, names)
        formed = [p.numel() for one in self._layers if type(one) is not nn.Linear for p in one.parameters()]
        self.held = max(1, sum(formed))
        self._known: tuple[Tensor, int, Tensor] | None = None

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Check with dummies, and with one alone: in a batch, another axis may be as long as the batch.

        Raises
        ------
        NotApart
            If a layer does not see one row an example.
        """
        with torch.no_grad():
            for rows in (x[:1], x):
                if isinstance(self._model, fx.GraphModule):
                    check(self._model, rows)
                self._listened(rows)

    def __call__(self, x: Tensor, y: Tensor, here: Tensor) -> tuple[Gradients, Tensor, Tensor]:
        """Gradients, losses [B], and which examples [B] have both."""
        taps, output = self._listened(x)
        y, good = usable(y, output.shape, self._loss)
        losses = losses_of(self._loss)(output, y).reshape(len(x), -1).mean(1)
        grads = torch.autograd.grad(losses.sum(), [tap.outputs[0][0] for tap in taps])
        with torch.no_grad():
            pairs = zip(self._layers.items(), taps, grads, strict=True)
            found = [
                _OfLayer(layer, names, tap.inputs[0], b, self._widened(x, tap.inputs[0]))
                for (layer, names), tap, b in pairs
            ]
        return _OfLayers(found, self._layout), losses.detach(), here & good

    def _widened(self, x: Tensor, a: Tensor) -> Tensor | None:
        """What a layer sees, in float64, where that is the batch itself, which is often the same one as before."""
        if a.data_ptr() != x.data_ptr() or a.numel() != x.numel() or a.stride(-1) != 1:
            return None
        if self._known is None or self._known[0] is not x or self._known[1] != x._version:
            self._known = x, x._version, a.to(torch.float64)
        return self._known[2].view(a.shape)

    def _listened(self, x: Tensor) -> tuple[list[_Tap], Tensor]:
        """What each layer sees of a batch, and the model's output."""
        taps = {layer: _Tap() for layer in self._layers}
        handles = [layer.register_forward_hook(_listen(tap)) for layer, tap in taps.items()]
        try:
            output = self._model(x)
        finally:
            for handle in handles:
                handle.remove()
        for layer, tap in taps.items():
            if len(tap.outputs) != 1 or tap.outputs[0][0]._version != tap.outputs[0][1]:
                raise NotApart("a layer is used twice or not at all, or its output is overwritten")
            a, b = tap.inputs[0], tap.outputs[0][0]
            if not len(a) == len(b) == len(output) == len(x) or a.dim() < (4 if type(layer) is nn.Conv2d else 2):
                raise NotApart("a layer does not see one row an example")
        return list(taps.values()), output


class Gradients(Protocol):
    """Gradients of single examples, formed or not.

    Attributes
    ----------
    squares : Tensor
        [B], their squared norms in float64.
    """

    @property
    def squares(self) -> Tensor: ...

    def parts(self) -> list[Tensor]:
        """Everything that they are made of, as tensors [B, ...]."""

    def sum(self, scale: Tensor) -> Tensor:
        """Sum [d] with factors [B], in float64; where the factor is 0 the gradient may be NaN or infinite."""

    def means(self, weights: Tensor, each: int) -> Tensor:
        """Weighted sums of every `each` rows, formed: [B / each, d] float64, with weights [B] as for `sum`."""


class _OfLayers:
    def __init__(self, layers: list[_OfLayer], layout: Layout) -> None:
        self._layers, self._layout = layers, layout

    @property
    def squares(self) -> Tensor:
        return torch.stack([one.squares() for one in self._layers]).sum(0)

    def parts(self) -> list[Tensor]:
        return [part for one in self._layers for part in one.parts()]

    def means(self, weights: Tensor, each: int) -> Tensor:
        self._drop(weights == 0)
        named = {name: value for one in self._layers for name, value in one.means(weights, each)}
        return torch.cat([named[name].flatten(1) for name in self._layout.names], 1)

    def _drop(self, gone: Tensor) -> None:
        if gone.any():
            for one in self._layers:
                one.drop(gone)

    def sum(self, scale: Tensor) -> Tensor:
        self._drop(scale == 0)
        named = {name: value for one in self._layers for name, value in one.sum(scale)}
        return torch.cat([named[name].reshape(-1) for name in self._layout.names])


class _OfLayer:
    """Gradients of one layer's parameters for single examples: their squared norms [B] and their weighted sum."""

    def __init__(self, layer: nn.Module, names: dict[str, str], a: Tensor, b: Tensor, wide: Tensor | None) -> None:
        self._names, self._a, self._b, self._wide = names, a, b, wide
        self._dense = type(layer) is nn.Linear and a.dim() == 2
        self._formed: dict[str, Tensor] = {} if self._dense else _RULES[type(layer)](layer, a, b)

    def squares(self) -> Tensor:
        """Squared norms [B]: of a dense layer products of two."""
        if self._dense:
            return _square(self._b) * (_square(self._a) + ("bias" in self._names))
        return torch.stack([_square(g) for g in self._formed.values()]).sum(0)

    def parts(self) -> list[Tensor]:
        """What the sum is made of."""
        return [self._a, self._b] if self._dense else list(self._formed.values())

    def drop(self, gone: Tensor) -> None:
        """Make the rows of some examples 0: 0 times infinity is no 0."""
        if not self._a.sum().isfinite():
            self._a, self._wide = without(self._a, gone), None
        self._b = without(self._b, gone)
        self._formed = {name: without(rows, gone) for name, rows in self._formed.items()}

    def means(self, weights: Tensor, each: int) -> list[tuple[str, Tensor]]:
        """(name in the layout, weighted sums [B / each, *shape] of every `each` examples' gradients)."""
        if not self._dense:
            return [(self._names[k], grouped(g.flatten(1), weights, each)) for k, g in self._formed.items()]
        wide = self._a.to(torch.float64) if self._wide is None else self._wide
        a, b = (v.view(-1, each, v.shape[1]) for v in (wide, self._b * weights[:, None]))
        found = {"weight": torch.bmm(b.transpose(1, 2), a), "bias": b.sum(1)}
        return [(self._names[k], value) for k, value in found.items() if k in self._names]

    def sum(self, scale: Tensor) -> list[tuple[str, Tensor]]:
        """(name in the layout, sum over the examples of scale times gradient)."""
        if not self._dense:
            formed = self._formed.items()
            return [(self._names[k], weighted(g.reshape(len(g), -1), scale).view(g.shape[1:])) for k, g in formed]
        scaled = self._b.to(torch.float64) * scale[:, None]
        found: dict[str, Tensor] = {"weight": scaled.T @ self._a.to(torch.float64), "bias": scaled.sum(0)}
        return [(self._names[k], value) for k, value in found.items() if k in self._names]


def weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum [d] of rows [B, d] with weights [B], in float64, a block converted at a time."""
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for start in range(0, len(rows), step):
        total += weights[start : start + step] @ rows[start : start + step].to(torch.float64)
    return total


def grouped(rows: Tensor, weights: Tensor, each: int) -> Tensor:
    """Weighted sums [B / each, d] of every `each` rows [B, d], in float64."""
    parts = rows.view(-1, each, rows.shape[1])
    return torch.stack([w @ part.to(torch.float64) for w, part in zip(weights.view(-1, each), parts, strict=True)])


def without(rows: Tensor, gone: Tensor) -> Tensor:
    """Rows [B, ...] with 0 where `gone` [B] is set, whatever was there."""
    return rows.masked_fill(gone.view(-1, *[1] * (rows.dim() - 1)), 0)


def _square(value: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1, dtype=torch.float64)
    return lengths.square()


def _listen(tap: _Tap) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def hook(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        tap.inputs.append(args[0].detach())
        tap.outputs.append((output, output._version))

    return hook


def _linear(layer: nn.Linear, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    rows, grads = a.reshape(len(a), -1, a.shape[-1]), b.reshape(len(b), -1, b.shape[-1])
    found = {"weight": torch.bmm(grads.transpose(1, 2), rows)}
    return found if layer.bias is None else {**found, "bias": grads.sum(1)}


def _convolution(layer: nn.Conv2d, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    patches = F.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    n, groups, grads = len(a), layer.groups, b.reshape(len(b), layer.out_channels, -1)
    blocks = patches.view(n * groups, -1, patches.shape[-1])
    weight = torch.bmm(grads.reshape(n * groups, -1, grads.shape[-1]), blocks.transpose(1, 2))
    found = {"weight": weight.view(n, *layer.weight.shape)}
    return found if layer.bias is None else {**found, "bias": grads.sum(2)}


def _group_norm(layer: nn.GroupNorm, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    normal = F.group_norm(a, layer.num_groups, None, None, layer.eps)
    shape = (len(a), a.shape[1], -1)
    return {"weight": (b * normal).reshape(shape).sum(2), "bias": b.reshape(shape).sum(2)}


def _layer_norm(layer: nn.LayerNorm, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    normal = F.layer_norm(a, layer.normalized_shape, None, None, layer.eps)
    shape: Sequence[int] = (len(a), -1, *layer.normalized_shape)
    found = {"weight": (b * normal).reshape(shape).sum(1)}
    return found if layer.bias is None else {**found, "bias": b.reshape(shape).sum(1)}


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
}
# without parameters: what they give for a row follows from that row alone
_PLAIN: frozenset[type[nn.Module]] = frozenset(
    {nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, KeyedDropout}
    | {nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Softmax, nn.LogSoftmax}
    | {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign}
    | {nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Tanhshrink}
    | {nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.ZeroPad2d}
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
