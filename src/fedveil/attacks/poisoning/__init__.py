"""Malicious clients: what they train on or send, and how far they get against robust rules."""

from fedveil.attacks.poisoning.alie import ALIE, alie
from fedveil.attacks.poisoning.backdoor import Backdoor, stamp
from fedveil.attacks.poisoning.free_rider import FreeRider
from fedveil.attacks.poisoning.goal import Goal, Poisoned, measure, success_rate
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
from fedveil.attacks.poisoning.tournament import Arena, HeatCell, Match, Worst, heat_map, play, rules_against, worst

__all__ = [
    "ALIE",
    "BEHAVIOURS",
    "IPM",
    "Arena",
    "Backdoor",
    "FreeRider",
    "Goal",
    "HeatCell",
    "LabelFlip",
    "LyingBudget",
    "Match",
    "MinMax",
    "NoiseAttack",
    "Poisoned",
    "PullReference",
    "Scaling",
    "SelectionProbe",
    "SignFlip",
    "Worst",
    "alie",
    "flip",
    "furthest",
    "goal_of",
    "heat_map",
    "ipm",
    "measure",
    "min_max",
    "play",
    "rare_clients",
    "rules_against",
    "stamp",
    "success_rate",
    "worst",
]
