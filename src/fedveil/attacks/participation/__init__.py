"""Client inference: whether a certain client takes part.

Each class is one attack: whom it follows, what it needs, and by which equation it scores. `losses` and `updates` hold
those that score every round by itself, `weighing` those that weigh such scores by the `evidence` of rehearsals. An
attack of yours joins with ``@ATTACKS.register(name)``; `fedveil audit --attack NAME` then plays it.
"""

from fedveil.attacks.observation import ATTACKS as ATTACKS
from fedveil.attacks.participation.evidence import SequentialEvidence as SequentialEvidence
from fedveil.attacks.participation.losses import CalibratedLoss as CalibratedLoss
from fedveil.attacks.participation.losses import Loss as Loss
from fedveil.attacks.participation.losses import SideChannel as SideChannel
from fedveil.attacks.participation.updates import Colluding as Colluding
from fedveil.attacks.participation.updates import OwnUpdate as OwnUpdate
from fedveil.attacks.participation.weighing import Active as Active
from fedveil.attacks.participation.weighing import Adaptive as Adaptive
from fedveil.attacks.participation.weighing import Decisions as Decisions
from fedveil.attacks.participation.weighing import Informed as Informed
from fedveil.attacks.participation.weighing import LikelihoodRatio as LikelihoodRatio
from fedveil.attacks.participation.weighing import NoiseSize as NoiseSize
from fedveil.attacks.participation.weighing import Weighing as Weighing
from fedveil.attacks.participation.weighing import craft as craft
from fedveil.attacks.participation.weighing import decide as decide
from fedveil.attacks.verdict import Participation as Participation
from fedveil.attacks.verdict import judge as judge
