"""Modules that prevent training on clipped gradients of single examples: how to find and replace them."""

from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedveil.errors import FieldError, kind_of
from fedveil.layout import Layout
from fedveil.learning.inputs import Inputs
from fedveil.learning.losses import outputs_of
from fedveil.learning.made_up import probes

_ROWS = 3  # rows of the batch that is checked


@dataclass(frozen=True)
class Offence:
    """Module of a model that prevents or falsifies gradients of single examples.

    Attributes
    ----------
    name : str
        Name of the module in the model; "" for the model itself.
    kind : str
        Class of the module.
    problem : str
        How the module does this, for refusals.
    """

    name: str
    kind: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name or 'the model'} ({self.kind}) {self.problem}"


def offences(model: nn.Module) -> tuple[Offence, ...]:
    """Find the modules of a model that prevent or falsify gradients of single examples.

    Parameters
    ----------
    model : torch.nn.Module
        Model, unchanged.
    """
    offending: list[Offence] = []
    for name, module in model.named_modules():
        problem = _problem(module)
        if problem:
            offending.append(Offence(name, type(module).__name__, problem))
    return tuple(offending)


def mend(model: nn.Module) -> nn.Module:
    """Copy a model, with replacements for modules that prevent gradients of single examples.

    Batch normalisation becomes group normalisation (new scales and shifts), in-place activations become ordinary ones,
    running statistics of instance normalisation are dropped. Embeddings lose ``sparse``, ``scale_grad_by_freq`` and
    ``max_norm``.

    Raises
    ------
    FieldError
        If a module has no replacement.
    """
    mended = deepcopy(model)
    for name, module in list(mended.named_modules()):
        if isinstance(module, _BatchNorm | _InstanceNorm) and _problem(module):
            if not name:
                return mend(nn.Sequential(mended))
            parent, _, leaf = name.rpartition(".")
            setattr(mended.get_submodule(parent), leaf, _normalisation(module))
        if getattr(module, "inplace", False):
            module.inplace = False
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
            module.scale_grad_by_freq = False
            module.max_norm = None
    require_separable(mended)
    return mended


def require_separable(model: nn.Module) -> None:
    """Refuse a model that cannot give the gradients of single examples.

    Raises
    ------
    FieldError
        For such a model; the text names every offending module.
    """
    offending = offences(model)
    if offending:
        reasons = "; ".join(map(str, offending))
        accepted = f"cannot be trained on the gradients of single examples: {reasons}."
        fix = "fedveil.learning.mend(model) repairs it"
        raise FieldError("model", kind_of(model), f"{accepted} {fix}")


def require_unmixed(model: nn.Module, x: Tensor, layout: Layout) -> None:
    """Refuse a model that visibly mixes the examples of a batch, because training on single examples would change it.

    No promise relies on this check, as it tries few values; `PerExample` never mixes examples.

    Parameters
    ----------
    model : torch.nn.Module
        Model; checked in training mode, except its dropout.
    x : Tensor
        Examples, of which only shape and type are used.
    layout : Layout
        Layout of the model.

    Raises
    ------
    FieldError
        If the model mixes examples, or fails on made-up ones.
    """
    inputs = Inputs.of(model)
    copy = deepcopy(model).train()
    for part in copy.modules():
        if _draws(part):
            part.eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        failure = _failure(copy, inputs, x)
        if failure is not None:
            accepted = (
                f"fails on made-up examples {list(x.shape[1:])} of the declared shape: {failure}"
            )
            raise FieldError("model", kind_of(model), accepted) from failure
        # layers that begin at zero would hide earlier ones; models that a server sends do not begin at zero
        for name, parameter in copy.named_parameters():
            if (
                name in layout.names
            ):  # a server never sends a frozen parameter, and it may be a variance
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        _failure(copy, inputs, x)


def _draws(part: nn.Module) -> bool:
    """Whether a module draws random numbers: dropout, or RReLU (whose number of draws depends on signs of values)."""
    is_dropout = "dropout" in type(part).__name__.lower() and not list(part.children())
    return is_dropout or isinstance(part, nn.RReLU)


def _failure(model: nn.Module, inputs: Inputs, x: Tensor) -> Exception | None:
    """Refuse a model that mixes examples like x [N, ...]; return its error if it accepts none of them."""
    failure: Exception | None = None
    for probe, other in probes(x, _ROWS):
        try:
            _require_separable_in(model, inputs(probe), inputs(other))
            return None
        except FieldError:
            raise
        except Exception as error:  # the model is the user's code
            failure = failure or error
    return failure


def _require_separable_in(model: nn.Module, probe: Tensor, other: Tensor) -> None:
    """Refuse a model whose output for a row differs between two batches, or from the row's output alone."""

    def answer(batch: Tensor, seed: int = 0) -> Tensor:
        torch.default_generator.manual_seed(seed)  # for dropout that is not a module
        return outputs_of(model(batch))

    def refuse(accepted: str) -> FieldError:
        return FieldError("model", kind_of(model), accepted)

    together = answer(probe)
    if not together.dim() or len(together) != len(probe):
        shape = list(together.shape)
        raise refuse(
            f"gives {shape} for {len(probe)} examples, and not one row an example: is batch_first=True there?"
        )
    if together.isnan().all():
        raise refuse(
            "its output is no number on small random weights: whether it mixes examples cannot be seen"
        )
    for place, row in enumerate(together):
        changed = other.clone()
        changed[place] = probe[place]
        among_others = answer(changed)[place]
        # both are computed in the same way, so they agree to the last digits; even a faint stored mean shows
        if not torch.allclose(row, among_others, rtol=1e-6, atol=1e-9, equal_nan=True):
            raise refuse(
                "its output for one example depends on the other examples it sees: no clipping bounds that. "
                "nn.GRU, nn.LSTM and attention need batch_first=True where the first axis numbers the examples"
            )
    if not torch.allclose(together, answer(probe, seed=1), rtol=1e-3, equal_nan=True):
        return  # the model draws, and draws other numbers for one example
    least = 1e-3 * float(together.nan_to_num().abs().max())
    for place, row in enumerate(together):
        single = answer(probe[place : place + 1])
        is_same = single.numel() == row.numel() and torch.allclose(
            single.reshape(row.shape),
            row,
            rtol=1e-3,
            atol=least,
            equal_nan=True,
        )
        if not is_same:
            raise refuse(
                "its output for one example alone is another one than in a batch: no clipping bounds that"
            )


def _problem(module: nn.Module) -> str:
    """Describe how a module falsifies gradients of single examples; "" if it does not."""
    if isinstance(module, _BatchNorm):
        return "mixes the examples of a batch"
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "keeps running statistics, which no noise covers"
    if getattr(module, "inplace", False):
        return "overwrites its input, from which gradients are computed"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return _embedding_problem(module)
    return ""


def _embedding_problem(table: nn.Embedding | nn.EmbeddingBag) -> str:
    if table.sparse:
        return "gives sparse gradients (sparse=True), whose places would show: write sparse=False"
    if table.scale_grad_by_freq:
        return "scales gradients by the words of a batch (scale_grad_by_freq=True): write False"
    return (
        "" if table.max_norm is None else "writes its table in each pass (max_norm): leave it out"
    )


def _normalisation(module: nn.Module) -> nn.Module:
    """Return the group normalisation that replaces a normalisation with batch statistics."""
    if isinstance(module, _InstanceNorm):
        return type(module)(module.num_features, eps=module.eps, affine=module.affine)
    norm = cast(_BatchNorm, module)
    channels = norm.num_features
    groups = min(32, max(1, channels // 2))
    while channels % groups:
        groups -= 1
    new = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine)
    return new.to(norm.weight.dtype) if norm.affine else new
