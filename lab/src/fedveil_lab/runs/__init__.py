"""Runs: make one experiment from its configuration, and keep its results in a folder."""

from fedveil_lab.runs.runner import Progress as Progress
from fedveil_lab.runs.runner import run as run
from fedveil_lab.runs.summary import Summary as Summary
