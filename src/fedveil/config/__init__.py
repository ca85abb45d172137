"""Configuration: everything that may stand in an experiment's TOML file, presets, and the settings of a comparison."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedveil.config.loading import load, parse, presets

if TYPE_CHECKING:
    from fedveil.config.experiment import Config
    from fedveil.config.options import ConfigError

__all__ = ["Config", "ConfigError", "load", "parse", "presets"]

_LATER = {"Config": "experiment", "ConfigError": "options"}  # with PyTorch, with pydantic


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"fedveil.config.{_LATER[name]}"), name)
    raise AttributeError(f"module 'fedveil.config' has no attribute {name!r}")
