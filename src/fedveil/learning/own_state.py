"""State that a module's own code keeps between calls, such as a cache, a list or a hidden state."""

from collections.abc import MutableMapping, MutableSequence, MutableSet
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

_TORCH = frozenset(vars(nn.Module()))  # attributes of every module
_NOT_FOREIGN = ("torch.", "fedveil.", "fedveil_lab.", "fedveil_studies.")


class OwnState:
    """Snapshot of the attributes that a model's own code keeps, besides parameters and buffers.

    Parameters
    ----------
    model : torch.nn.Module
        Model, only read.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[nn.Module, dict[str, tuple[Any, Any]]]] = []
        for module in model.modules():
            if type(module).__module__.startswith(_NOT_FOREIGN):
                continue
            own = {name: (value, _copied(value)) for name, value in _own(module).items()}
            self._kept.append((module, own))

    def restore(self) -> None:
        """Restore the attributes and drop later ones, so that no client starts with another client's state."""
        for module, kept in self._kept:
            for name in _own(module):
                if name not in kept:
                    del vars(module)[name]
            for name, (value, before) in kept.items():
                vars(module)[name] = value
                _put_back(value, before)


def _own(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that a plain PyTorch module does not have."""
    return {name: value for name, value in vars(module).items() if name not in _TORCH}


def _copied(value: Any) -> Any:
    """Copy a value that can be changed in place; a container is copied without copies of its elements."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, MutableSequence | MutableMapping | MutableSet):
        return copy(value)
    return None


def _put_back(value: Any, before: Any) -> None:
    """Restore the content of an object that was changed in place."""
    if isinstance(value, Tensor):
        if not torch.equal(value, before):
            with torch.no_grad():
                value.copy_(before)
    elif isinstance(value, MutableSequence):
        value[:] = before
    elif isinstance(value, MutableMapping):
        value.clear()
        value.update(before)
    elif isinstance(value, MutableSet):
        value.clear()
        value |= before
