"""Runs: one experiment from its configuration, and the folder that it leaves behind."""

from fedveil_lab.runs.runner import Progress as Progress
from fedveil_lab.runs.runner import run as run
from fedveil_lab.runs.summary import Summary as Summary
