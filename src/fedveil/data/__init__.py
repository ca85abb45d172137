"""Data: sources by name, and how examples are dealt out to clients."""

from fedveil.data.alzheimer import ALZHEIMER_HOMOGENEOUS, ALZHEIMER_NON_IID
from fedveil.data.files import cache_folder, data_folders
from fedveil.data.partition import SCHEMES, federate, holdout, partition
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.data.sources import SOURCES, SourceInfo, load, prepare

__all__ = [
    "ALZHEIMER_HOMOGENEOUS",
    "ALZHEIMER_NON_IID",
    "SCHEMES",
    "SOURCES",
    "DataSet",
    "MissingDataError",
    "SourceInfo",
    "cache_folder",
    "data_folders",
    "federate",
    "holdout",
    "load",
    "partition",
    "prepare",
]
