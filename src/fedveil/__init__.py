"""FedVeil: privacy-preserving federated learning with calibrated noise, and a truthful account of what it bought.

Names are imported when they are first used, so that ``fedveil --help`` does not wait for PyTorch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil import (
        accounting,
        aggregation,
        attacks,
        audit,
        calibration,
        clipping,
        config,
        data,
        grid,
        learning,
        mechanisms,
        methods,
        runs,
    )
    from fedveil.aggregation import (
        NNM,
        Bucketing,
        Bulyan,
        CentredClipping,
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedMedian,
        FedOpt,
        FedProx,
        FedYogi,
        FLTrust,
        GeometricMedian,
        Krum,
        MultiKrum,
        NormBounding,
        TrimmedMean,
    )
    from fedveil.engines import Federation, History
    from fedveil.errors import FedVeilError, FieldError
    from fedveil.layout import Layout
    from fedveil.learning import ClientData, LocalTraining
    from fedveil.methods import SGALDP, FedRE, GlobalDP, GroupPrivacy, Method, MetricPrivacy, RecordDP, build
    from fedveil.own import compare

__version__ = "0.1.0"

_ROOMS = (
    "accounting",
    "aggregation",
    "attacks",
    "audit",
    "calibration",
    "clipping",
    "config",
    "data",
    "grid",
    "learning",
    "mechanisms",
    "methods",
    "runs",
)
_RULES = (
    "Bucketing Bulyan CentredClipping FLTrust FedAdagrad FedAdam FedAvg FedAvgM FedMedian FedOpt FedProx FedYogi "
    "GeometricMedian Krum MultiKrum NNM NormBounding TrimmedMean"
)
_OWNERS = {
    "fedveil.aggregation": _RULES,
    "fedveil.engines": "Federation History",
    "fedveil.errors": "FedVeilError FieldError",
    "fedveil.layout": "Layout",
    "fedveil.learning": "ClientData LocalTraining",
    "fedveil.own": "compare",
    "fedveil.methods": "FedRE GlobalDP GroupPrivacy Method MetricPrivacy RecordDP SGALDP build",
}
_OWNER = {name: owner for owner, names in _OWNERS.items() for name in names.split()}

__all__ = [
    "NNM",
    "SGALDP",
    "Bucketing",
    "Bulyan",
    "CentredClipping",
    "ClientData",
    "FLTrust",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedMedian",
    "FedOpt",
    "FedProx",
    "FedRE",
    "FedVeilError",
    "FedYogi",
    "Federation",
    "FieldError",
    "GeometricMedian",
    "GlobalDP",
    "GroupPrivacy",
    "History",
    "Krum",
    "Layout",
    "LocalTraining",
    "Method",
    "MetricPrivacy",
    "MultiKrum",
    "NormBounding",
    "RecordDP",
    "TrimmedMean",
    "__version__",
    "accounting",
    "aggregation",
    "attacks",
    "audit",
    "build",
    "calibration",
    "clipping",
    "compare",
    "config",
    "data",
    "grid",
    "learning",
    "mechanisms",
    "methods",
    "runs",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fedveil.{name}")
    if name in _OWNER:
        value = getattr(import_module(_OWNER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fedveil' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
