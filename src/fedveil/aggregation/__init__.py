"""Combine: aggregation rules in two halves, clusters, perturbation-aware weights."""

from fedveil.aggregation.base import Aggregator, NoState, WeightedMean
from fedveil.aggregation.clusters import cluster_means
from fedveil.aggregation.perturbation import perturbation_weights
from fedveil.aggregation.rules import FedAdam, FedAvg, FedMedian

AGGREGATORS: dict[str, type[Aggregator]] = {"fedavg": FedAvg, "fedmedian": FedMedian, "fedadam": FedAdam}

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "FedAdam",
    "FedAvg",
    "FedMedian",
    "NoState",
    "WeightedMean",
    "cluster_means",
    "perturbation_weights",
]
