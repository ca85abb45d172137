"""Reproduce the papers: their tables and figures from cells, each an ordinary run that is done once."""

from fedveil.reproduce.cells import Cell, Outcome, Runs
from fedveil.reproduce.measure import Entry, Published, Replicate, Result, Value, measured
from fedveil.reproduce.metric_privacy import MetricPrivacyStudy
from fedveil.reproduce.study import Plot, Progressed, Selection, Study, cells_of, run_cells

STUDIES = (MetricPrivacyStudy.name,)

__all__ = [
    "STUDIES",
    "Cell",
    "Entry",
    "MetricPrivacyStudy",
    "Outcome",
    "Plot",
    "Progressed",
    "Published",
    "Replicate",
    "Result",
    "Runs",
    "Selection",
    "Study",
    "Value",
    "cells_of",
    "measured",
    "run_cells",
]
