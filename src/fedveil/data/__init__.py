"""Data sets by name, and the distribution of examples to clients.

Names are imported on first use, so that ``fedveil data list`` need not load PyTorch.
"""

from typing import TYPE_CHECKING

from fedveil.registry import lazy

_OFFERED = {  # by module; a whole module stands under its package
    "fedveil.data.bundled": "ALZHEIMER_HOMOGENEOUS ALZHEIMER_NON_IID",
    "fedveil.data.dealing": "NATURAL SCHEMES federate holdout partition",
    "fedveil.data.map_style": "from_torch",
    "fedveil.data.overview": "Holding holdings warnings_of",
    "fedveil.data.sets": "DataSet MissingDataError cache_folder data_folders own_scale",
    "fedveil.data.sources": "SOURCES SourceInfo load prepare",
}

if TYPE_CHECKING:
    from fedveil.data.bundled import ALZHEIMER_HOMOGENEOUS as ALZHEIMER_HOMOGENEOUS
    from fedveil.data.bundled import ALZHEIMER_NON_IID as ALZHEIMER_NON_IID
    from fedveil.data.dealing import NATURAL as NATURAL
    from fedveil.data.dealing import SCHEMES as SCHEMES
    from fedveil.data.dealing import federate as federate
    from fedveil.data.dealing import holdout as holdout
    from fedveil.data.dealing import partition as partition
    from fedveil.data.map_style import from_torch as from_torch
    from fedveil.data.overview import Holding as Holding
    from fedveil.data.overview import holdings as holdings
    from fedveil.data.overview import warnings_of as warnings_of
    from fedveil.data.sets import DataSet as DataSet
    from fedveil.data.sets import MissingDataError as MissingDataError
    from fedveil.data.sets import cache_folder as cache_folder
    from fedveil.data.sets import data_folders as data_folders
    from fedveil.data.sets import own_scale as own_scale
    from fedveil.data.sources import SOURCES as SOURCES
    from fedveil.data.sources import SourceInfo as SourceInfo
    from fedveil.data.sources import load as load
    from fedveil.data.sources import prepare as prepare
else:
    __getattr__, __dir__, __all__ = lazy(__name__, _OFFERED)
