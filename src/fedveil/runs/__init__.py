"""Runs: one experiment from its configuration, and the folder that it leaves behind."""

from fedveil.runs.runner import Progress, run
from fedveil.runs.summary import Summary

__all__ = ["Progress", "Summary", "run"]
