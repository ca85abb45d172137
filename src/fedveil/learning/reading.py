"""Clients as PyTorch's data sets: read into memory where they are small, one batch at a time where they are large."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from fedveil.errors import FieldError
from fedveil.learning.clients import ClientData, OnDemand

MOST = 1 << 30  # bytes of one client's examples that are held in memory
CHUNK = 256  # examples read at once


def is_data_set(value: Any) -> bool:
    """Whether it is a data set or loader of PyTorch."""
    return isinstance(value, Dataset | DataLoader)


def read_client(value: Any, name: str, convert: Callable[[Sequence[Any], str], ClientData]) -> ClientData:
    """Read a map-style data set once, to check every example and to learn the labels.

    Of a loader its data set and its ``collate_fn`` are used; how large batches are and in which order they come is
    `LocalTraining`'s. Where the examples take more than a GiB (`MOST`), they stay where they are and each batch is
    read when it is trained on; random transforms are then drawn anew each time.

    Parameters
    ----------
    value : Dataset or DataLoader
        ``len`` and ``[i] -> (x, y)``, of tensors, arrays or numbers.
    name : str
        For refusals.
    convert : callable
        ``((x, y), name) -> ClientData`` checks a batch.

    Raises
    ------
    FieldError
        If it has no length, is empty, or an example cannot be used.
    """
    data: Any
    data, collate = (value.dataset, value.collate_fn) if isinstance(value, DataLoader) else (value, default_collate)
    if isinstance(data, IterableDataset) or not len(data):
        accepted = "must have a length of at least 1 and [i]: give a map-style Dataset, or its examples as a list"
        raise FieldError(name, type(data).__name__, accepted)

    def read(rows: Sequence[int]) -> ClientData:
        try:
            x, y = collate([data[i] for i in rows])
            return convert((x, y), name)
        except FieldError:
            raise
        except Exception as error:  # the data set is the user's
            accepted = f"must give pairs (x, y) of numbers, all x of one shape ({error}); for images add ToTensor()"
            raise FieldError(f"{name}, examples {rows[0]} to {rows[-1]}", type(data).__name__, accepted) from error

    count, first = len(data), read([0])
    parts = (read(range(at, min(at + CHUNK, count))) for at in range(0, count, CHUNK))
    if first.x.nbytes * count <= MOST:
        held = list(parts)
        return ClientData(torch.cat([p.x for p in held]), torch.cat([p.y for p in held]))
    x = OnDemand(lambda rows: read(rows).x, (count, *first.x.shape[1:]), first.x.dtype)
    return ClientData(x, torch.cat([p.y for p in parts]))
