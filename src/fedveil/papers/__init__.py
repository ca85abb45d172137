"""Studies of papers: tables and figures from runs that are done once, and claims judged on the files alone."""

from fedveil.papers.reproduction import Reproduction, Selection
from fedveil.papers.result import Published, Value
from fedveil.papers.runs import Choices
from fedveil.papers.studies import find, names, register
from fedveil.papers.study import Study
from fedveil.report.plots import Curve

__all__ = ["Choices", "Curve", "Published", "Reproduction", "Selection", "Study", "Value", "find", "names", "register"]
