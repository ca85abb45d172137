"""Framework of studies: tables and figures from cached runs, and claims judged by the resulting files."""

from fedveil_studies.frame.checking import find as find
from fedveil_studies.frame.checking import names as names
from fedveil_studies.frame.checking import register as register
from fedveil_studies.frame.choices import Choices as Choices
from fedveil_studies.frame.plots import Curve as Curve
from fedveil_studies.frame.reproduction import Reproduction as Reproduction
from fedveil_studies.frame.reproduction import Selection as Selection
from fedveil_studies.frame.result import Value as Value
from fedveil_studies.frame.study import Study as Study
