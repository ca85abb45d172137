"""Secure source of noise: a stream cipher keyed by the operating system; Box-Muller turns its bits into normals.

An AES-256-CTR keystream costs less than an ordinary generator, so secure noise is no slower than insecure noise. Radii
are computed from 63 bits in float64 for both number types, so that tails end at 9.35 deviations. The last step has a
probability of 2^-63 for each coordinate, 1e-11 over 6.5 million coordinates and 20 rounds. (With 32 bits tails would
end at 6.76, with a probability above delta = 1e-5.) Neither type is the exact real-valued distribution (Mironov 2012).
"""

import hashlib
import hmac
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.errors import FieldError, require_workers
from fedveil.mechanisms.source import Key, ReproducibleSource, Source

_PAIRS = 1 << 15  # Box-Muller pairs a block: the working set stays in the cache
_BLOCK = 16  # bytes of a cipher block, the unit of the counter
_ZEROS = bytes(8 * 2 * _PAIRS)  # encrypted zeros are the keystream itself
_SMALL = 1 << 12  # bytes of a small draw
_AHEAD = 1 << 14  # bytes that are encrypted at once for small draws

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class _Kind:
    """Parameters of normal draws of one number type: integer type and bits of the angle, and the fastest cosine and sine."""

    real: type[np.float32] | type[np.float64]
    integers: type[np.int32] | type[np.int64]
    bits: int
    waves: tuple[Callable[[Array, Array], object], Callable[[Array, Array], object]]

    @property
    def pair(self) -> int:
        """Number of keystream bytes for two draws: 8 for the radius, and those for the angle."""
        return 8 + np.dtype(self.integers).itemsize


def _by_torch(function: Callable[..., Tensor]) -> Callable[[Array, Array], object]:
    def wave(values: Array, out: Array) -> object:
        return function(torch.from_numpy(values), out=torch.from_numpy(out))

    return wave


_KINDS = {
    torch.float32: _Kind(np.float32, np.int32, 31, (np.cos, np.sin)),
    torch.float64: _Kind(np.float64, np.int64, 63, (_by_torch(torch.cos), _by_torch(torch.sin))),
}


_forks = 0  # forks by Python between this process and the one that imported the module


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _process() -> tuple[int, int]:
    """Identify this process by its id and a count of forks; together they also show forks that reuse an id or are made in C."""
    return os.getpid(), _forks


class SecureSource(Source):
    """Source of noise that nobody can reproduce: there is no seed, and the key never leaves the object.

    Every source, and every child, has a fresh 256-bit key from the operating system. A forked process gets a new key,
    so parent and child never share a stream. Each draw uses new counters of the key, so threads may share a source.

    Parameters
    ----------
    threads : int
        Number of threads that draw normals. It does not change the bits, as the counter of a block follows from its
        place alone.

    Examples
    --------
    >>> fv.SecureSource().normal(3).shape, fv.SecureSource().deployable
    (torch.Size([3]), True)
    """

    kind = "secure"
    deployable = True

    def __init__(self, *, threads: int = 1, **unknown: Any) -> None:
        if unknown:
            raise FieldError(
                "SecureSource", sorted(unknown), "takes only threads: secure noise has no seed"
            )
        self._threads = require_workers("threads", threads)
        self._stream: _Stream | None = None

    def child(self, *key: Key) -> "SecureSource":
        """Make a source with a fresh key; equal arguments give different noise each time."""
        return SecureSource(threads=self._threads)

    def uniform(self, size: int) -> Tensor:
        """Draw float64 [size], uniform on (0, 1), with 53 random bits each."""
        self._check(size)
        bits = torch.from_numpy(self._integers(size) & ((1 << 53) - 1))
        return (bits.to(torch.float64) + 0.5) / (1 << 53)

    def bits(self, size: int) -> Tensor:
        """Draw int64 [size], uniform on [0, 2^63)."""
        self._check(size)
        return torch.from_numpy(self._integers(size) & ((1 << 63) - 1))

    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draw standard normals [size]."""
        self._check(size)
        if dtype not in _KINDS:
            raise FieldError("dtype", dtype, "must be float32 or float64")
        kind = _KINDS[dtype]
        values = np.empty(size, dtype=kind.real)
        parts = [values[start : start + 2 * _PAIRS] for start in range(0, size, 2 * _PAIRS)]
        stream, need = self._current(), _PAIRS * kind.pair // _BLOCK
        first = stream.take(need * len(parts))
        workers = min(self._threads, len(parts))

        def fill(worker: int) -> None:
            scratch = _Normals(kind, (len(parts[0]) + 1) // 2)
            for i in range(worker, len(parts), workers):
                scratch.fill(parts[i], stream, first + i * need)

        if workers > 1:
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(fill, range(workers)))
        elif workers == 1:
            fill(0)
        return torch.from_numpy(values)

    def _integers(self, size: int) -> Array:
        stream, length = self._current(), 8 * size
        raw = np.empty(length + _BLOCK - 1, dtype=np.uint8)
        stream.write(raw, length, stream.take(-(-length // _BLOCK)))
        return raw[:length].view(np.int64)

    def _current(self) -> "_Stream":
        stream = self._stream
        if stream is None or stream.process != _process():
            stream = self._stream = _Stream()
        return stream

    def __repr__(self) -> str:
        """Return only the class's name, as the key is secret."""
        return "SecureSource()"


class _Stream:
    """Keystream of one key: AES-256 of a counter with a random start; no counter is used twice."""

    def __init__(self) -> None:
        self.process = _process()
        self._key = os.urandom(32)
        self._next = int.from_bytes(os.urandom(_BLOCK), "big")
        self._lock = threading.Lock()
        self._ahead = _nothing_ahead()

    def take(self, blocks: int) -> int:
        """Reserve the counters of `blocks` blocks for the caller, and return the first one."""
        with self._lock:
            first = self._next
            self._next += blocks
        return first

    def write(self, raw: Array, length: int, first: int) -> None:
        """Write `length` bytes of the keystream, from the counter `first` on, into `raw`; the cipher uses its last 15 bytes.

        Small pieces are copied from a piece that was encrypted in advance, because setting up the cipher costs more
        than they do.
        """
        if length > _SMALL:
            self._encrypt(raw, length, first)
            return
        begun, ahead = self._ahead  # one tuple, so that threads may replace it
        place = _BLOCK * (first - begun)
        if not 0 <= place <= len(ahead) - length:
            place, ahead = 0, np.empty(_AHEAD + _BLOCK - 1, dtype=np.uint8)
            self._encrypt(ahead, _AHEAD, first)
            ahead = ahead[:_AHEAD]
            self._ahead = first, ahead
        raw[:length] = ahead[place : place + length]

    def _encrypt(self, raw: Array, length: int, first: int) -> None:
        from cryptography.hazmat.primitives.ciphers import (
            Cipher,
            algorithms,
            modes,
        )  # 7 MB that not every run needs

        counter = (first % (1 << 128)).to_bytes(_BLOCK, "big")
        encryptor = Cipher(algorithms.AES(self._key), modes.CTR(counter)).encryptor()
        room = raw.data
        for start in range(0, length, len(_ZEROS)):
            zeros = memoryview(_ZEROS)[: length - start]
            encryptor.update_into(zeros, room[start : start + len(zeros) + _BLOCK - 1])


def _nothing_ahead() -> tuple[int, Array]:
    """Return the empty state of a keystream without bytes encrypted in advance: counter 0 and no bytes."""
    return 0, np.empty(0, dtype=np.uint8)


class _Normals:
    """Scratch memory of one thread for blocks of normal draws, with at most `pairs` pairs each."""

    def __init__(self, kind: _Kind, pairs: int) -> None:
        self._kind = kind
        self._raw = np.empty(pairs * kind.pair + _BLOCK - 1, dtype=np.uint8)
        self._u = np.empty(pairs)
        self._radius = np.empty(pairs, dtype=kind.real)
        self._angle = np.empty(pairs, dtype=kind.real)

    def fill(self, part: Array, stream: _Stream, first: int) -> None:
        """Fill `part` with normal draws, from the keystream at the counter `first`."""
        kind, pairs = self._kind, (len(part) + 1) // 2
        stream.write(self._raw, pairs * kind.pair, first)
        radius = self._rayleigh(self._raw[: 8 * pairs].view(np.int64))
        angle = self._angle[:pairs]
        integers = self._raw[8 * pairs : kind.pair * pairs].view(kind.integers)
        np.copyto(angle, integers, casting="same_kind")
        angle *= kind.real(math.pi * 2.0**-kind.bits)
        cosine, sine = kind.waves
        cosine(angle, part[:pairs])
        part[:pairs] *= radius
        sine(angle, angle)
        rest = len(part) - pairs
        np.multiply(angle[:rest], radius[:rest], out=part[pairs:])

    def _rayleigh(self, integers: Array) -> Array:
        """Compute sqrt(-2 log u) for u = |integer| / 2^63, with an offset that keeps the logarithm finite."""
        u, radius = self._u[: len(integers)], self._radius[: len(integers)]
        np.copyto(u, integers)
        np.abs(u, out=u)
        u *= 2.0**-63
        u += 2.0**-65  # never above 1: in float64, 1 + 2^-65 is 1
        np.log(u, out=u)
        u *= -2.0
        np.copyto(radius, u, casting="same_kind")
        return np.sqrt(radius, out=radius)


class KeyedSource(SecureSource):
    """Source of secure noise determined by a secret key and the arguments of `child`, for secure sums.

    Every object begins its stream anew. Make one for each question, by `child` with all parts of the question. Then an
    answer computed twice has the same noise.

    Parameters
    ----------
    key : bytes
        32 secret bytes.
    """

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) != 32:
            raise FieldError("key", "of another length", "must be 32 secret bytes")
        super().__init__()
        self._key, self._keyed = key, _KeyedStream(key)

    def child(self, *key: Key) -> "KeyedSource":
        """Make the source for further key parts; equal parts always give the same noise."""
        text = repr([(type(part).__name__, part) for part in key])
        return KeyedSource(hmac.digest(self._key, text.encode(), hashlib.sha256))

    def _current(self) -> _Stream:
        return self._keyed

    def __repr__(self) -> str:
        """Return only the class's name, as the key determines the noise."""
        return "KeyedSource()"


class _KeyedStream(_Stream):
    def __init__(self, key: bytes) -> None:
        self._key, self._next, self._lock = key, 0, threading.Lock()
        self._ahead = _nothing_ahead()


def source_of(seed: int | None) -> Source:
    """Return a secure source, or a reproducible one if a seed is given."""
    return SecureSource() if seed is None else ReproducibleSource(seed)
