"""FedVeil: privacy-preserving federated learning with calibrated noise, and a truthful account of what it bought.

Names are imported when they are first used, so that ``fedveil --help`` does not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil import accounting, aggregation, calibration, clipping, data, learning, mechanisms, methods
    from fedveil.aggregation import FedAdam, FedAvg, FedMedian
    from fedveil.engines import Federation, History
    from fedveil.errors import FedVeilError, FieldError
    from fedveil.layout import Layout
    from fedveil.learning import ClientData, LocalTraining
    from fedveil.methods import GlobalDP, MetricPrivacy

__version__ = "0.1.0"

_ROOMS = ("accounting", "aggregation", "calibration", "clipping", "data", "learning", "mechanisms", "methods")
_OWNERS = {
    "fedveil.aggregation": ("FedAdam", "FedAvg", "FedMedian"),
    "fedveil.engines": ("Federation", "History"),
    "fedveil.errors": ("FedVeilError", "FieldError"),
    "fedveil.layout": ("Layout",),
    "fedveil.learning": ("ClientData", "LocalTraining"),
    "fedveil.methods": ("GlobalDP", "MetricPrivacy"),
}
_OWNER = {name: owner for owner, names in _OWNERS.items() for name in names}

__all__ = [
    "ClientData",
    "FedAdam",
    "FedAvg",
    "FedMedian",
    "FedVeilError",
    "Federation",
    "FieldError",
    "GlobalDP",
    "History",
    "Layout",
    "LocalTraining",
    "MetricPrivacy",
    "__version__",
    "accounting",
    "aggregation",
    "calibration",
    "clipping",
    "data",
    "learning",
    "mechanisms",
    "methods",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fedveil.{name}")
    if name in _OWNER:
        value = getattr(import_module(_OWNER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fedveil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
