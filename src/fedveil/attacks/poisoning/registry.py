"""Behaviours by name, for configurations."""

from __future__ import annotations

from fedveil.attacks.poisoning.alie import ALIE
from fedveil.attacks.poisoning.backdoor import Backdoor
from fedveil.attacks.poisoning.free_rider import FreeRider
from fedveil.attacks.poisoning.ipm import IPM
from fedveil.attacks.poisoning.labels import LabelFlip
from fedveil.attacks.poisoning.lying import LyingBudget, PullReference
from fedveil.attacks.poisoning.min_max import MinMax
from fedveil.attacks.poisoning.noise import NoiseAttack
from fedveil.attacks.poisoning.scaling import Scaling
from fedveil.attacks.poisoning.sign_flip import SignFlip
from fedveil.engines.behaviour import Behaviour
from fedveil.registry import Registry

BEHAVIOURS: Registry[type[Behaviour]] = Registry(
    "malicious.behaviour",
    {
        "label-flip": LabelFlip,
        "backdoor": Backdoor,
        "scaling": Scaling,
        "sign-flip": SignFlip,
        "noise": NoiseAttack,
        "alie": ALIE,
        "ipm": IPM,
        "min-max": MinMax,
        "free-rider": FreeRider,
        "lying-budget": LyingBudget,
        "pull-reference": PullReference,
    },
)
