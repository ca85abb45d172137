"""Experiments: configuration, presets, runs, comparisons."""

from fedveil.experiments.audit import Audit, audit
from fedveil.experiments.compare import compare
from fedveil.experiments.config import Config
from fedveil.experiments.loading import load, parse, presets
from fedveil.experiments.options import ConfigError
from fedveil.experiments.runner import Progress, run
from fedveil.experiments.summary import Summary

__all__ = [
    "Audit",
    "Config",
    "ConfigError",
    "Progress",
    "Summary",
    "audit",
    "compare",
    "load",
    "parse",
    "presets",
    "run",
]
