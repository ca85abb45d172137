"""Test epsilon claims of others: scores, mechanisms, Flower apps and FLARE jobs are measured against what they claim."""

from fedveil_lab.verify.claim import PrivacyClaim as PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps as MechanismSteps
from fedveil_lab.verify.described import Proven as Proven
from fedveil_lab.verify.described import prove as prove
from fedveil_lab.verify.judged import Caught as Caught
from fedveil_lab.verify.judged import Judged as Judged
from fedveil_lab.verify.measuring import LowerBound as LowerBound
from fedveil_lab.verify.measuring import Measurement as Measurement
from fedveil_lab.verify.measuring import measure as measure
from fedveil_lab.verify.scores import read_scores as read_scores
from fedveil_lab.verify.subjects import verify_scores as verify_scores
