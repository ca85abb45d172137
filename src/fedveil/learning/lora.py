"""Low-rank adapters on a frozen model, and the merged model back.

Source: Hu et al. 2021 (arXiv 2106.09685). A layer's weights W stay as they are; W + (alpha / rank) B A is used, with B
and A of the given rank. Only A and B are trained, clipped and noised: the base, the rank, the targets and the start of
A are public.
"""

from collections.abc import Iterable
from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, nearest, require_count, require_positive
from fedveil.learning.frozen import freeze, require_parts
from fedveil.mechanisms.source import keyed_seed

_SHOWN = 20  # names of layers in a refusal


class LowRank(nn.Module):
    """A frozen layer and the product of two narrow ones beside it.

    Parameters
    ----------
    base : Linear or Conv2d
        Stays as it is.
    rank : int
        Width of the narrow layers.
    scale : float
        By which their product is multiplied.
    generator : torch.Generator
        Draws A; B begins at 0, so that the model begins as the base.
    """

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        place, kind = base.weight.device, base.weight.dtype
        down: nn.Linear | nn.Conv2d
        up: nn.Linear | nn.Conv2d
        if isinstance(base, nn.Conv2d):
            how: Any = {"stride": base.stride, "padding": base.padding, "dilation": base.dilation}
            kernel: Any = base.kernel_size
            down = nn.Conv2d(base.in_channels, rank, kernel, bias=False, padding_mode=base.padding_mode, **how)
            up = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        else:
            down = nn.Linear(base.in_features, rank, bias=False)
            up = nn.Linear(rank, base.out_features, bias=False)
        with torch.no_grad():
            edge = (3 / down.weight[0].numel()) ** 0.5  # variance 1 over the inputs
            down.weight.copy_(torch.rand(down.weight.shape, generator=generator) * 2 * edge - edge)
            up.weight.zero_()
        self.down, self.up = down.to(place, kind), up.to(place, kind)

    def forward(self, x: Tensor) -> Tensor:
        """The base's outputs, and the adapter's added."""
        added: Tensor = self.up(self.down(x))
        outputs: Tensor = self.base(x)
        return outputs + added * self.scale

    @property
    def weight(self) -> Tensor:
        """The weights of the merged layer, for modules that read a layer's weights instead of calling it."""
        base, down, up = self.base.weight, self.down.weight, self.up.weight
        product = up.flatten(1) @ down.flatten(1)
        return base + product.view(base.shape) * self.scale

    @property
    def bias(self) -> Tensor | None:
        """The base's bias."""
        return self.base.bias

    def merged(self) -> nn.Module:
        """A layer of the base's kind with the adapter in its weights."""
        base = self.base
        with torch.no_grad():
            product = self.up.weight.double().flatten(1) @ self.down.weight.double().flatten(1)
            weight = base.weight.double() + product.view(base.weight.shape) * self.scale
            new = deepcopy(base)
            new.weight = nn.Parameter(weight.to(base.weight.dtype), requires_grad=base.weight.requires_grad)
        return new


def lora(
    model: nn.Module,
    rank: int,
    targets: Iterable[str],
    *,
    train: Iterable[str] = (),
    alpha: float | None = None,
    seed: int = 0,
) -> nn.Module:
    """A frozen copy of a model with low-rank adapters on some layers.

    Frozen batch normalisation is folded or kept as a constant, see `freeze`. `merged` gives the model without adapters.

    Parameters
    ----------
    model : torch.nn.Module
        Is left as it is.
    rank : int
        At least 1, and below the layers' own ranks.
    targets : sequence of str
        Dense layers, and convolutions of images without groups: by whole names, or their ends (``"query"`` takes
        ``encoder.0.attention.query``).
    train : sequence of str
        Parts that are trained whole beside the adapters: ``("head",)``.
    alpha : float, optional
        The product is multiplied by alpha / rank; `rank` by default.
    seed : int
        Public, of the adapters' start; no noise is drawn from it.

    Returns
    -------
    torch.nn.Module
        Its trainable parameters are the adapters' and those of `train`.

    Raises
    ------
    FieldError
        If a target names no layer, with the names that there are, or one that has no such adapter.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    >>> small = fv.learning.lora(net, rank=2, targets=("0",), train=("2",))
    >>> sum(p.numel() for p in small.parameters() if p.requires_grad)
    522
    """
    rank = require_count("rank", rank)
    scale = require_positive("alpha", alpha) / rank if alpha is not None else 1.0
    whole = require_parts(model, train, "train")
    names = _targeted(model, targets)
    adapted = freeze(model, but=whole)
    generator = torch.Generator().manual_seed(keyed_seed("lora", seed))
    for name in names:
        layer = adapted.get_submodule(name)
        _require_adaptable(adapted, name, rank)
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        layer.requires_grad_(False)
        _set(adapted, name, LowRank(layer, rank, scale, generator).train(layer.training))
    return adapted


def merged(model: nn.Module) -> nn.Module:
    """A copy in which every adapter is part of its layer's weights: the architecture that `lora` was given, frozen.

    Parameters
    ----------
    model : torch.nn.Module
        Of `lora`, with the parameters that training left; one without adapters is copied.
    """
    copy = deepcopy(model)
    if isinstance(copy, LowRank):
        return copy.merged()
    for name, part in list(copy.named_modules()):
        if isinstance(part, LowRank):
            _set(copy, name, part.merged())
    return copy


def _targeted(model: nn.Module, targets: Iterable[str]) -> list[str]:
    """Names of the layers that the targets mean, in the model's order."""
    if isinstance(targets, str):
        raise FieldError("targets", targets, f"is one text: write the names in a list, [{targets!r}]")
    wanted = tuple(targets)
    known = [name for name, part in model.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    shown = ", ".join(islice(known, _SHOWN)) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")
    there = f"the layers there are: {shown}" if known else f"{type(model).__name__} has no dense layer or convolution"
    if not wanted:
        raise FieldError("targets", wanted, f"names no layer, so nothing would be adapted; {there}")
    every = [name for name, _ in model.named_modules() if name]
    found: list[str] = []
    for target in wanted:
        meant = [name for name in every if name == target or name.endswith(f".{target}")]
        if not target or not meant:
            raise FieldError(
                "targets", target, f"is no layer of {type(model).__name__}; {nearest(target, known)}; {there}"
            )
        found += meant
    return [name for name in every if name in found]


def _require_adaptable(model: nn.Module, name: str, rank: int) -> None:
    """Refuse a layer without such an adapter, and a rank that spares nothing."""
    layer, parent = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
    kind = type(layer).__name__
    if isinstance(parent, nn.MultiheadAttention):
        accepted = (
            "is read by its weights and never called: adapt the dense layers around it, or write q, k, v as layers"
        )
        raise FieldError("targets", name, accepted)
    if type(layer) not in (nn.Linear, nn.Conv2d):
        raise FieldError("targets", name, f"is a {kind}: adapters are of nn.Linear and nn.Conv2d")
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    if isinstance(layer, nn.Conv2d) and layer.groups > 1:
        accepted = f"has {layer.groups} groups, each with weights of its own: adapt a convolution without groups"
        raise FieldError("targets", name, accepted)
    if any(parameter.requires_grad for parameter in layer.parameters()):
        raise FieldError("targets", name, "is trained whole as well: leave it out of targets or of train")
    shape = layer.weight.flatten(1).shape
    if rank >= min(shape):
        accepted = f"must be below {min(shape)}, the rank of {name} {tuple(layer.weight.shape)}: train that layer whole"
        raise FieldError("rank", rank, accepted)
    own = {other: [id(p) for p in part.parameters(recurse=False)] for other, part in model.named_modules()}
    held = [other for other, known in own.items() if other != name and id(layer.weight) in known]
    if held:
        raise FieldError("targets", name, f"shares its weights with {', '.join(held)}: untie them first")


def _set(model: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, part)
