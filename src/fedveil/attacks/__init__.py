"""What an adversary learns."""

from fedveil.attacks.active import Active, craft
from fedveil.attacks.adaptive import Adaptive, Decisions, decide
from fedveil.attacks.calibrated_loss import CalibratedLoss
from fedveil.attacks.colluding import Colluding
from fedveil.attacks.distinguishing import GameResult, bound, play
from fedveil.attacks.evidence import SequentialEvidence
from fedveil.attacks.informed import Informed
from fedveil.attacks.likelihood_ratio import LikelihoodRatio
from fedveil.attacks.loss import Loss
from fedveil.attacks.noise_size import NoiseSize
from fedveil.attacks.observation import CAPABILITIES, Attack, Knowledge, Observation, ThreatError, ThreatModel
from fedveil.attacks.own_update import OwnUpdate
from fedveil.attacks.result import AuditResult, judge
from fedveil.attacks.side_channel import SideChannel
from fedveil.attacks.weighing import Weighing

# Client inference, by name.
ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind
    for kind in (
        Loss,
        CalibratedLoss,
        LikelihoodRatio,
        SideChannel,
        OwnUpdate,
        Adaptive,
        Informed,
        Colluding,
        NoiseSize,
        Active,
    )
}

__all__ = [
    "ATTACKS",
    "CAPABILITIES",
    "Active",
    "Adaptive",
    "Attack",
    "AuditResult",
    "CalibratedLoss",
    "Colluding",
    "Decisions",
    "GameResult",
    "Informed",
    "Knowledge",
    "LikelihoodRatio",
    "Loss",
    "NoiseSize",
    "Observation",
    "OwnUpdate",
    "SequentialEvidence",
    "SideChannel",
    "ThreatError",
    "ThreatModel",
    "Weighing",
    "bound",
    "craft",
    "decide",
    "judge",
    "play",
]
