"""Gradient inversion: a server reconstructs training examples from the model that a client sent.

Text, and priors learnt by generators, are out of scope: they need a GPU.
"""

from fedveil_lab.attacks.inversion.analytic import Analytic as Analytic
from fedveil_lab.attacks.inversion.analytic import recover_labels as recover_labels
from fedveil_lab.attacks.inversion.compare import Inverted as Inverted
from fedveil_lab.attacks.inversion.compare import compare_inversion as compare_inversion
from fedveil_lab.attacks.inversion.compare import judge_inversion as judge_inversion
from fedveil_lab.attacks.inversion.cosine import Cosine as Cosine
from fedveil_lab.attacks.inversion.cosine import EstimatedStatistics as EstimatedStatistics
from fedveil_lab.attacks.inversion.cosine import RunningStatistics as RunningStatistics
from fedveil_lab.attacks.inversion.cosine import SeeThrough as SeeThrough
from fedveil_lab.attacks.inversion.dlg import DLG as DLG
from fedveil_lab.attacks.inversion.dlg import IDLG as IDLG
from fedveil_lab.attacks.inversion.dlg import LocalSteps as LocalSteps
from fedveil_lab.attacks.inversion.knowledge import INVERSIONS as INVERSIONS
from fedveil_lab.attacks.inversion.knowledge import SERVER as SERVER
from fedveil_lab.attacks.inversion.knowledge import Captured as Captured
from fedveil_lab.attacks.inversion.knowledge import Inversion as Inversion
from fedveil_lab.attacks.inversion.knowledge import Reconstruction as Reconstruction
from fedveil_lab.attacks.inversion.knowledge import ReleaseView as ReleaseView
from fedveil_lab.attacks.inversion.knowledge import ServerKnowledge as ServerKnowledge
from fedveil_lab.attacks.inversion.knowledge import invert as invert
from fedveil_lab.attacks.inversion.knowledge import noise_of as noise_of
from fedveil_lab.attacks.inversion.knowledge import play_round as play_round
from fedveil_lab.attacks.inversion.metrics import scores as scores
from fedveil_lab.attacks.inversion.spear import SPEAR as SPEAR
