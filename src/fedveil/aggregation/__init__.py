"""Combine: aggregation rules in two halves, clusters, perturbation-aware weights."""

from fedveil.aggregation.base import Aggregator, NoState, WeightedMean, require_rule
from fedveil.aggregation.bulyan import Bulyan
from fedveil.aggregation.centres import CentredClipping, GeometricMedian, NormBounding
from fedveil.aggregation.clusters import cluster_means, halves
from fedveil.aggregation.fltrust import FLTrust
from fedveil.aggregation.mean import FedAvg, FedProx
from fedveil.aggregation.mixing import NNM, Bucketing
from fedveil.aggregation.optimisers import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi
from fedveil.aggregation.perturbation import perturbation_weights
from fedveil.aggregation.robust import FedMedian, Krum, MultiKrum, TrimmedMean
from fedveil.aggregation.updates import Updates, padded
from fedveil.registry import Registry

AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "aggregator.name",
    {
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
        "bulyan": Bulyan,
        "geometric-median": GeometricMedian,
        "centred-clipping": CentredClipping,
        "norm-bounding": NormBounding,
        "fltrust": FLTrust,
    },
)

__all__ = [
    "AGGREGATORS",
    "NNM",
    "Aggregator",
    "Bucketing",
    "Bulyan",
    "CentredClipping",
    "FLTrust",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedMedian",
    "FedOpt",
    "FedProx",
    "FedYogi",
    "GeometricMedian",
    "Krum",
    "MultiKrum",
    "NoState",
    "NormBounding",
    "TrimmedMean",
    "Updates",
    "WeightedMean",
    "cluster_means",
    "halves",
    "padded",
    "perturbation_weights",
    "require_rule",
]
