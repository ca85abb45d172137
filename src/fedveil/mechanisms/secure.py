"""The secure source: a stream cipher keyed by the operating system, turned into normals by Box and Muller.

An AES-256-CTR keystream costs less than an ordinary generator, so secure noise is no slower than insecure noise. What
floating point leaves open is documented here rather than hidden: radii come from 63 bits in float64 for either type, so
that tails end at 9.35 deviations (the last step has a mass of 2^-63 a coordinate, 1e-11 over 6.5 million coordinates
and 20 rounds; 32 bits would end at 6.76 and give away more than delta = 1e-5 there). Neither type is the exact
real-valued distribution (Mironov 2012).
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.mechanisms.source import Key, Source

_PAIRS = 1 << 15  # Box-Muller pairs a block: the working set stays in the cache
_BITS = {torch.float32: (torch.int32, 31), torch.float64: (torch.int64, 63)}


class SecureSource(Source):
    """Noise that nobody can draw again: there is no seed, and the key never leaves the object.

    Every source, and every child, has a fresh 256-bit key from the operating system. A process that is forked gets a
    new key, so that parent and child never share a stream.
    """

    kind = "secure"
    deployable = True

    def __init__(self, **unknown: Any) -> None:
        if unknown:
            raise FieldError("SecureSource", sorted(unknown), "takes no arguments: secure noise has no seed")
        self._process = -1
        self._stream: CipherContext

    def child(self, *key: Key) -> SecureSource:
        """A fresh stream under a key of its own; the same key of the caller gives a different one every time."""
        return SecureSource()

    def uniform(self, size: int) -> Tensor:
        """Float64 [size], uniform on (0, 1), 53 random bits each."""
        self._check(size)
        raw = self._integers(size, torch.int64) & ((1 << 53) - 1)
        return (raw.to(torch.float64) + 0.5) / (1 << 53)

    def bits(self, size: int) -> Tensor:
        """Int64 [size], uniform on [0, 2^63)."""
        self._check(size)
        return self._integers(size, torch.int64) & ((1 << 63) - 1)

    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Standard normal draws [size]."""
        self._check(size)
        if dtype not in _BITS:
            raise FieldError("dtype", dtype, "must be float32 or float64")
        out = torch.empty(size, dtype=dtype)
        for start in range(0, size, 2 * _PAIRS):
            part = out[start : start + 2 * _PAIRS]
            pairs = (len(part) + 1) // 2
            radius, angle = self._polar(pairs, dtype)
            torch.mul(angle.cos(), radius, out=part[:pairs])
            torch.mul(angle.sin_(), radius, out=radius)
            part[pairs:] = radius[: len(part) - pairs]
        return out

    def _polar(self, pairs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rayleigh radius and uniform angle; only the angle is cheaper in float32."""
        radius = self._integers(pairs, torch.int64).to(torch.float64)
        # |integer| / 2^63 is uniform on [0, 1]; the offset keeps the logarithm finite
        radius.abs_().mul_(2.0**-63).add_(2.0**-65).clamp_(max=1.0).log_().mul_(-2).sqrt_()
        integers, bits = _BITS[dtype]
        angle = self._integers(pairs, integers).to(dtype)
        return radius.to(dtype), angle.mul_(math.pi * 2.0**-bits)

    def _integers(self, size: int, dtype: torch.dtype) -> Tensor:
        if self._process != os.getpid():
            self._stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
            self._process = os.getpid()
        if size == 0:
            return torch.zeros(0, dtype=dtype)
        length = size * dtype.itemsize
        buffer = bytearray(length + 15)  # the library asks for room for one unfinished block
        self._stream.update_into(bytes(length), buffer)
        return torch.frombuffer(buffer, dtype=dtype, count=size)

    def __repr__(self) -> str:
        """Name the class: there is nothing else to show."""
        return "SecureSource()"
