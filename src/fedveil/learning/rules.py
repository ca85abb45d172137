"""Rules that compute the gradients of single examples of one kind of layer, from its inputs and output gradients.

`layer_rule` registers another rule. Models with such layers then take the fast path (`fedveil.learning.layerwise`):

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
from fedveil.learning.scaled_inputs import ScaledInputs
from fedveil.learning.streams import KeyedDropout


class NotIsolated(Exception):
    """Refusal of a model for a fast gradient rule: its rows may not stay apart, or a layer has no rule."""


Form = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class LayerRule:
    """Rule for one kind of layer: computes the gradients of single examples.

    Attributes
    ----------
    form : callable
        ``(layer, inputs [B, ...], output gradients [B, ...]) -> {parameter: gradients [B, *shape]}``.
    axes : int
        Least number of axes of inputs and outputs, with the batch axis.
    fits : callable
        ``(layer) -> bool``: whether `form` supports the layer's options.
    """

    form: Form
    axes: int
    fits: Callable[[Any], bool]


_RULES: dict[type[nn.Module], LayerRule] = {}


def _always(layer: Any) -> bool:
    """Accept a layer with any options."""
    return True


def layer_rule(
    kind: type[nn.Module],
    *,
    axes: int = 2,
    fits: Callable[[Any], bool] = _always,
) -> Callable[[Form], Form]:
    """Register a gradient rule for one class of layers (not for its subclasses).

    By registering a rule you promise three things (docs/rounding.md). First, each row of the layer's output and of the
    rule's result depends only on the same row of the inputs. Second, no value makes them raise an error (such as an
    index beyond a table). Third, the layer keeps nothing between calls. The start-up check of the kernels covers the
    rule, too. A rule that returns something else than the gradient changes the training, not the privacy promise.

    Parameters
    ----------
    kind : type
        Class of `torch.nn` or of your own. Without parameters the rule returns an empty mapping.
    axes, fits
        See `LayerRule`.

    Raises
    ------
    FieldError
        If the kind already has a rule.
    """

    def register(form: Form) -> Form:
        if kind in _RULES:
            raise FieldError(
                "layer_rule", kind.__name__, "has a rule: give your layer a class of its own"
            )
        _RULES[kind] = LayerRule(form, axes, fits)
        return form

    return register


def rule_of(layer: nn.Module) -> LayerRule | None:
    """Return the rule for a layer's class, or None if there is none that supports the layer's options."""
    rule = _RULES.get(type(layer))
    if rule is None or not rule.fits(layer):
        return None
    return rule


def is_known(layer: nn.Module) -> bool:
    """Whether a module is known to keep the rows of a batch apart: by PyTorch, FedVeil or a registered rule."""
    if isinstance(layer, _OF_AN_AXIS):
        axis = getattr(layer, "start_dim", getattr(layer, "dim", None))
        if not isinstance(axis, int) or axis < 1:
            return False
    return type(layer) in _PLAIN or rule_of(layer) is not None


def refuse_hooks(model: nn.Module) -> None:
    """Refuse a model with hooks, replaced methods or parametrised weights.

    Raises
    ------
    NotIsolated
        If the model has one.
    """
    if torch_module._has_any_global_hook() or any(_has_hooks(m) for m in model.modules()):  # type: ignore[no-untyped-call]
        raise NotIsolated("a module has hooks")


def _has_hooks(layer: nn.Module) -> bool:
    """Whether a module or its parameters have hooks, or one of its methods is replaced."""
    if layer._compiled_call_impl is not None or _has_any(layer, _HOOKS):
        return True
    replaced = [name for name in vars(layer) if callable(getattr(type(layer), name, None))]
    if replaced:
        return True
    for parameter in layer.parameters(recurse=False):
        if type(parameter) is not nn.Parameter or _has_any(parameter, _PARAMETER_HOOKS):
            return True
    return False


def _has_any(owner: object, names: Sequence[str]) -> bool:
    return any(getattr(owner, name, None) for name in names)


@layer_rule(nn.Linear)
def _linear(layer: nn.Linear, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    rows = a.reshape(len(a), -1, a.shape[-1])
    grads = b.reshape(len(b), -1, b.shape[-1])
    formed = {"weight": torch.bmm(grads.transpose(1, 2), rows)}
    if layer.bias is not None:
        formed["bias"] = grads.sum(1)
    return formed


_FEW_PLACES = 16  # of an output, below which products with patches are faster


def _pads_with_zeros(layer: nn.Conv2d) -> bool:
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


@layer_rule(nn.Conv2d, axes=4, fits=_pads_with_zeros)
def _convolution(layer: nn.Conv2d, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    if layer.groups == 1 and b[0, 0].numel() <= _FEW_PLACES:
        weight = _from_patches(layer, a, b)
    else:
        weight = _in_groups(layer, a, b)
    formed = {"weight": weight}
    if layer.bias is not None:
        formed["bias"] = b.flatten(2).sum(2)
    return formed


def _in_groups(layer: nn.Conv2d, a: Tensor, b: Tensor) -> Tensor:
    """Return the weight gradients [B, out, in, h, w] by one convolution, with each example as its own group."""
    n = len(a)
    outputs, *rest = layer.weight.shape
    x = a.reshape(1, -1, *a.shape[2:])
    grads = b.reshape(1, -1, *b.shape[2:])
    options: Any = (layer.stride, layer.padding, layer.dilation, n * layer.groups)
    shape = torch.Size((n * outputs, *rest))
    weight: Tensor = conv2d_weight(x, shape, grads, *options)  # type: ignore[no-untyped-call]
    return weight.view(n, outputs, *rest)


def _from_patches(layer: nn.Conv2d, a: Tensor, b: Tensor) -> Tensor:
    """Return the weight gradients [B, out, in, h, w] as products of output gradients and patches of the inputs.

    The convolution of `_in_groups` takes up to 7 times as long for many channels and few places.
    """
    padding: Any = layer.padding  # no text: `_pads_with_zeros`
    patches = F.unfold(a, layer.kernel_size, layer.dilation, padding, layer.stride)
    products = torch.bmm(b.flatten(2), patches.transpose(1, 2))
    return products.view(len(a), *layer.weight.shape)


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
    if layer.bias is not None:
        formed["bias"] = b.reshape(shape).sum(1)
    return formed


# layers without parameters; their output for a row depends on that row only
_PLAIN: frozenset[type[nn.Module]] = frozenset(
    {nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, KeyedDropout, ScaledInputs}
    | {nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Softmax, nn.LogSoftmax}
    | {
        nn.ReLU,
        nn.ReLU6,
        nn.LeakyReLU,
        nn.ELU,
        nn.CELU,
        nn.SELU,
        nn.GELU,
        nn.SiLU,
        nn.Mish,
        nn.Softplus,
        nn.Softsign,
    }
    | {nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Tanhshrink}
    | {nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.ZeroPad2d}
)
_OF_AN_AXIS = (nn.Flatten, nn.Unflatten, nn.Softmax, nn.LogSoftmax)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
