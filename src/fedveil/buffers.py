"""Buffers of a model: which are constants, and which are statistics that training writes."""

import dis
import inspect
import re
from collections.abc import Iterator
from types import CodeType, FunctionType

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_BEGINNING = (
    "__init__",
    "__setstate__",
    "reset_parameters",
    "reset_running_stats",
    "_load_from_state_dict",
)
_IN_PLACE = re.compile(r"[a-z0-9]_$")  # mul_, copy_
_WRITING = {
    "batch_norm",
    "instance_norm",
    "register_buffer",
    "__setattr__",
}  # functions that write an argument


def persistent(module: nn.Module) -> list[str]:
    """List the entries of a module's state dictionary that are no parameters."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return [name for name in module.state_dict() if name not in parameters]


def statistics(module: nn.Module) -> list[str]:
    """List the persistent buffers that training may write: all except those found to be constants.

    Constants are tables of positions, causal masks and frozen scales, for example. A buffer counts as constant if no
    method of the model's classes writes it and the module has no hooks. If training changes a constant after all, the
    trainer refuses the model.

    Parameters
    ----------
    module : torch.nn.Module
        Model; it is not changed.
    """
    names = persistent(module)
    if not names:
        return []
    written = {"_extra_state"}
    for kind in set(map(type, module.modules())):
        written.update(_written(kind))
    found = []
    for name in names:
        path, _, leaf = name.rpartition(".")
        owner = _owner(module, path)
        of_torch = owner is not None and type(owner).__module__.startswith(
            "torch."
        )  # these hold statistics
        if owner is None or of_torch or leaf in written or _listened(owner):
            found.append(name)
    return found


def buffers_refused(module: nn.Module, names: list[str]) -> str:
    """Explain why a model with these buffers is refused, and how to change each kind."""
    said = f"has buffers that are neither shared nor noised: {', '.join(names)}. "
    normal = []
    for name in names:
        owner = _owner(module, name.rpartition(".")[0])
        normal.append(isinstance(owner, _BatchNorm | _InstanceNorm))
    if any(normal):
        said += "fedveil.learning.mend(model) replaces BatchNorm by GroupNorm (for a configuration: in the module that "
        said += "makes the model). freeze(model, but=...) keeps the statistics of a pretrained model as constants; "
    if not all(normal):
        said += (
            "for a buffer that never changes write register_buffer(name, value, persistent=False); "
        )
    said += (
        'or each party keeps its own: Layout.from_module(model, buffers="keep") in a Flower app, '
    )
    return f'{said}Federation(..., shared=Shared(buffers="keep")) in Python'


def _owner(module: nn.Module, path: str) -> nn.Module | None:
    """Return the submodule at a path; None if there is no module there (extra state)."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _listened(module: nn.Module) -> bool:
    """Whether a module has hooks, which may write its state (as ``nn.utils.spectral_norm`` does)."""
    return bool(module._forward_pre_hooks or module._forward_hooks or module._backward_hooks)


def _written(kind: type[nn.Module]) -> Iterator[str]:
    """Yield the attribute names that methods of a class may write after construction."""
    for base in kind.__mro__:
        if base in (nn.Module, object):
            continue
        for name, value in vars(base).items():
            function = inspect.unwrap(getattr(value, "fget", getattr(value, "__func__", value)))
            if isinstance(function, FunctionType) and name not in _BEGINNING:
                yield from _stored(function.__code__)


def _stored(code: CodeType) -> Iterator[str]:
    """Yield the attribute names that a function's code assigns or changes in place."""
    loaded: set[str] = set()
    line: list[str] = []  # attributes that this line of code has loaded
    before = ""
    for step in dis.get_instructions(code):
        line = [] if step.starts_line else line
        name = str(step.argval)
        if step.opname == "STORE_ATTR":
            yield name
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if _IN_PLACE.search(name) and before in ("LOAD_ATTR", "BINARY_SUBSCR"):
                yield from line
            loaded.add(name)
            line.append(name)
        elif step.opname == "STORE_SUBSCR":
            yield from line
        before = step.opname
    if _WRITING & set(code.co_names):
        yield from loaded
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _stored(constant)
