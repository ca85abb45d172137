"""Data: sources by name, and how examples are dealt out to clients.

Names are imported when they are first used, so that ``fedveil data list`` does not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil.data.alzheimer import ALZHEIMER_HOMOGENEOUS, ALZHEIMER_NON_IID
    from fedveil.data.dealing import NATURAL, SCHEMES, federate, holdout, partition
    from fedveil.data.files import MissingDataError, cache_folder, data_folders
    from fedveil.data.map_style import from_torch
    from fedveil.data.overview import Holding, holdings, warnings_of
    from fedveil.data.sets import DataSet, own_scale
    from fedveil.data.sources import SOURCES, SourceInfo, load, prepare

__all__ = [
    "ALZHEIMER_HOMOGENEOUS",
    "ALZHEIMER_NON_IID",
    "NATURAL",
    "SCHEMES",
    "SOURCES",
    "DataSet",
    "Holding",
    "MissingDataError",
    "SourceInfo",
    "cache_folder",
    "data_folders",
    "federate",
    "from_torch",
    "holdings",
    "holdout",
    "load",
    "own_scale",
    "partition",
    "prepare",
    "warnings_of",
]

_OWNERS = {
    "alzheimer": "ALZHEIMER_HOMOGENEOUS ALZHEIMER_NON_IID",
    "files": "MissingDataError cache_folder data_folders",
    "map_style": "from_torch",
    "overview": "Holding holdings warnings_of",
    "dealing": "NATURAL SCHEMES federate holdout partition",
    "sets": "DataSet own_scale",
    "sources": "SOURCES SourceInfo load prepare",
}
_OWNER = {name: owner for owner, names in _OWNERS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _OWNER:
        return getattr(import_module(f"fedveil.data.{_OWNER[name]}"), name)
    raise AttributeError(f"module 'fedveil.data' has no attribute {name!r}")
