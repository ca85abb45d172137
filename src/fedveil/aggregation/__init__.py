"""Aggregation: rules that combine the clients' updates, clusters of models, and weights by layer."""

from fedveil.aggregation.base import Aggregator as Aggregator
from fedveil.aggregation.base import FedAvg as FedAvg
from fedveil.aggregation.base import FedProx as FedProx
from fedveil.aggregation.base import NoState as NoState
from fedveil.aggregation.base import WeightedMean as WeightedMean
from fedveil.aggregation.base import even as even
from fedveil.aggregation.base import require_rule as require_rule
from fedveil.aggregation.centres import Centre as Centre
from fedveil.aggregation.centres import CentredClipping as CentredClipping
from fedveil.aggregation.centres import FLTrust as FLTrust
from fedveil.aggregation.centres import GeometricMedian as GeometricMedian
from fedveil.aggregation.centres import NormBounding as NormBounding
from fedveil.aggregation.clusters import cluster_means as cluster_means
from fedveil.aggregation.clusters import halves as halves
from fedveil.aggregation.clusters import perturbation_weights as perturbation_weights
from fedveil.aggregation.mixing import NNM as NNM
from fedveil.aggregation.mixing import Bucketing as Bucketing
from fedveil.aggregation.optimisers import AdaptiveState as AdaptiveState
from fedveil.aggregation.optimisers import FedAdagrad as FedAdagrad
from fedveil.aggregation.optimisers import FedAdam as FedAdam
from fedveil.aggregation.optimisers import FedAvgM as FedAvgM
from fedveil.aggregation.optimisers import FedOpt as FedOpt
from fedveil.aggregation.optimisers import FedYogi as FedYogi
from fedveil.aggregation.optimisers import MomentumState as MomentumState
from fedveil.aggregation.robust import Bulyan as Bulyan
from fedveil.aggregation.robust import FedMedian as FedMedian
from fedveil.aggregation.robust import Krum as Krum
from fedveil.aggregation.robust import MultiKrum as MultiKrum
from fedveil.aggregation.robust import TrimmedMean as TrimmedMean
from fedveil.aggregation.updates import RunningSum as RunningSum
from fedveil.aggregation.updates import Updates as Updates
from fedveil.aggregation.updates import padded as padded
from fedveil.aggregation.weighted import SplitTrimmedMean as SplitTrimmedMean
from fedveil.aggregation.weighted import WeightedGeometricMedian as WeightedGeometricMedian
from fedveil.aggregation.weighted import WeightedMedian as WeightedMedian
from fedveil.aggregation.weighted import by_weight as by_weight
from fedveil.aggregation.weighted import capped_weights as capped_weights
from fedveil.aggregation.weighted import withstands_weight as withstands_weight
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
