"""FedVeil: privacy-preserving federated learning with calibrated noise, and a truthful account of what it bought.

Names of this module are stable from 0.1.0 on; names of its subpackages are provisional (ARCHITECTURE.md). Each is
imported on first use, so ``fedveil --help`` need not load PyTorch. Experiments are in another package, `fedveil-lab`;
without it, their names raise an error with the command that installs it.
"""

from typing import TYPE_CHECKING

from fedveil.moved import find_moved
from fedveil.registry import lazy

__version__ = "0.1.0"

_OFFERED = {  # by module; a whole module stands under its package
    "fedveil": (
        "accounting aggregation calibration clipping data engines gdp home layout learning mechanisms methods secure"
    ),
    "fedveil.accounting": "Filter Guarantee LeakageFilter Ledger Limits ParticipationFilter Policy Spend SpendFilter",
    "fedveil.aggregation": (
        "NNM Aggregator Bucketing Bulyan CentredClipping FedAdagrad FedAdam FedAvg FedAvgM FedMedian FedOpt FedProx "
        "FedYogi FLTrust GeometricMedian Krum MultiKrum NormBounding TrimmedMean"
    ),
    "fedveil.clipping": "QuantileClip",
    "fedveil.engines": (
        "Behaviour Budgets EarlyStopping Evaluation Execution Federation History PerClient Probe Round RoundRecord "
        "Seen ServerParty Shared Turn"
    ),
    "fedveil.errors": "FedVeilError FieldError",
    "fedveil.estimators": "FederatedClassifier FederatedRegressor",
    "fedveil.home": "ReleasedModel load",
    "fedveil.layout": "Layout",
    "fedveil.learning": "ClientData Learner LocalTraining",
    "fedveil.mechanisms": "ReproducibleSource SecureSource Source",
    "fedveil.methods": (
        "SGALDP ClientSide FedRE GlobalDP GroupPrivacy Method MetricPrivacy Publishing RecordDP ServerSide Validation"
    ),
    "fedveil.secure": "SiteKey",
    "fedveil_lab": "attacks config games grid runs verify",
    "fedveil_lab.config": "Config",
    "fedveil_lab.grid.search": "Chosen search",
    "fedveil_lab.own": "Compared OwnAudit audit compare",
    "fedveil_lab.verify": "verify_scores",
}

if TYPE_CHECKING:
    from fedveil import accounting as accounting
    from fedveil import aggregation as aggregation
    from fedveil import calibration as calibration
    from fedveil import clipping as clipping
    from fedveil import data as data
    from fedveil import engines as engines
    from fedveil import gdp as gdp
    from fedveil import home as home
    from fedveil import layout as layout
    from fedveil import learning as learning
    from fedveil import mechanisms as mechanisms
    from fedveil import methods as methods
    from fedveil import secure as secure
    from fedveil.accounting import Filter as Filter
    from fedveil.accounting import Guarantee as Guarantee
    from fedveil.accounting import LeakageFilter as LeakageFilter
    from fedveil.accounting import Ledger as Ledger
    from fedveil.accounting import Limits as Limits
    from fedveil.accounting import ParticipationFilter as ParticipationFilter
    from fedveil.accounting import Policy as Policy
    from fedveil.accounting import Spend as Spend
    from fedveil.accounting import SpendFilter as SpendFilter
    from fedveil.aggregation import NNM as NNM
    from fedveil.aggregation import Aggregator as Aggregator
    from fedveil.aggregation import Bucketing as Bucketing
    from fedveil.aggregation import Bulyan as Bulyan
    from fedveil.aggregation import CentredClipping as CentredClipping
    from fedveil.aggregation import FedAdagrad as FedAdagrad
    from fedveil.aggregation import FedAdam as FedAdam
    from fedveil.aggregation import FedAvg as FedAvg
    from fedveil.aggregation import FedAvgM as FedAvgM
    from fedveil.aggregation import FedMedian as FedMedian
    from fedveil.aggregation import FedOpt as FedOpt
    from fedveil.aggregation import FedProx as FedProx
    from fedveil.aggregation import FedYogi as FedYogi
    from fedveil.aggregation import FLTrust as FLTrust
    from fedveil.aggregation import GeometricMedian as GeometricMedian
    from fedveil.aggregation import Krum as Krum
    from fedveil.aggregation import MultiKrum as MultiKrum
    from fedveil.aggregation import NormBounding as NormBounding
    from fedveil.aggregation import TrimmedMean as TrimmedMean
    from fedveil.clipping import QuantileClip as QuantileClip
    from fedveil.engines import Behaviour as Behaviour
    from fedveil.engines import Budgets as Budgets
    from fedveil.engines import EarlyStopping as EarlyStopping
    from fedveil.engines import Evaluation as Evaluation
    from fedveil.engines import Execution as Execution
    from fedveil.engines import Federation as Federation
    from fedveil.engines import History as History
    from fedveil.engines import PerClient as PerClient
    from fedveil.engines import Probe as Probe
    from fedveil.engines import Round as Round
    from fedveil.engines import RoundRecord as RoundRecord
    from fedveil.engines import Seen as Seen
    from fedveil.engines import ServerParty as ServerParty
    from fedveil.engines import Shared as Shared
    from fedveil.engines import Turn as Turn
    from fedveil.errors import FedVeilError as FedVeilError
    from fedveil.errors import FieldError as FieldError
    from fedveil.estimators import FederatedClassifier as FederatedClassifier
    from fedveil.estimators import FederatedRegressor as FederatedRegressor
    from fedveil.home import ReleasedModel as ReleasedModel
    from fedveil.home import load as load
    from fedveil.layout import Layout as Layout
    from fedveil.learning import ClientData as ClientData
    from fedveil.learning import Learner as Learner
    from fedveil.learning import LocalTraining as LocalTraining
    from fedveil.mechanisms import ReproducibleSource as ReproducibleSource
    from fedveil.mechanisms import SecureSource as SecureSource
    from fedveil.mechanisms import Source as Source
    from fedveil.methods import SGALDP as SGALDP
    from fedveil.methods import ClientSide as ClientSide
    from fedveil.methods import FedRE as FedRE
    from fedveil.methods import GlobalDP as GlobalDP
    from fedveil.methods import GroupPrivacy as GroupPrivacy
    from fedveil.methods import Method as Method
    from fedveil.methods import MetricPrivacy as MetricPrivacy
    from fedveil.methods import Publishing as Publishing
    from fedveil.methods import RecordDP as RecordDP
    from fedveil.methods import ServerSide as ServerSide
    from fedveil.methods import Validation as Validation
    from fedveil.secure import SiteKey as SiteKey
    from fedveil_lab import attacks as attacks
    from fedveil_lab import config as config
    from fedveil_lab import games as games
    from fedveil_lab import grid as grid
    from fedveil_lab import runs as runs
    from fedveil_lab import verify as verify
    from fedveil_lab.config import Config as Config
    from fedveil_lab.grid.search import Chosen as Chosen
    from fedveil_lab.grid.search import search as search
    from fedveil_lab.own import Compared as Compared
    from fedveil_lab.own import OwnAudit as OwnAudit
    from fedveil_lab.own import audit as audit
    from fedveil_lab.own import compare as compare
    from fedveil_lab.verify import verify_scores as verify_scores
else:
    __getattr__, __dir__, __all__ = lazy(__name__, _OFFERED)
    find_moved()
