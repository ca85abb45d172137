"""Malicious clients: what they train on or send, and how far they get against robust rules."""

from fedveil.attacks.poisoning.alie import ALIE, alie
from fedveil.attacks.poisoning.backdoor import Backdoor, stamp
from fedveil.attacks.poisoning.free_rider import FreeRider
from fedveil.attacks.poisoning.goal import Goal, Poisoned, measure
from fedveil.attacks.poisoning.informed import furthest
from fedveil.attacks.poisoning.ipm import IPM, ipm
from fedveil.attacks.poisoning.labels import LabelFlip, flip
from fedveil.attacks.poisoning.lying import LyingBudget, PullReference
from fedveil.attacks.poisoning.min_max import MinMax, min_max
from fedveil.attacks.poisoning.noise import NoiseAttack
from fedveil.attacks.poisoning.registry import BEHAVIOURS
from fedveil.attacks.poisoning.scaling import Scaling, goal_of
from fedveil.attacks.poisoning.selection import SelectionProbe, rare_clients
from fedveil.attacks.poisoning.sign_flip import SignFlip

__all__ = [
    "ALIE",
    "BEHAVIOURS",
    "IPM",
    "Backdoor",
    "FreeRider",
    "Goal",
    "LabelFlip",
    "LyingBudget",
    "MinMax",
    "NoiseAttack",
    "Poisoned",
    "PullReference",
    "Scaling",
    "SelectionProbe",
    "SignFlip",
    "alie",
    "flip",
    "furthest",
    "goal_of",
    "ipm",
    "measure",
    "min_max",
    "rare_clients",
    "stamp",
]
