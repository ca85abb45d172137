"""Where randomness comes from: a reproducible source for experiments, a secure one for deployments."""

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
    """128 bits of a key, the same on every machine and in every process."""
    text = repr([(type(part).__name__, part) for part in key])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def keyed_seed(*key: Key) -> int:
    """A 32-bit seed from a key, for torch's generators: they keep no more bits. For training, never for noise."""
    return _digest(*key) & ((1 << 32) - 1)


class _Key(ISeedSequence):
    """The 128 bits of a key, as a Philox generator asks a seed for them."""

    def __init__(self, key: int) -> None:
        self._words = np.array([key & ((1 << 64) - 1), key >> 64], np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return self._words


def _philox(key: int) -> np.random.Philox:
    """``np.random.Philox(key=key)``, in less than half of the time."""
    return np.random.Philox(cast(Any, _Key(key)))


class Source(ABC):
    """A stream of randomness: successive draws differ, `child` keys a fresh stream.

    A source is never pickled: a copy would hand out the same noise twice.

    Examples
    --------
    >>> isinstance(fv.SecureSource(), fv.Source)
    True
    """

    kind: ClassVar[str]
    deployable: ClassVar[bool]

    @abstractmethod
    def child(self, *key: Key) -> "Source":
        """A fresh stream for a key such as (round, partition, purpose, attempt)."""

    @abstractmethod
    def uniform(self, size: int) -> Tensor:
        """Float64 [size], uniform on the open interval (0, 1)."""

    @abstractmethod
    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Standard normal draws [size], float32 or float64."""

    @abstractmethod
    def bits(self, size: int) -> Tensor:
        """Int64 [size], uniform on [0, 2^63)."""

    def gamma(self, shape: float) -> float:
        """One draw of Gamma(shape, 1), shape >= 1 (Marsaglia and Tsang 2000, rejection from a normal)."""
        d = shape - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = self._one_normal()
            v = (1 + c * x) ** 3
            if v > 0 and math.log(self._one_uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v

    def _one_normal(self) -> float:
        return self.normal(1).item()

    def _one_uniform(self) -> float:
        return self.uniform(1).item()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise TypeError("a source of randomness cannot be pickled or copied: key a child for the other process")

    def _check(self, size: int) -> None:
        require_whole("size", size, least=0)


class ReproducibleSource(Source):
    """Noise that can be drawn again from its seed: for experiments and tests, not for deployment.

    Parameters
    ----------
    seed : int
        Any integer.

    Examples
    --------
    >>> source = fv.ReproducibleSource(7)
    >>> bool((source.child("noise", 1).normal(3) == fv.ReproducibleSource(7).child("noise", 1).normal(3)).all())
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
        self._children: dict[tuple[Key, ...], ReproducibleSource] = {}  # that have begun to draw
        self._begun: Future[NDArray[Any]] | None = None
        self._used = 0  # of what was begun
        self._generator = self._fresh()

    def _fresh(self) -> np.random.Generator:
        # Philox takes all 128 bits of its key; torch's generator would keep 32, and large cohorts would share streams
        return np.random.Generator(_philox(_digest("noise", self._seed, *self._key)))

    def child(self, *key: Key) -> "ReproducibleSource":
        """A fresh stream; the same key always gives the same one."""
        return self._children.pop(key, None) or ReproducibleSource(self._seed, _key=(*self._key, *key))

    def _stream(self) -> np.random.Generator:
        """The generator, where the draws that were handed out have left it."""
        if self._begun is not None:
            if self._used < len(self._begun.result()):  # too many were begun
                self._generator = self._fresh()
                self._generator.standard_normal(self._used)
            self._begun = None
        return self._generator

    def uniform(self, size: int) -> Tensor:
        """Float64 [size], uniform on (0, 1)."""
        self._check(size)
        bits = self._stream().integers(0, 1 << 53, size=size, dtype=np.int64)
        return (torch.from_numpy(bits).to(torch.float64) + 0.5) / (1 << 53)

    def bits(self, size: int) -> Tensor:
        """Int64 [size], uniform on [0, 2^63)."""
        self._check(size)
        return torch.from_numpy(self._stream().integers(0, (1 << 63) - 1, size=size, dtype=np.int64, endpoint=True))

    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Standard normal draws [size]."""
        self._check(size)
        kind = np.float32 if dtype == torch.float32 else np.float64
        if self._begun is not None and kind is np.float64 and self._used + size <= len(self._begun.result()):
            self._used += size
            return torch.from_numpy(self._begun.result()[self._used - size : self._used]).to(dtype)
        drawn = torch.from_numpy(self._stream().standard_normal(size, dtype=kind))
        return drawn if drawn.dtype == dtype else drawn.to(dtype)

    def _one_normal(self) -> float:
        return float(self._stream().standard_normal())

    def _one_uniform(self) -> float:
        return (float(self._stream().integers(0, 1 << 53)) + 0.5) / (1 << 53)

    def __repr__(self) -> str:
        """Name the class only: the seed is the noise."""
        return "ReproducibleSource(not for deployment)"


def zeros(d: int) -> Tensor:
    """Float64 [d], a long one in huge pages of its own, which the system gets back, whatever keeps freed memory."""
    if d < 1 << 19 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(d, dtype=torch.float64)
    room = mmap.mmap(-1, 8 * d, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(room, dtype=torch.float64)


def begin_normals(source: Source, size: int, *key: Key) -> None:
    """Draw, in a thread, the float64 `normal` that a reproducible source's next child of a key will be asked for first.

    The bits are the same; what is not asked for in the end is forgotten. Other sources draw when they are asked.
    """
    if isinstance(source, ReproducibleSource):
        child, thread = source.child(*key), ThreadPoolExecutor(1)
        child._begun = thread.submit(child._generator.standard_normal, out=zeros(size).numpy())
        thread.shutdown(wait=False)
        source._children[key] = child


class NoSource(Source):
    """No randomness at all, for a party that declares to add no noise: whoever draws is refused."""

    kind = "none"
    deployable = True

    def child(self, *key: Key) -> "NoSource":
        return self

    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Refuse, as every method that draws does."""
        raise FieldError("trust", "central", "declares that the client adds no noise: a method that draws is 'local'")

    uniform = bits = normal
