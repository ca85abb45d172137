"""One file an engine; each runs a workload round by round and can show its model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from benchmarks.timing import Lap

_WHERE = {
    "fedveil": ("ours", "FedVeil"),
    "plain": ("plain", "PlainLoop"),
    "pfl": ("pfl_research", "PflResearch"),
    "flower": ("flower_ray", "FlowerOnRay"),
}


class Engine(Protocol):
    """A federation in progress."""

    def rounds(self, count: int) -> Sequence[Lap]:
        """Do `count` more rounds."""

    def model(self) -> nn.Module:
        """The present model."""


def load(name: str) -> Any:
    """The class of an engine, made with ``(workload, ...)``.

    Raises
    ------
    ImportError
        If the peer is not installed.
    """
    module, kind = _WHERE[name]
    return getattr(import_module(f"benchmarks.engines.{module}"), kind)


def missing(name: str) -> str | None:
    """Why an engine cannot run here, or None."""
    try:
        load(name)
    except ImportError as error:
        return str(error)
    return None


def vector(module: nn.Module) -> Tensor:
    """All parameters of a module, [d]."""
    return parameters_to_vector(module.parameters()).detach().clone()
