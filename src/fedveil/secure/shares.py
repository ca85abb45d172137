"""Shares of a secure sum: integers that are uniformly random alone, and the noised sum together.

Each pair of sites draws one mask from a key that both can compute; one adds it, the other subtracts it (Bonawitz et al.
2017, without their secret sharing: a site that is missing leaves random numbers, and the round begins again).
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedveil.errors import FieldError, NoReplyError, ReplyError
from fedveil.secure.keys import PublicKey, SiteKey
from fedveil.secure.terms import SumContext

_NONCE = bytes(16)  # a key is used for one mask
_BLOCK = 1 << 20  # bytes of keystream at a time


def on_grid(rows: Tensor, grid: float) -> Tensor:
    """Clipped contributions [n, d] in whole steps of the grid, int64, truncated towards zero: none becomes longer.

    Nothing is refused: a refusal would depend on the data. What is not finite is 0.
    """
    steps = torch.nan_to_num(rows.to(torch.float64) / grid, nan=0.0, posinf=0.0, neginf=0.0)
    return steps.trunc_().to(torch.int64)


def share(total: Tensor, key: SiteKey, context: SumContext, peers: tuple[PublicKey, ...]) -> Tensor:
    """What one site sends: its sum, its noise and its masks, modulo 2^64.

    Parameters
    ----------
    total : Tensor
        [d] int64: the sum of contributions on the grid, see `on_grid`.
    key : SiteKey
        The site's.
    context : SumContext
        What it is asked.
    peers : tuple of bytes
        The keys that its policy pins.

    Returns
    -------
    Tensor
        [d] int64. Another question gives fresh noise under fresh masks, the same one about the same sum the same bits.
        Another sum under one question has fresh noise under the *same* masks: two such answers show how the sums
        differ, with this site's noise alone. So a site answers a question once, which is its ledger's affair.

    Raises
    ------
    FieldError
        If the context is not this site's to answer; nothing in it depends on the sum's values.
    """
    context.require(key.public, peers)
    if total.shape != (context.terms.dimension,) or total.dtype != torch.int64:
        raise FieldError("total", f"{total.dtype} {tuple(total.shape)}", f"must be int64 [{context.terms.dimension}]")
    mark = int.from_bytes(_digest(total), "big")  # other data under the same question: other noise
    source = key.source(context.digest).child("noise", mark)
    noised = (total + context.terms.noise.sample(len(total), source=source)).numpy().view(np.uint64).copy()
    for peer in context.roster:
        if peer != key.public:
            _mask(noised, key.pair_key(peer, b"mask" + context.digest), add=key.public < peer)
    return torch.from_numpy(noised.view(np.int64))


def unmasked(shares: Iterable[Tensor], context: SumContext) -> Tensor:
    """The noised sum of all sites of a roster.

    Parameters
    ----------
    shares : iterable of Tensor
        [d] int64, one of each site in the roster; the sum of fewer is random numbers.
    context : SumContext
        What was asked.

    Returns
    -------
    Tensor
        [d], float64, in the unit of the gradients.

    Raises
    ------
    ReplyError
        If shares are missing, or of another shape.
    NoReplyError
        If the masks did not cancel: the numbers are larger than those of any sum.
    """
    result, count = np.zeros(context.terms.dimension, dtype=np.uint64), 0
    for one in shares:
        if one.shape != (context.terms.dimension,) or one.dtype != torch.int64:
            raise ReplyError(f"a share is int64 [{context.terms.dimension}], not {one.dtype} {tuple(one.shape)}")
        result += one.numpy().view(np.uint64)
        count += 1
    if count != len(context.roster):
        raise ReplyError(f"{count} of {len(context.roster)} shares are there: their sum is random numbers")
    total = torch.from_numpy(result.view(np.int64)).to(torch.float64)
    if bool((total.abs() > context.terms.largest(count)).any()):
        raise NoReplyError("the masks of a sum do not cancel: a site answered another question, or under another key")
    return total * context.terms.grid


def _mask(values: np.ndarray[tuple[int], np.dtype[np.uint64]], key: bytes, *, add: bool) -> None:
    """Add or subtract a key's stream (ChaCha20, RFC 8439) to values in place, modulo 2^64."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    for start in range(0, len(values), _BLOCK // 8):
        part = values[start : start + _BLOCK // 8]
        drawn = np.frombuffer(stream.update(bytes(8 * len(part))), dtype="<u8")
        np.add(part, drawn, out=part) if add else np.subtract(part, drawn, out=part)


def _digest(total: Tensor) -> bytes:
    return hashlib.sha256(total.numpy().tobytes()).digest()
