"""Buffers of a model: constants, which stay as they are, and statistics, which training writes."""

import dis
import inspect
import re
from collections.abc import Iterator
from types import CodeType, FunctionType

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_BEGINNING = ("__init__", "__setstate__", "reset_parameters", "reset_running_stats", "_load_from_state_dict")
_IN_PLACE = re.compile(r"[a-z0-9]_$")  # mul_, copy_
_WRITING = {"batch_norm", "instance_norm", "register_buffer", "__setattr__"}  # of whose arguments some are written


def persistent(module: nn.Module) -> list[str]:
    """Names of what is in the state of a module and is no parameter."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return [name for name in module.state_dict() if name not in parameters]


def statistics(module: nn.Module) -> list[str]:
    """Persistent buffers that training may write: all that are not seen to be constants.

    A table of positions, a causal mask and a frozen scale are constants: no method of the model's own classes stores
    under their names, changes them in place, or hands them to what does; and no hook listens. What training writes all
    the same, the trainer refuses.

    Parameters
    ----------
    module : torch.nn.Module
        Is left as it is.
    """
    names = persistent(module)
    if not names:
        return []
    written = {name for kind in {type(m) for m in module.modules()} for name in _written(kind)}
    found = []
    for name in names:
        path, _, leaf = name.rpartition(".")
        owner = _owner(module, path)
        foreign = owner is not None and not type(owner).__module__.startswith("torch.")  # torch's own hold statistics
        if owner is None or not foreign or leaf in ("_extra_state", *written) or _listened(owner):
            found.append(name)
    return found


def buffers_refused(module: nn.Module, names: list[str]) -> str:
    """Why a model with such buffers is refused, and what to do about each kind."""
    said = f"has buffers that are neither shared nor noised: {', '.join(names)}. "
    owners = {_owner(module, name.rpartition(".")[0]) for name in names}
    normal = [isinstance(owner, _BatchNorm | _InstanceNorm) for owner in owners]
    if any(normal):
        said += (
            "fedveil.learning.mend(model) puts GroupNorm in the place of BatchNorm (for a configuration, where your "
        )
        said += "module makes the model), and freeze(model, but=...) keeps a pretrained one's statistics as constants; "
    if not all(normal):
        said += "for one that never changes write register_buffer(name, value, persistent=False); "
    return f'{said}in Python, Federation(..., shared=Shared(buffers="keep")) lets each party keep its own'


def _owner(module: nn.Module, path: str) -> nn.Module | None:
    """The submodule, or None for extra state under a name that is no module's."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _listened(module: nn.Module) -> bool:
    """Whether a hook (as of ``nn.utils.spectral_norm``) may write what the module holds."""
    return bool(module._forward_pre_hooks or module._forward_hooks or module._backward_hooks)


def _written(kind: type[nn.Module]) -> Iterator[str]:
    """Names of attributes that methods of a class may write after it was built."""
    for base in kind.__mro__:
        if base in (nn.Module, object):
            continue
        for name, value in vars(base).items():
            function = inspect.unwrap(getattr(value, "fget", getattr(value, "__func__", value)))
            if isinstance(function, FunctionType) and name not in _BEGINNING:
                yield from _stored(function.__code__)


def _stored(code: CodeType) -> Iterator[str]:
    """Names under which code stores, or whose values it changes in place."""
    loaded: set[str] = set()
    line: list[str] = []  # attributes that its line has loaded
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
