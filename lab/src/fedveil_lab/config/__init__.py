"""Configuration of experiments: all keys of the TOML file, presets, and the settings of a comparison."""

from typing import TYPE_CHECKING

from fedveil.registry import lazy

_OFFERED = {  # by module; a whole module stands under its package
    "fedveil_lab.config.experiment": "Config",
    "fedveil_lab.config.loading": "load parse presets",
    "fedveil_lab.config.tables": "ConfigError",
}

if TYPE_CHECKING:
    from fedveil_lab.config.experiment import Config as Config
    from fedveil_lab.config.loading import load as load
    from fedveil_lab.config.loading import parse as parse
    from fedveil_lab.config.loading import presets as presets
    from fedveil_lab.config.tables import ConfigError as ConfigError
else:
    __getattr__, __dir__, __all__ = lazy(__name__, _OFFERED)
