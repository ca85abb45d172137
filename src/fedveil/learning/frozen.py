"""Public parts of a model that never change: frozen parameters, folded statistics, features computed once.

A pretrained network is a public constant. The layers before its first trained layer give an example the same features
in every round, so these are computed once.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from copy import deepcopy
from itertools import takewhile

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedveil.errors import FieldError, kind_of, nearest, require_a
from fedveil.learning.inputs import Inputs
from fedveil.learning.losses import evaluating, outputs_of
from fedveil.learning.rules import layer_rule
from fedveil.logs import logger

_LOG = logger(__name__)
_FOLDABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class FixedNorm(nn.Module):
    """Batch normalisation with constant statistics, so that examples do not influence each other.

    Parameters
    ----------
    norm : BatchNorm1d, BatchNorm2d or BatchNorm3d
        Layer whose running mean and variance become constants. Its scale and shift are trained if they were before.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        if norm.running_mean is None or norm.running_var is None:
            raise FieldError(
                "norm", kind_of(norm), "must have running statistics: it has none to keep"
            )
        self.register_buffer("mean", norm.running_mean.detach().clone())
        precise = norm.running_var.detach().to(torch.float64)
        self.register_buffer("factor", (precise + norm.eps).rsqrt().to(norm.running_var.dtype))
        self.weight = _of(norm.weight, torch.ones_like(norm.running_mean))
        self.bias = _of(norm.bias, torch.zeros_like(norm.running_mean))

    def normal(self, x: Tensor) -> Tensor:
        """Return the normalised input [B, channels, ...], without scale and shift."""
        shape = _of_channels(x)
        mean = self.get_buffer("mean").view(shape)
        factor = self.get_buffer("factor").view(shape)
        return (x - mean) * factor

    def forward(self, x: Tensor) -> Tensor:
        """Normalise inputs [B, channels, ...], and apply scale and shift."""
        shape = _of_channels(x)
        return self.normal(x) * self.weight.view(shape) + self.bias.view(shape)


def _of_channels(x: Tensor) -> tuple[int, ...]:
    """Return the shape that broadcasts one number for each channel over [B, channels, ...]."""
    trailing = [1] * (x.dim() - 2)
    return (-1, *trailing)


def _of(parameter: nn.Parameter | None, usual: Tensor) -> nn.Parameter:
    """Return a copy of a parameter, or an untrained parameter of the usual values if there is none."""
    if parameter is None:
        return nn.Parameter(usual, requires_grad=False)
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)


@layer_rule(FixedNorm)
def _fixed_norm(layer: FixedNorm, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    shape = (len(a), a.shape[1], -1)
    weight = (b * layer.normal(a)).reshape(shape).sum(2)
    return {"weight": weight, "bias": b.reshape(shape).sum(2)}


def freeze(model: nn.Module, *, but: Iterable[str] = ()) -> nn.Module:
    """Copy a model with all parameters frozen, except those of the named parts.

    Statistics of batch normalisation become constants everywhere. A frozen normalisation after a frozen convolution or
    dense layer is folded into that layer's weights. So in evaluation mode the outputs stay the same up to rounding.
    (``mend`` would replace the normalisation by another kind. That ruins a pretrained network.)

    Parameters
    ----------
    model : torch.nn.Module
        Model, unchanged.
    but : sequence of str
        Names of the parts that are still trained: ``("head",)``.

    Raises
    ------
    FieldError
        For a name that the model does not have; the text lists the names that it has.

    Examples
    --------
    >>> net = torch.nn.Sequential(
    ...     torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1)
    ... )
    >>> [
    ...     name
    ...     for name, p in fv.learning.freeze(net, but=("2",)).named_parameters()
    ...     if p.requires_grad
    ... ]
    ['2.weight', '2.bias']
    """
    parts = require_parts(model, but, "but")
    copy = deepcopy(model)
    for name, parameter in copy.named_parameters():
        parameter.requires_grad_(within(name, parts) and parameter.requires_grad)
    return _without_statistics(copy)


def require_parts(
    model: nn.Module,
    names: Iterable[str],
    field: str,
) -> tuple[str, ...]:
    """Return the names as a tuple, after checking that each is a part of the model and has parameters.

    Raises
    ------
    FieldError
        For a part that does not exist or has no parameters.
    """
    require_a("model", model, nn.Module, "must be a torch.nn.Module")
    if isinstance(names, str):
        raise FieldError(field, names, f"is one text: write the names in a list, [{names!r}]")
    chosen = tuple(names)
    known: list[str] = []
    for name, part in model.named_modules():
        if name and list(part.parameters()):
            known.append(name)
    known += dict(model.named_parameters())
    for name in chosen:
        if name not in known:
            there = ", ".join(name for name in known if "." not in name)
            accepted = (
                f"is no part of {type(model).__name__}; {nearest(name, known)}; it has {there}"
            )
            raise FieldError(field, name, accepted)
    return chosen


def within(name: str, parts: Iterable[str]) -> bool:
    """Whether a parameter's name is one of these parts or lies in one."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def _without_statistics(model: nn.Module) -> nn.Module:
    """Replace or fold each batch normalisation that still computes statistics of a batch."""
    if isinstance(model, _BatchNorm):
        return FixedNorm(model)
    for layer, norm in _pairs(model):
        before = model.get_submodule(layer)
        _put(model, layer, _folded(before, model.get_submodule(norm)))
        _put(model, norm, nn.Identity())
    for name, part in list(model.named_modules()):
        if isinstance(part, _BatchNorm):
            _put(model, name, FixedNorm(part))
    return model


def _pairs(model: nn.Module) -> list[tuple[str, str]]:
    """Find the frozen normalisations that can be folded: pairs of a frozen layer and the only user of its output."""
    if not any(isinstance(part, _BatchNorm) for part in model.modules()):
        return []
    try:
        nodes = list(_Layers().trace(deepcopy(model)).nodes)
    except Exception as error:  # an error of the model's own code; its normalisations then stay layers of their own
        _LOG.info("normalisations are not folded, the model cannot be read: %s", error)
        return []
    calls = [node for node in nodes if node.op == "call_module"]
    times = Counter(node.target for node in calls)
    once = [node for node in calls if times[node.target] == 1]
    pairs: list[tuple[str, str]] = []
    for node in once:
        norm = model.get_submodule(str(node.target))
        if not isinstance(norm, _BatchNorm) or not _frozen(norm) or norm.running_mean is None:
            continue
        [before] = node.all_input_nodes
        if before not in once or len(before.users) != 1:
            continue
        layer = model.get_submodule(str(before.target))
        if type(layer) in _FOLDABLE and _frozen(layer):
            pairs.append((str(before.target), str(node.target)))
    used: set[int] = set()
    for pair in pairs:
        used.update(id(model.get_submodule(name)) for name in pair)
    is_shared = len(used) != 2 * len(pairs) or _shared_weights(model)
    return [] if is_shared else pairs


class _Layers(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or isinstance(m, FixedNorm)


def _shared_weights(model: nn.Module) -> bool:
    """Whether two layers share a parameter."""
    every = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
    return len(every) != len(set(every))


def _frozen(layer: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in layer.parameters())


def _folded(layer: nn.Module, norm: nn.Module) -> nn.Module:
    """Return the layer with the normalisation folded into its weights and bias."""
    assert isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    precise = torch.float64
    scale = (norm.running_var.to(precise) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().to(precise)
    old = torch.zeros_like(scale) if layer.bias is None else layer.bias.detach().to(precise)
    shift = (old - norm.running_mean.to(precise)) * scale
    if norm.bias is not None:
        shift = shift + norm.bias.detach().to(precise)
    weight = layer.weight.detach()
    trailing = [1] * (weight.dim() - 1)
    scaled = weight.to(precise) * scale.view(-1, *trailing)
    new = deepcopy(layer)
    new.weight = nn.Parameter(scaled.to(weight.dtype), requires_grad=False)
    new.bias = nn.Parameter(shift.to(weight.dtype), requires_grad=False)
    return new


def _put(model: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    part.train(model.get_submodule(name).training)
    setattr(model.get_submodule(parent), leaf, part)


def split(model: nn.Sequential) -> tuple[nn.Sequential, nn.Sequential]:
    """Split a model before its first trained part: into the frozen parts, and the rest.

    Parameters
    ----------
    model : torch.nn.Sequential
        Model; both halves share its parts, under the same names.

    Raises
    ------
    FieldError
        For a model that is not an ``nn.Sequential``, has no frozen parameters before its first trained part, or has no
        trained part.
    """
    if not isinstance(model, nn.Sequential):
        accepted = "must be an nn.Sequential: its first parts give the features, the others are trained on them"
        raise FieldError("model", kind_of(model), accepted)
    front = len(list(takewhile(_frozen, model)))
    fixed = sum(parameter.numel() for parameter in model[:front].parameters())
    if not fixed or front == len(model):
        accepted = "has no frozen part before a trained one: freeze(model, but=(...)) or lora(...) makes one"
        raise FieldError("model", kind_of(model), accepted)
    parts = list(model.named_children())
    return nn.Sequential(OrderedDict(parts[:front])), nn.Sequential(OrderedDict(parts[front:]))


def features(model: nn.Module, x: Tensor) -> Tensor:
    """Compute the outputs of a frozen model for each example, independent of the other examples.

    The bits of an output depend on that example, the weights and public facts, and on no other example
    (docs/rounding.md). An example on which the model fails gets NaN, and counts as zero in private training.

    Parameters
    ----------
    model : torch.nn.Module
        Model; runs in evaluation mode, without gradients.
    x : Tensor
        [N, ...], examples.

    Returns
    -------
    Tensor
        [N, ...] features, on the CPU.

    Raises
    ------
    FieldError
        If the model has trained parameters, or fails on an example of zeros.

    Examples
    --------
    >>> fv.learning.features(torch.nn.Linear(3, 2).requires_grad_(False), torch.rand(5, 3)).shape
    torch.Size([5, 2])
    """
    kind = type(model).__name__
    parameters = dict(model.named_parameters())
    if not parameters:
        raise FieldError("model", kind, "has no parameters: it is no backbone")
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            raise FieldError(
                "model", kind, f"trains {name}: features are of a frozen model, freeze it"
            )
    inputs = Inputs.of(model)

    def one(example: Tensor) -> Tensor:
        answer = outputs_of(model(inputs(example)))
        if not answer.dim() or len(answer) != 1:
            raise FieldError("model", kind, f"gives {list(answer.shape)} for one example")
        return answer[0].cpu()

    zeros = torch.zeros_like(x[:1]) if len(x) else x.new_zeros((1, *x.shape[1:]))
    with evaluating(model), torch.no_grad():
        try:
            made_up = one(zeros)
        except FieldError:
            raise
        except Exception as error:
            accepted = f"fails on a made-up example {list(x.shape[1:])}: {error}"
            raise FieldError("model", kind, accepted) from error
        found = made_up.new_full((len(x), *made_up.shape), torch.nan)
        for i in range(len(x)):
            try:
                found[i] = one(x[i : i + 1].clone())
            except Exception:  # an error of this example only, which is reported to nobody
                _LOG.debug("an example has no features")
    return found
