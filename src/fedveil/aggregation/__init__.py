"""Combine: aggregation rules in two halves, clusters, perturbation-aware weights."""

from fedveil.aggregation.base import Aggregator, NoState, WeightedMean
from fedveil.aggregation.clusters import cluster_means
from fedveil.aggregation.mean import FedAvg, FedProx
from fedveil.aggregation.optimisers import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi
from fedveil.aggregation.perturbation import perturbation_weights
from fedveil.aggregation.robust import FedMedian, Krum, MultiKrum, TrimmedMean
from fedveil.aggregation.updates import Updates, padded

AGGREGATORS: dict[str, type[Aggregator]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedmedian": FedMedian,
    "fedprox": FedProx,
    "fedopt": FedOpt,
    "fedadam": FedAdam,
    "fedadagrad": FedAdagrad,
    "fedyogi": FedYogi,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
}

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedMedian",
    "FedOpt",
    "FedProx",
    "FedYogi",
    "Krum",
    "MultiKrum",
    "NoState",
    "TrimmedMean",
    "Updates",
    "WeightedMean",
    "cluster_means",
    "padded",
    "perturbation_weights",
]
