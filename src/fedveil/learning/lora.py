"""Low-rank adapters on a frozen model, and merging them back into its weights.

Source: Hu et al. 2021 (arXiv 2106.09685). A layer's weights W are frozen; the layer uses W + (alpha / rank) B A, with B
and A of the given rank. Only A and B are trained, clipped and noised. The base, the rank, the targets and the start of
A are public.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, nearest, require_count, require_positive
from fedveil.learning.frozen import freeze, require_parts
from fedveil.mechanisms.source import keyed_seed

_SHOWN = 20  # names of layers shown in a refusal


class LowRank(nn.Module):
    """Layer with a low-rank adapter: a frozen base layer plus the product of two narrow trained layers.

    Parameters
    ----------
    base : Linear or Conv2d
        Layer that stays frozen.
    rank : int
        Width of the narrow layers.
    scale : float
        Factor of the product.
    generator : torch.Generator
        Source of the initial A. B starts at 0, so at first the layer equals its base.
    """

    def __init__(
        self,
        base: nn.Linear | nn.Conv2d,
        rank: int,
        scale: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.base = base
        self.scale = scale
        down, up = _narrow_layers(base, rank)
        with torch.no_grad():
            edge = (3 / down.weight[0].numel()) ** 0.5  # variance 1 over the inputs
            drawn = torch.rand(down.weight.shape, generator=generator)
            down.weight.copy_(drawn * 2 * edge - edge)
            up.weight.zero_()
        self.down = down.to(base.weight.device, base.weight.dtype)
        self.up = up.to(base.weight.device, base.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Add the adapter's outputs to the base's."""
        added: Tensor = self.up(self.down(x))
        outputs: Tensor = self.base(x)
        return outputs + added * self.scale

    @property
    def weight(self) -> Tensor:
        """Weights with the adapter merged in, for modules that read a layer's weights instead of calling it."""
        base = self.base.weight
        product = self.up.weight.flatten(1) @ self.down.weight.flatten(1)
        return base + product.view(base.shape) * self.scale

    @property
    def bias(self) -> Tensor | None:
        """Bias of the base."""
        return self.base.bias

    def merged(self) -> nn.Module:
        """Return a layer of the base's kind with the adapter merged into its weights."""
        old = self.base.weight
        with torch.no_grad():
            up = self.up.weight.double().flatten(1)
            down = self.down.weight.double().flatten(1)
            weight = old.double() + (up @ down).view(old.shape) * self.scale
            new = deepcopy(self.base)
            new.weight = nn.Parameter(weight.to(old.dtype), requires_grad=old.requires_grad)
        return new


def _narrow_layers(
    base: nn.Linear | nn.Conv2d, rank: int
) -> tuple[nn.Linear | nn.Conv2d, nn.Linear | nn.Conv2d]:
    """Make the two narrow layers whose product has the shape of the base's weights."""
    if isinstance(base, nn.Linear):
        down = nn.Linear(base.in_features, rank, bias=False)
        return down, nn.Linear(rank, base.out_features, bias=False)
    options: Any = {
        "stride": base.stride,
        "padding": base.padding,
        "dilation": base.dilation,
        "padding_mode": base.padding_mode,
    }
    kernel: Any = base.kernel_size
    first = nn.Conv2d(base.in_channels, rank, kernel, bias=False, **options)
    return first, nn.Conv2d(rank, base.out_channels, 1, bias=False)


def lora(
    model: nn.Module,
    rank: int,
    targets: Iterable[str],
    *,
    train: Iterable[str] = (),
    alpha: float | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return a frozen copy of a model with low-rank adapters on some layers.

    Frozen batch normalisation is folded or kept as a constant, see `freeze`. `merged` returns the model without
    adapters.

    Parameters
    ----------
    model : torch.nn.Module
        Model, unchanged.
    rank : int
        Rank of the adapters: at least 1, and below the layers' own ranks.
    targets : sequence of str
        Dense layers, and convolutions of images without groups, by whole names or ends of names (``"query"`` matches
        ``encoder.0.attention.query``).
    train : sequence of str
        Parts that are trained whole, in addition to the adapters: ``("head",)``.
    alpha : float, optional
        Numerator of the factor alpha / rank of the product; `rank` by default.
    seed : int
        Public seed of the adapters' start; no noise is drawn from it.

    Returns
    -------
    torch.nn.Module
        Model whose trainable parameters are those of the adapters and of `train`.

    Raises
    ------
    FieldError
        If a target names no layer (the text lists the names), or a layer that cannot have an adapter.

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
    """Copy a model with every adapter merged into its layer's weights: the architecture given to `lora`, frozen.

    Parameters
    ----------
    model : torch.nn.Module
        Model from `lora` with trained parameters; a model without adapters is copied.
    """
    copy = deepcopy(model)
    if isinstance(copy, LowRank):
        return copy.merged()
    for name, part in list(copy.named_modules()):
        if isinstance(part, LowRank):
            _set(copy, name, part.merged())
    return copy


def _targeted(model: nn.Module, targets: Iterable[str]) -> list[str]:
    """Return the names of the layers that match the targets, in the model's order."""
    if isinstance(targets, str):
        raise FieldError(
            "targets", targets, f"is one text: write the names in a list, [{targets!r}]"
        )
    wanted = tuple(targets)
    known = [
        name for name, part in model.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)
    ]
    kind = type(model).__name__
    there = (
        f"the layers there are: {_shown(known)}"
        if known
        else f"{kind} has no dense layer or convolution"
    )
    if not wanted:
        raise FieldError("targets", wanted, f"names no layer, so nothing would be adapted; {there}")
    every = [name for name, _ in model.named_modules() if name]
    found: set[str] = set()
    for target in wanted:
        meant = [name for name in every if name == target or name.endswith(f".{target}")]
        if not target or not meant:
            raise FieldError(
                "targets", target, f"is no layer of {kind}; {nearest(target, known)}; {there}"
            )
        found.update(meant)
    return [name for name in every if name in found]


def _shown(names: list[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _require_adaptable(model: nn.Module, name: str, rank: int) -> None:
    """Refuse a layer without room for an adapter of this rank, or of an unsupported kind."""
    layer = model.get_submodule(name)
    parent, _, _ = name.rpartition(".")
    kind = type(layer).__name__
    if isinstance(model.get_submodule(parent), nn.MultiheadAttention):
        fix = "adapt the dense layers around it, or write q, k, v as layers"
        accepted = f"is read by its weights and never called: {fix}"
        raise FieldError("targets", name, accepted)
    if type(layer) not in (nn.Linear, nn.Conv2d):
        raise FieldError("targets", name, f"is a {kind}: adapters are of nn.Linear and nn.Conv2d")
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    if isinstance(layer, nn.Conv2d) and layer.groups > 1:
        accepted = f"has {layer.groups} groups, each with weights of its own: adapt a convolution without groups"
        raise FieldError("targets", name, accepted)
    if any(parameter.requires_grad for parameter in layer.parameters()):
        raise FieldError(
            "targets", name, "is trained whole as well: leave it out of targets or of train"
        )
    shape = layer.weight.flatten(1).shape
    if rank >= min(shape):
        accepted = f"must be below {min(shape)}, the rank of {name} {tuple(layer.weight.shape)}: train that layer whole"
        raise FieldError("rank", rank, accepted)
    held: list[str] = []
    for other, part in model.named_modules():
        is_shared = any(parameter is layer.weight for parameter in part.parameters(recurse=False))
        if is_shared and other != name:
            held.append(other)
    if held:
        raise FieldError(
            "targets", name, f"shares its weights with {', '.join(held)}: untie them first"
        )


def _set(model: nn.Module, name: str, part: nn.Module) -> None:
    """Replace the part with this name."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, part)
