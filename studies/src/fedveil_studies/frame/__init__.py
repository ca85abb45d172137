"""Studies of papers: tables and figures from runs that are done once, and claims judged on the files alone."""

from fedveil_studies.frame.choices import Choices
from fedveil_studies.frame.plots import Curve
from fedveil_studies.frame.reproduction import Reproduction, Selection
from fedveil_studies.frame.result import Published, Value
from fedveil_studies.frame.studies import find, names, register
from fedveil_studies.frame.study import Study

__all__ = ["Choices", "Curve", "Published", "Reproduction", "Selection", "Study", "Value", "find", "names", "register"]
