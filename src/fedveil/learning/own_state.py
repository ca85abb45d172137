"""What a module's own code keeps in attributes from one call to the next: a hidden state, a cache, a list."""

from collections.abc import MutableMapping, MutableSequence, MutableSet
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

_TORCH = frozenset(vars(nn.Module()))  # what every module has
_NOT_FOREIGN = ("torch.", "fedveil.", "fedveil_lab.", "fedveil_studies.")


class OwnState:
    """The attributes of a model's own classes, as they are now; parameters and buffers are not among them.

    Parameters
    ----------
    model : torch.nn.Module
        Only read.
    """

    def __init__(self, model: nn.Module) -> None:
        foreign = [m for m in model.modules() if not type(m).__module__.startswith(_NOT_FOREIGN)]
        self._kept = [(m, {name: (v, _copied(v)) for name, v in _own(m).items()}) for m in foreign]

    def restore(self) -> None:
        """Put them back, and drop those that came later: the next client must not begin where the last one ended."""
        for module, kept in self._kept:
            for name in _own(module):
                if name not in kept:
                    del vars(module)[name]
            for name, (value, before) in kept.items():
                vars(module)[name] = value
                _put_back(value, before)


def _own(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _TORCH}


def _copied(value: Any) -> Any:
    """A copy of what can be written in place; of a container, not of what is in it."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy(value) if isinstance(value, MutableSequence | MutableMapping | MutableSet) else None


def _put_back(value: Any, before: Any) -> None:
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
