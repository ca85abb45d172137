"""Refusal of modules that wrap another module, and of parameters that are no plain tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, jit, nn

from fedveil.errors import FieldError, kind_of

_SEVERAL = "is on several devices, which FedVeil does without"
COMPILED = (
    "the model was compiled (torch.compile), and is trained as plain PyTorch: what is meant is its own module, "
    "model._orig_mod, whose names the state dictionaries have"
)
_WAYS_OUT = {
    "DataParallel": f"{_SEVERAL}: give the model in it, model.module",
    "DistributedDataParallel": f"{_SEVERAL}: give the model in it, model.module",
    "FullyShardedDataParallel": f"{_SEVERAL}: give the model as it was before it was wrapped",
    "OptimizedModule": "is what torch.compile returned: give the model itself, model._orig_mod",
}


def uncompiled(model: Any, tell: Callable[[], None]) -> Any:
    """Undo ``torch.compile``: return the original module, or a function that builds original modules.

    Parameters
    ----------
    model : torch.nn.Module or callable
        Model of a federation; a model that is not compiled is returned unchanged. A compiled part of a model is refused
        elsewhere.
    tell : callable
        Called if the model was compiled. Training then uses plain PyTorch, and gives the original module's results.
    """
    if isinstance(model, nn.Module):
        if not _is_compiled(model):
            return model
        tell()
        return uncompiled(model._orig_mod, tell)
    if not callable(model) or isinstance(model, type):
        return model

    def build() -> Any:
        return uncompiled(model(), tell)

    build.__name__ = getattr(model, "__name__", "a function")
    return build


def _is_compiled(module: nn.Module) -> bool:
    return _modules_of_classes(module).get("OptimizedModule", "").startswith("torch.")


def _modules_of_classes(module: nn.Module) -> dict[str, str]:
    """Return the names of a module's class and base classes, each with the Python module that defines it."""
    return {kind.__name__: kind.__module__ for kind in type(module).__mro__}


def require_unwrapped(module: nn.Module) -> None:
    """Refuse a module that cannot be copied, written, or called with other parameters.

    Parameters
    ----------
    module : torch.nn.Module
        Module; it is not changed.

    Raises
    ------
    FieldError
        If a part cannot; the text names the part and what to use instead.
    """
    for name, part in module.named_modules():
        kinds = _modules_of_classes(part)
        where = f"module {name}" if name else "module"
        for kind, accepted in _WAYS_OUT.items():
            if kinds.get(kind, "").startswith("torch."):
                raise FieldError(where, kind_of(part), accepted)
        if isinstance(part, jit.ScriptModule):
            accepted = "is scripted or traced (torch.jit): give the nn.Module that it was made from"
            raise FieldError(where, kind_of(part), accepted)
        if "FSDPModule" in kinds:
            raise FieldError(
                where,
                kind_of(part),
                f"{_SEVERAL}: give the model as it was before fully_shard",
            )
    for name, parameter in module.named_parameters():
        _require_plain(name, parameter)


def _require_plain(name: str, parameter: Any) -> None:
    if parameter.is_meta:
        raise FieldError(
            name, "meta", 'has no values: build the model without torch.device("meta")'
        )
    if parameter.is_complex():
        accepted = "is complex, and noise is real: hold real and imaginary part, torch.view_as_complex(self.weight)"
        raise FieldError(name, str(parameter.dtype), accepted)
    if parameter.layout != torch.strided:
        raise FieldError(name, str(parameter.layout), "is sparse: write parameter.to_dense()")
    if type(parameter.data) is not Tensor:
        accepted = (
            "is no plain tensor: give the model as it was before it was distributed or quantised"
        )
        raise FieldError(name, kind_of(parameter.data), accepted)
