"""FedVeil: privacy-preserving federated learning with calibrated noise, and a truthful account of what it bought."""

from fedveil import accounting, aggregation, calibration, clipping, data, learning, mechanisms, methods
from fedveil.aggregation import FedAdam, FedAvg, FedMedian
from fedveil.engines import Federation, History
from fedveil.errors import FedVeilError, FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.methods import GlobalDP, MetricPrivacy

__version__ = "0.1.0"

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
