"""Gradients of single examples of one layer from its inputs and output gradients: a rule a kind of layer.

`layer_rule` registers one more, after which models with such layers go the fast way (`fedveil.learning.layerwise`):

    @layer_rule(nn.Conv1d, axes=3, fits=lambda layer: layer.padding_mode == "zeros")
    def convolution(layer, inputs, grads):
        ...
        return {"weight": ..., "bias": ...}
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight
from torch.nn.modules import module as torch_module

from fedveil.errors import FieldError
from fedveil.learning.streams import KeyedDropout


class NotApart(Exception):
    """The model is not one whose layers' gradients follow from inputs and output gradients."""


Form = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class LayerRule:
    """How the gradients of a kind of layer are formed.

    Attributes
    ----------
    form : callable
        ``(layer, inputs [B, ...], output gradients [B, ...]) -> {parameter: gradients [B, *shape]}``.
    axes : int
        The least number of axes of inputs and outputs, the examples' among them.
    fits : callable
        ``(layer) -> bool``: whether this layer's options are ones that `form` follows.
    """

    form: Form
    axes: int
    fits: Callable[[Any], bool]


_RULES: dict[type[nn.Module], LayerRule] = {}


def layer_rule(
    kind: type[nn.Module], *, axes: int = 2, fits: Callable[[Any], bool] = lambda layer: True
) -> Callable[[Form], Form]:
    """Register the rule of a kind of layer: of exactly this class, without its subclasses.

    Who registers one promises that a row of the layer's output, and of what the rule returns, follows from the same
    row of its inputs alone, that neither raises for a value (an index beyond a table), and that the layer keeps
    nothing from one call to the next (docs/rounding.md). The start-up check of the kernels covers it as all others; a
    rule that forms something else than the gradient trains something else, under the same promise.

    Parameters
    ----------
    kind : type
        A class of `torch.nn` or one of yours, with parameters or without (the rule then returns an empty mapping).
    axes, fits
        See `LayerRule`.

    Raises
    ------
    FieldError
        If the kind has a rule.
    """

    def register(form: Form) -> Form:
        if kind in _RULES:
            raise FieldError("layer_rule", kind.__name__, "has a rule: give your layer a class of its own")
        _RULES[kind] = LayerRule(form, axes, fits)
        return form

    return register


def rule_of(layer: nn.Module) -> LayerRule | None:
    """The rule of a layer's kind, where its options are ones that the rule follows."""
    rule = _RULES.get(type(layer))
    return rule if rule is not None and rule.fits(layer) else None


def is_known(layer: nn.Module) -> bool:
    """Whether a module is exactly what torch, FedVeil or who registered a rule wrote, and keeps rows apart."""
    if isinstance(layer, nn.Flatten | nn.Unflatten | nn.Softmax | nn.LogSoftmax):
        axis = getattr(layer, "start_dim", getattr(layer, "dim", None))
        if not isinstance(axis, int) or axis < 1:
            return False
    return type(layer) in _PLAIN or rule_of(layer) is not None


def refuse_hooks(model: nn.Module) -> None:
    """Refuse a model that something listens to.

    Raises
    ------
    NotApart
        If it does.
    """
    if torch_module._has_any_global_hook() or any(_has_hooks(m) for m in model.modules()):  # type: ignore[no-untyped-call]
        raise NotApart("a module has hooks")


def _has_hooks(layer: nn.Module) -> bool:
    """Whether something listens to a module or its parameters, or stands in for one of its methods."""
    if any(getattr(layer, name, None) for name in _HOOKS) or layer._compiled_call_impl is not None:
        return True
    if any(callable(getattr(type(layer), name, None)) for name in vars(layer)):
        return True
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
    every = list(layer.parameters(recurse=False))
    return any(type(p) is not nn.Parameter or any(getattr(p, name, None) for name in hooks) for p in every)


@layer_rule(nn.Linear)
def _linear(layer: nn.Linear, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    rows, grads = a.reshape(len(a), -1, a.shape[-1]), b.reshape(len(b), -1, b.shape[-1])
    formed = {"weight": torch.bmm(grads.transpose(1, 2), rows)}
    return formed if layer.bias is None else {**formed, "bias": grads.sum(1)}


@layer_rule(nn.Conv2d, axes=4, fits=lambda layer: layer.padding_mode == "zeros" and not isinstance(layer.padding, str))
def _convolution(layer: nn.Conv2d, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    n, (o, *rest) = len(a), layer.weight.shape  # one convolution, to which each example is a group of its own
    x, grads = a.reshape(1, -1, *a.shape[2:]), b.reshape(1, -1, *b.shape[2:])
    options: Any = (layer.stride, layer.padding, layer.dilation, n * layer.groups)
    weight: Tensor = conv2d_weight(x, torch.Size((n * o, *rest)), grads, *options)  # type: ignore[no-untyped-call]
    formed = {"weight": weight.view(n, o, *rest)}
    return formed if layer.bias is None else {**formed, "bias": b.flatten(2).sum(2)}


@layer_rule(nn.GroupNorm)
def _group_norm(layer: nn.GroupNorm, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    normal = F.group_norm(a, layer.num_groups, None, None, layer.eps)
    shape = (len(a), a.shape[1], -1)
    return {"weight": (b * normal).reshape(shape).sum(2), "bias": b.reshape(shape).sum(2)}


@layer_rule(nn.LayerNorm)
def _layer_norm(layer: nn.LayerNorm, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    normal = F.layer_norm(a, layer.normalized_shape, None, None, layer.eps)
    shape: Sequence[int] = (len(a), -1, *layer.normalized_shape)
    formed = {"weight": (b * normal).reshape(shape).sum(1)}
    return formed if layer.bias is None else {**formed, "bias": b.reshape(shape).sum(1)}


# without parameters: what they give for a row follows from that row alone
_PLAIN: frozenset[type[nn.Module]] = frozenset(
    {nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, KeyedDropout}
    | {nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Softmax, nn.LogSoftmax}
    | {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign}
    | {nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Tanhshrink}
    | {nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.ZeroPad2d}
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
