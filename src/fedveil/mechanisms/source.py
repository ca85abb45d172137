"""Sources of randomness: the base class, and a reproducible source for experiments."""

import hashlib
import math
import mmap
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from torch import Tensor

from fedveil.checks import require_whole
from fedveil.errors import FieldError

Key = int | str


def _digest(*key: Key) -> int:
    """Return a 128-bit hash of a key, the same on every machine and in every process."""
    text = repr([(type(part).__name__, part) for part in key])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def keyed_seed(*key: Key) -> int:
    """Return a 32-bit seed from a key, for PyTorch's generators (they use no more bits). Never use it for noise."""
    return _digest(*key) & ((1 << 32) - 1)


class _Key(ISeedSequence):
    """Seed sequence for a Philox generator whose words are the 128 bits of a key."""

    def __init__(self, key: int) -> None:
        low, high = key & ((1 << 64) - 1), key >> 64
        self._words = np.array([low, high], np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return self._words


def _philox(key: int) -> np.random.Philox:
    """Make ``np.random.Philox(key=key)`` in less than half the time."""
    return np.random.Philox(cast(Any, _Key(key)))


class Source(ABC):
    """Base class of sources of randomness: a stream of draws, and `child` for independent streams.

    A source cannot be pickled, because a copy would draw the same noise again.

    Examples
    --------
    >>> isinstance(fv.SecureSource(), fv.Source)
    True
    """

    kind: ClassVar[str]
    deployable: ClassVar[bool]

    @abstractmethod
    def child(self, *key: Key) -> "Source":
        """Make an independent source for a key such as (round, partition, purpose, attempt)."""

    @abstractmethod
    def uniform(self, size: int) -> Tensor:
        """Draw float64 [size], uniform on the open interval (0, 1)."""

    @abstractmethod
    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draw standard normals [size], float32 or float64."""

    @abstractmethod
    def bits(self, size: int) -> Tensor:
        """Draw int64 [size], uniform on [0, 2^63)."""

    def gamma(self, shape: float) -> float:
        """Draw one number from Gamma(shape, 1), shape >= 1 (Marsaglia and Tsang 2000, rejection from a normal)."""
        d = shape - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = self._one_normal()
            v = (1 + c * x) ** 3
            if v <= 0:
                continue
            accepted = 0.5 * x * x + d - d * v + d * math.log(v)
            if math.log(self._one_uniform()) < accepted:
                return d * v

    def _one_normal(self) -> float:
        return self.normal(1).item()

    def _one_uniform(self) -> float:
        return self.uniform(1).item()

    def __reduce__(self) -> NoReturn:
        """Refuse pickling and copying."""
        raise TypeError(
            "a source of randomness cannot be pickled or copied: key a child for the other process"
        )

    def _check(self, size: int) -> None:
        require_whole("size", size, least=0)


class ReproducibleSource(Source):
    """Source that repeats its noise from a seed: for experiments and tests, not for deployment.

    Parameters
    ----------
    seed : int
        Seed, any integer.

    Examples
    --------
    >>> source = fv.ReproducibleSource(7)
    >>> bool(
    ...     (
    ...         source.child("noise", 1).normal(3)
    ...         == fv.ReproducibleSource(7).child("noise", 1).normal(3)
    ...     ).all()
    ... )
    True
    >>> source.deployable
    False
    """

    kind = "reproducible"
    deployable = False

    def __init__(self, seed: int, *, _key: tuple[Key, ...] = ()) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise FieldError("seed", seed, "must be an integer")
        self._seed, self._key = seed, _key
        self._children: dict[
            tuple[Key, ...], ReproducibleSource
        ] = {}  # children that draw in a thread
        self._begun: Future[NDArray[Any]] | None = None  # draws of this source in a thread
        self._used = 0  # number of these draws that were handed out
        self._generator = self._fresh()

    def _fresh(self) -> np.random.Generator:
        # Philox takes all 128 bits of its key; torch's generator would keep 32, and large cohorts would share streams
        return np.random.Generator(_philox(_digest("noise", self._seed, *self._key)))

    def child(self, *key: Key) -> "ReproducibleSource":
        """Make an independent source for a key; equal seeds and keys give the same source."""
        begun = self._children.pop(key, None)
        if begun is not None:
            return begun
        return ReproducibleSource(self._seed, _key=(*self._key, *key))

    def _stream(self) -> np.random.Generator:
        """Return the generator, after waiting for draws that began in a thread; unused ones are dropped."""
        if self._begun is not None:
            if self._used < len(self._begun.result()):  # more were drawn than were handed out
                self._generator = self._fresh()
                self._generator.standard_normal(self._used)
            self._begun = None
        return self._generator

    def uniform(self, size: int) -> Tensor:
        """Draw float64 [size], uniform on (0, 1)."""
        self._check(size)
        bits = self._stream().integers(0, 1 << 53, size=size, dtype=np.int64)
        return (torch.from_numpy(bits).to(torch.float64) + 0.5) / (1 << 53)

    def bits(self, size: int) -> Tensor:
        """Draw int64 [size], uniform on [0, 2^63)."""
        self._check(size)
        return torch.from_numpy(
            self._stream().integers(
                0,
                (1 << 63) - 1,
                size=size,
                dtype=np.int64,
                endpoint=True,
            )
        )

    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draw standard normals [size]."""
        self._check(size)
        kind = np.float32 if dtype == torch.float32 else np.float64
        if self._begun is not None and kind is np.float64:
            begun, end = self._begun.result(), self._used + size
            if end <= len(begun):
                part, self._used = begun[self._used : end], end
                return torch.from_numpy(part).to(dtype)
        drawn = torch.from_numpy(self._stream().standard_normal(size, dtype=kind))
        return drawn if drawn.dtype == dtype else drawn.to(dtype)

    def _one_normal(self) -> float:
        return float(self._stream().standard_normal())

    def _one_uniform(self) -> float:
        return (float(self._stream().integers(0, 1 << 53)) + 0.5) / (1 << 53)

    def __repr__(self) -> str:
        """Return only the class's name, as the seed determines the noise."""
        return "ReproducibleSource(not for deployment)"


def zeros(d: int) -> Tensor:
    """Return float64 zeros [d]; long ones get huge pages, which return to the system when they are freed."""
    if d < 1 << 19 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(d, dtype=torch.float64)
    room = mmap.mmap(-1, 8 * d, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(room, dtype=torch.float64)


def begin_normals(source: Source, size: int, *key: Key) -> None:
    """Start drawing, in a thread, the first `size` float64 normals of a reproducible source's child for a key.

    The bits are those of an ordinary draw, and unused draws are dropped. For other sources nothing is done.
    """
    if not isinstance(source, ReproducibleSource):
        return
    child, thread = source.child(*key), ThreadPoolExecutor(1)
    child._begun = thread.submit(child._generator.standard_normal, out=zeros(size).numpy())
    thread.shutdown(wait=False)
    source._children[key] = child


class NoSource(Source):
    """Source without randomness; it refuses every draw. For a party that adds no noise."""

    kind = "none"
    deployable = True

    def child(self, *key: Key) -> "NoSource":
        return self

    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Refuse to draw, as all draws of this source."""
        raise FieldError(
            "trust",
            "central",
            "declares that the client adds no noise: a method that draws is 'local'",
        )

    uniform = bits = normal
