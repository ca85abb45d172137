"""Gradient inversion: what a server reconstructs of the examples behind the model that a client sent.

Text, and priors learnt by generators, are out of scope: they need a GPU.
"""

from fedveil.attacks.inversion.analytic import Analytic
from fedveil.attacks.inversion.compare import Inverted, compare_inversion
from fedveil.attacks.inversion.cosine import Cosine
from fedveil.attacks.inversion.dlg import DLG, IDLG
from fedveil.attacks.inversion.game import Captured, noise_of, play_round
from fedveil.attacks.inversion.judge import judge_inversion
from fedveil.attacks.inversion.knowledge import SERVER, Inversion, Reconstruction, ServerKnowledge, invert
from fedveil.attacks.inversion.labels import recover_labels
from fedveil.attacks.inversion.local_steps import LocalSteps
from fedveil.attacks.inversion.metrics import scores
from fedveil.attacks.inversion.see_through import SeeThrough
from fedveil.attacks.inversion.spear import SPEAR
from fedveil.attacks.inversion.statistics import EstimatedStatistics, RunningStatistics

# By name.
INVERSIONS: dict[str, type[Inversion]] = {
    kind.name: kind
    for kind in (Analytic, DLG, IDLG, Cosine, RunningStatistics, EstimatedStatistics, LocalSteps, SeeThrough, SPEAR)
}

__all__ = [
    "DLG",
    "IDLG",
    "INVERSIONS",
    "SERVER",
    "SPEAR",
    "Analytic",
    "Captured",
    "Cosine",
    "EstimatedStatistics",
    "Inversion",
    "Inverted",
    "LocalSteps",
    "Reconstruction",
    "RunningStatistics",
    "SeeThrough",
    "ServerKnowledge",
    "compare_inversion",
    "invert",
    "judge_inversion",
    "noise_of",
    "play_round",
    "recover_labels",
    "scores",
]
