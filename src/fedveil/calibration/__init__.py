"""Scales of noise that depend on models: metric privacy's distance, and heuristic scales of clients' noise."""

from fedveil.calibration.distance import COSINE as COSINE
from fedveil.calibration.distance import DISTANCES as DISTANCES
from fedveil.calibration.distance import MetricCalibrator as MetricCalibrator
from fedveil.calibration.distance import max_pairwise_distance as max_pairwise_distance
from fedveil.calibration.local import AlignmentLDP as AlignmentLDP
from fedveil.calibration.local import LayerSensitivity as LayerSensitivity
from fedveil.calibration.local import NeighbourhoodLaplace as NeighbourhoodLaplace
from fedveil.calibration.local import cosine as cosine
