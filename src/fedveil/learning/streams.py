"""Random numbers of local training (shuffling and dropout), determined by the client's key alone."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedveil.mechanisms.source import keyed_seed

Key = tuple[int, ...]
Words = NDArray[np.uint64]
Ints = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1
_ROUNDS = [
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
]
_LAST = np.uint64(31)
# Trailing axes that one decision covers: a whole channel in the spatial kinds of dropout.
_SHARED_AXES: dict[type[nn.Module], int] = {
    nn.Dropout: 0,
    nn.Dropout1d: 1,
    nn.Dropout2d: 2,
    nn.Dropout3d: 3,
}


def stream(
    key: Key,
    purpose: str,
    generator: torch.Generator | None = None,
) -> torch.Generator:
    """Return a generator seeded by a client's key (seed, round, partition) and a purpose; a given one is seeded again."""
    if generator is None:
        generator = torch.Generator()
    return generator.manual_seed(keyed_seed("train", *key, purpose))


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed the global generators of PyTorch, NumPy and Python in this context, and restore them afterwards.

    It is for foreign code that draws from them.
    """
    numbers = np.random.get_state()  # noqa: NPY002 - what others' code draws from
    python = random.getstate()
    with torch.random.fork_rng(devices=[]):
        draw_from(seed)
        try:
            yield
        finally:
            np.random.set_state(numbers)  # noqa: NPY002
            random.setstate(python)


def draw_from(seed: int) -> None:
    """Seed the global generators of PyTorch, NumPy (with 32 bits) and Python."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & ((1 << 32) - 1))  # noqa: NPY002
    random.seed(seed)


def epoch_orders(
    keys: Sequence[Key],
    examples: Sequence[int] | Ints,
    epochs: int,
) -> Ints:
    """Draw the order in which clients use their examples, a new permutation in each epoch.

    The order is that of hashes of (key, epoch, example). So a client's order depends only on its own key, and many
    clients are shuffled at once. No privacy promise depends on shuffling.

    Parameters
    ----------
    keys : sequence of tuple of int
        n keys of the same length.
    examples : sequence of int
        [n], number of examples N of each client.
    epochs : int
        Number of epochs E.

    Returns
    -------
    ndarray
        [n, E, largest N] int64: numbers from 0 to N - 1; entries beyond a client's N have no meaning.
    """
    counts = np.asarray(examples, np.int64)
    index: Words = np.arange(counts.max(initial=0), dtype=np.uint64)
    epoch: Words = np.arange(1, epochs + 1, dtype=np.uint64)
    words = _mixed(_seeds(keys)[:, None] + _GOLDEN * epoch)
    hashed = _mixed(words[:, :, None] + _GOLDEN * index)
    if counts.min(initial=len(index)) < len(index):
        is_empty = index >= counts[:, None]
        np.copyto(hashed, np.uint64(_MASK), where=is_empty[:, None])
    return hashed.argsort(axis=2, kind="stable")  # so that hashes sort before the empty places


def _seeds(keys: Sequence[Key]) -> Words:
    """Return a hash of each key."""
    words: list[list[int]] = []
    for key in keys:
        words.append([part & _MASK for part in key])
    columns = np.array(words, dtype=np.uint64).T
    state = np.zeros(len(keys), dtype=np.uint64)
    for column in _mixed(columns + _GOLDEN):
        state = _mixed((state + _GOLDEN) ^ column)
    return state


def _mixed(words: Words) -> Words:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    for shift, factor in _ROUNDS:
        words = (words ^ (words >> shift)) * factor
    return words ^ (words >> _LAST)


class KeyedDropout(nn.Module):
    """Dropout layer that draws from an explicit generator, in place of PyTorch's global state.

    Parameters
    ----------
    p : float
        Probability of dropping.
    axes : int
        Number of trailing axes that are dropped or kept together (0 for ordinary dropout).
    generator : torch.Generator, optional
        Generator on the CPU. Masks are drawn on the CPU for inputs on any device, so the device does not change them.
        Without a generator masks come from PyTorch's global state, because a trace cannot hold a generator.
    """

    def __init__(self, p: float, axes: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.p = p
        self.axes = axes
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        """In training mode set dropped values to 0 and scale up the others; else return x."""
        if not self.training or self.p == 0:
            return x
        shared = min(self.axes, x.dim())
        shape = (*x.shape[: x.dim() - shared], *[1] * shared)
        keep = self._drawn(shape)
        if self.p == 1:
            return x * torch.zeros((), device=x.device)
        return x * (keep.to(x.device, x.dtype) / (1 - self.p))

    def _drawn(self, shape: Sequence[int]) -> Tensor:
        """Draw the mask: True where a value is kept."""
        if self.generator is None:
            return torch.bernoulli(torch.empty(shape), 1 - self.p)
        return torch.rand(shape, generator=self.generator, dtype=torch.float32) >= self.p


def with_traced_dropout(module: nn.Module) -> nn.Module:
    """Let keyed dropout layers of a module draw from PyTorch's global state, in place; a trace needs this."""
    for child in module.modules():
        if isinstance(child, KeyedDropout):
            child.generator = None
    return module


def with_keyed_dropout(module: nn.Module, generator: torch.Generator) -> None:
    """Replace every dropout layer of a module, in place, by one that draws from `generator`."""
    replaced: dict[int, KeyedDropout] = {}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            axes = _SHARED_AXES.get(type(child))
            if axes is None:
                continue
            if id(child) not in replaced:
                replaced[id(child)] = KeyedDropout(vars(child)["p"], axes, generator)
            new = replaced[id(child)]
            new.training = child.training
            setattr(parent, name, new)
