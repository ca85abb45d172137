"""Choose the scale of the noise."""

from fedveil.calibration.alignment import AlignmentLDP, cosine
from fedveil.calibration.distance import METRICS, GlobalCalibrator, MetricCalibrator, max_pairwise_distance
from fedveil.calibration.layers import LayerSensitivity
from fedveil.calibration.neighbourhood import NeighbourhoodLaplace

__all__ = [
    "METRICS",
    "AlignmentLDP",
    "GlobalCalibrator",
    "LayerSensitivity",
    "MetricCalibrator",
    "NeighbourhoodLaplace",
    "cosine",
    "max_pairwise_distance",
]
