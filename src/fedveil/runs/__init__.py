"""Runs: one experiment from its configuration, and the folder that it leaves behind."""

from fedveil.runs.runner import Progress as Progress
from fedveil.runs.runner import run as run
from fedveil.runs.summary import Summary as Summary
