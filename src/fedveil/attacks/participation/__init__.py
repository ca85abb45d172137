"""Client inference: whether a certain client takes part.

Each file is one attack: whom it follows, what it needs, and by which equation it scores. An attack of yours joins with
``@ATTACKS.register(name)``; `fedveil audit --attack NAME` then plays it.
"""

from fedveil.attacks.observation import Attack
from fedveil.attacks.participation.active import Active, craft
from fedveil.attacks.participation.adaptive import Adaptive, Decisions, decide
from fedveil.attacks.participation.calibrated_loss import CalibratedLoss
from fedveil.attacks.participation.colluding import Colluding
from fedveil.attacks.participation.evidence import SequentialEvidence
from fedveil.attacks.participation.informed import Informed
from fedveil.attacks.participation.likelihood_ratio import LikelihoodRatio
from fedveil.attacks.participation.loss import Loss
from fedveil.attacks.participation.noise_size import NoiseSize
from fedveil.attacks.participation.own_update import OwnUpdate
from fedveil.attacks.participation.result import Participation, judge
from fedveil.attacks.participation.side_channel import SideChannel
from fedveil.attacks.participation.weighing import Weighing
from fedveil.registry import Registry

_KINDS: tuple[type[Attack], ...] = (
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
ATTACKS: Registry[type[Attack]] = Registry("--attack", {kind.name: kind for kind in _KINDS})

__all__ = [
    "ATTACKS",
    "Active",
    "Adaptive",
    "CalibratedLoss",
    "Colluding",
    "Decisions",
    "Informed",
    "LikelihoodRatio",
    "Loss",
    "NoiseSize",
    "OwnUpdate",
    "Participation",
    "SequentialEvidence",
    "SideChannel",
    "Weighing",
    "craft",
    "decide",
    "judge",
]
