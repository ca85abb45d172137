"""The streams of local training: shuffling and dropout, keyed by the client's key and by nothing else."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.mechanisms.source import keyed_seed

Key = tuple[int, ...]
Words = NDArray[np.uint64]
Ints = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1
_ROUNDS = [(np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB))]
_LAST = np.uint64(31)


def stream(key: Key, purpose: str, generator: torch.Generator | None = None) -> torch.Generator:
    """A generator seeded for one client, round and purpose; an existing one may be seeded anew."""
    generator = torch.Generator() if generator is None else generator
    return generator.manual_seed(keyed_seed("train", *key, purpose))


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed what others' code draws from, of torch, NumPy and Python, and put it back."""
    numbers, python = np.random.get_state(), random.getstate()  # noqa: NPY002 - what others' code draws from
    with torch.random.fork_rng(devices=[]):
        draw_from(seed)
        try:
            yield
        finally:
            np.random.set_state(numbers)  # noqa: NPY002
            random.setstate(python)


def draw_from(seed: int) -> None:
    """Seed what others' code draws from; NumPy's generator takes 32 bits."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & ((1 << 32) - 1))  # noqa: NPY002
    random.seed(seed)


def epoch_orders(keys: Sequence[Key], examples: Sequence[int] | Ints, epochs: int) -> Ints:
    """The order in which clients go through their examples: every epoch another permutation.

    The hash of (key, epoch, example) is sorted, so that a client's order depends on its own key alone, and many
    clients are shuffled in one pass. (Shuffling is no mechanism: nothing about privacy rests on it.)

    Parameters
    ----------
    keys : sequence of tuple of int
        n of them, all of one length.
    examples : sequence of int
        [n], N of each client.
    epochs : int
        E.

    Returns
    -------
    ndarray
        [E * sum(N)] int64: client by client, epoch by epoch, numbers from 0 to N - 1.
    """
    counts = np.asarray(examples, np.int64)
    table = order_table(keys, counts, epochs)
    return table[np.broadcast_to(np.arange(table.shape[2]) < counts[:, None, None], table.shape)]


def order_table(keys: Sequence[Key], counts: Ints, epochs: int) -> Ints:
    """The same as a table [n, E, largest N]; what stands behind a client's N numbers means nothing."""
    index: Words = np.arange(counts.max(initial=0), dtype=np.uint64)
    words: Words = _mixed(_seeds(keys)[:, None] + _GOLDEN * np.arange(1, epochs + 1, dtype=np.uint64))
    hashed = _mixed(words[:, :, None] + _GOLDEN * index)
    if counts.min(initial=len(index)) < len(index):
        np.copyto(hashed, np.uint64(_MASK), where=(index >= counts[:, None])[:, None])
    return hashed.argsort(axis=2, kind="stable")  # so that no hash stands behind the places that nobody fills


def _seeds(keys: Sequence[Key]) -> Words:
    columns = _mixed(np.array([[part & _MASK for part in key] for key in keys], dtype=np.uint64).T + _GOLDEN)
    state = np.zeros(len(keys), dtype=np.uint64)
    for column in columns:
        state = _mixed((state + _GOLDEN) ^ column)
    return state


def _mixed(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    for shift, factor in _ROUNDS:
        words = (words ^ (words >> shift)) * factor
    return words ^ (words >> _LAST)
