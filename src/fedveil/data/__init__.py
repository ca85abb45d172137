"""Data: sources by name, and how examples are dealt out to clients."""

from fedveil.data.alzheimer import ALZHEIMER_HOMOGENEOUS, ALZHEIMER_NON_IID
from fedveil.data.files import cache_folder, data_folders
from fedveil.data.map_style import from_torch
from fedveil.data.overview import Holding, holdings, warnings_of
from fedveil.data.partition import NATURAL, SCHEMES, federate, holdout, partition
from fedveil.data.sets import DataSet, MissingDataError, own_scale
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
