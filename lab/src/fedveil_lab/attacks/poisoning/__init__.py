"""Malicious clients that poison training data or messages, and their success against robust aggregation rules."""

from fedveil_lab.attacks.poisoning.data import BEHAVIOURS as BEHAVIOURS
from fedveil_lab.attacks.poisoning.data import Backdoor as Backdoor
from fedveil_lab.attacks.poisoning.data import Goal as Goal
from fedveil_lab.attacks.poisoning.data import LabelFlip as LabelFlip
from fedveil_lab.attacks.poisoning.data import Poisoned as Poisoned
from fedveil_lab.attacks.poisoning.data import goal_of as goal_of
from fedveil_lab.attacks.poisoning.data import measure as measure
from fedveil_lab.attacks.poisoning.data import stamp as stamp
from fedveil_lab.attacks.poisoning.informed import ALIE as ALIE
from fedveil_lab.attacks.poisoning.informed import IPM as IPM
from fedveil_lab.attacks.poisoning.informed import MinMax as MinMax
from fedveil_lab.attacks.poisoning.informed import furthest as furthest
from fedveil_lab.attacks.poisoning.sending import FreeRider as FreeRider
from fedveil_lab.attacks.poisoning.sending import LyingBudget as LyingBudget
from fedveil_lab.attacks.poisoning.sending import NoiseAttack as NoiseAttack
from fedveil_lab.attacks.poisoning.sending import PullReference as PullReference
from fedveil_lab.attacks.poisoning.sending import Scaling as Scaling
from fedveil_lab.attacks.poisoning.sending import SignFlip as SignFlip
