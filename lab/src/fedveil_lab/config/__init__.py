"""Configuration: everything that may stand in an experiment's TOML file, presets, and the settings of a comparison."""

from typing import TYPE_CHECKING

from fedveil.registry import lazy

if TYPE_CHECKING:
    from fedveil_lab.config.experiment import Config as Config
    from fedveil_lab.config.loading import load as load
    from fedveil_lab.config.loading import parse as parse
    from fedveil_lab.config.loading import presets as presets
    from fedveil_lab.config.tables import ConfigError as ConfigError
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
