"""Shares of a secure sum: the sites' common parameters, one site's contract, and the masked integers.

One share is a vector of uniformly random integers; all shares together are the noised sum. Each pair of sites draws one
mask from a key that both can compute. One adds it, the other subtracts it (Bonawitz et al. 2017). Their secret sharing
is not used: if a site is missing, the sum is random, and the round is repeated.

Notation: a roster has at least m sites. Of these, c (with the server) may pool all they know, so m - c shares of noise
count. A share has discrete Gaussian noise of deviation s in steps of the grid g. Up to `residual`, the sum of k such
shares is the rounding of a continuous Gaussian of variance k s^2 - eta^2 (Peikert 2010; proof: docs/secure-sum.md). The
grid is chosen so that this deviation is exactly z C. So the release is a Gaussian one with multiplier z.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedveil.accounting import SumPolicy
from fedveil.accounting.events import Relation
from fedveil.checks import (
    Clip,
    Count,
    Natural,
    NoiseLevel,
    Parameters,
    Positive,
    Rate,
    SilosOfPerson,
)
from fedveil.errors import FieldError, NoReplyError, ReplyError, kind_of, require_count
from fedveil.mechanisms import WideGaussianNoise
from fedveil.ranges import require_within
from fedveil.secure.keys import PublicKey, SiteKey, roster

VERSION = 2
FEWEST = 3  # of two sites, each could subtract its own share from the sum
MOST = 1000
ETA = 2.0  # deviation of the randomised rounding between a continuous and a discrete Gaussian
_HALF = 1 << 63
_DEVIATIONS = 64  # bound on a share's noise in deviations; e^-2048 lies beyond
_NONCE = bytes(16)  # constant, since each key is used for one mask
_BLOCK = 1 << 20  # bytes of keystream at a time


def require_honest(least_sites: int, colluding: int) -> None:
    """Refuse a least number of sites that is out of range, or leaves fewer than two honest sites."""
    if not FEWEST <= least_sites <= MOST:
        raise FieldError("least_sites", least_sites, f"must be {FEWEST} to {MOST}")
    if colluding > least_sites - 2:
        accepted = f"must leave two honest sites of the least {least_sites}: lower it, or raise least_sites"
        raise FieldError("colluding", colluding, accepted)


@dataclass(frozen=True, kw_only=True)
class SumTerms(Parameters):
    """Parameters of a secure sum; all are public and the same at every site.

    Parameters
    ----------
    unit : {"record", "person"}
        Unit that is clipped.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring data.
    clip : float
        C, the largest norm of one unit's contribution.
    noise_multiplier : float
        z: the noise of the honest sites has deviation z C.
    denominator : float
        Divisor of one site's sum: a planned number of units, times the sampling rate.
    rate : float
        Poisson sampling rate of a step; 1 takes everybody.
    units : int
        Public upper limit on a site's number of units, so that sums do not overflow.
    dimension : int
        d, the number of coordinates in a sum.
    least_sites : int
        m, least number of sites in a roster; at least 3.
    colluding : int
        c, the number of sites that may pool what they know with the server, or leave out their noise; from 1 to m - 2.
    silos_per_person : int
        Most sites with data of one person; a larger number raises the cost for a person.

    Raises
    ------
    FieldError
        For a value out of range, or a sum that could overflow.
    """

    noise: ClassVar[WideGaussianNoise] = (
        WideGaussianNoise()
    )  # noise of each site, in steps of the grid

    unit: Literal["record", "person"]
    relation: Relation
    clip: Clip
    noise_multiplier: NoiseLevel
    denominator: Positive
    rate: Rate
    units: Count
    dimension: Count
    least_sites: Count
    colluding: Count = 1
    silos_per_person: SilosOfPerson = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_honest(self.least_sites, self.colluding)
        require_within("grid", "noise_multiplier * clip (the grid)", self.grid)
        if self.largest(MOST) >= _HALF:
            accepted = f"gives a grid of {self.grid:.3g} on which sums of {self.units} units overflow: raise it"
            raise FieldError("noise_multiplier", self.noise_multiplier, accepted)

    @property
    def text(self) -> str:
        """All parameters as text, which a site compares with its own."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def grid(self) -> float:
        """Grid g in the units of the gradients, chosen so that (m - c) s^2 - eta^2 steps^2 is a variance of (z C)^2."""
        variance = (self.least_sites - self.colluding) * self.noise.sigma**2 - ETA**2
        return self.noise_multiplier * self.clip / math.sqrt(variance)

    def largest(self, sites: int) -> float:
        """Return a bound on a sum over `sites`, in grid steps; a coordinate exceeds it with probability below e^-2000."""
        return sites * (self.units * self.clip / self.grid + _DEVIATIONS * self.noise.sigma)

    def residual(self, releases: int = 1) -> float:
        """Return a bound on the epsilon that discrete sums add to Gaussian ones, over all `releases`.

        It is 2 d T (tau_1 + tau_2) for T releases. tau_1 is for the sum of shares (Kairouz, Liu and Steinke 2021, arXiv
        2102.06387), including the two levels of a draw. tau_2 is for discrete noise in place of rounded continuous
        noise.
        """
        e = 2 * math.exp(-2 * math.pi**2 * ETA**2)
        shares = 10 * MOST * math.exp(-(math.pi**2) * self.noise.smoothness**2)
        rounding = math.log1p(2 * e / (1 - e))
        return 2.0 * self.dimension * require_count("releases", releases) * (rounding + shares)


@dataclass(frozen=True, kw_only=True)
class SumContext(Parameters):
    """Question of a secure sum to the sites; each question has its own masks.

    Parameters
    ----------
    run : str
        Name of the run.
    round, attempt : int
        Number of the sum, from 1, and of the attempt at it, from 0.
    roster : tuple of bytes
        Public keys of all sites in the sum, ascending.
    broadcast : str
        Digest of the model and facts that the sites received.
    layout : str
        Digest of the names and shapes of the summed arrays.
    terms : SumTerms
        Terms of the sum.
    """

    run: str
    round: Count
    attempt: Natural
    roster: tuple[PublicKey, ...]
    broadcast: str
    layout: str
    terms: SumTerms

    def __post_init__(self) -> None:
        """Sort the roster, and check its size."""
        super().__post_init__()
        object.__setattr__(self, "roster", roster(self.roster))
        least = self.terms.least_sites
        if not least <= len(self.roster) <= MOST:
            raise FieldError("roster", len(self.roster), f"must have {least} to {MOST} sites")

    @cached_property
    def digest(self) -> bytes:
        """Digest of the whole question, 32 bytes."""
        values: dict[str, Any] = {**vars(self), "version": VERSION, "grid": self.terms.grid}
        values["roster"] = [key.hex() for key in self.roster]
        values["terms"] = asdict(self.terms)
        text = json.dumps(
            values,
            sort_keys=True,
            separators=(",", ":"),
            default=_refuse,
        )
        return hashlib.sha256(text.encode()).digest()

    def require(self, own: PublicKey, peers: tuple[PublicKey, ...]) -> None:
        """Refuse a sum that a site must not answer, before data are touched.

        Parameters
        ----------
        own : bytes
            Public key of the site.
        peers : tuple of bytes
            Public keys of the other sites in the site's policy.

        Raises
        ------
        FieldError
            If the site is not in the roster, or the roster has a key that the policy does not list.
        """
        if own not in self.roster:
            raise FieldError(
                "roster",
                len(self.roster),
                "does not hold this site: its share would unmask nothing",
            )
        for key in self.roster:
            if key != own and key not in peers:
                accepted = "is not pinned in this site's policy: add it to `peers` if the contract names it"
                raise FieldError("roster", key.hex(), accepted)


def _refuse(value: object) -> Any:
    raise FieldError("context", kind_of(value), "must be plain values")


@dataclass(frozen=True, eq=False)
class Site:
    """One site's key and contract for secure sums.

    Parameters
    ----------
    key : SiteKey
        Key of the site.
    contract : SumPolicy
        Public keys of the other sites, and the terms on which the site takes part. No server can add a key, and no
        method can weaken the terms.

    Attributes
    ----------
    peers : tuple of bytes
        Public keys of the other sites.

    Raises
    ------
    FieldError
        If one of them is no key, or the site's own.
    """

    key: SiteKey
    contract: SumPolicy
    peers: tuple[PublicKey, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "peers", roster(self.contract.peers, "peers"))
        if self.key.public in self.peers:
            raise FieldError(
                "peers", self.key.public.hex(), "is this site's own key: name the others alone"
            )

    def require(self, context: SumContext) -> None:
        """Refuse a sum that breaks the contract, before data are touched.

        Raises
        ------
        FieldError
            If it breaks the contract; the text names the first broken term.
        """
        terms, own = context.terms, self.contract
        for name in ("least_sites", "colluding", "silos_per_person"):
            given, least = getattr(terms, name), getattr(own, name)
            concerned = (
                name != "silos_per_person" or terms.unit == "person"
            )  # a record is at one site
            if given < least and concerned:
                raise FieldError(name, given, f"must be at least the {least} of this site")
        context.require(self.key.public, self.peers)


def on_grid(rows: Tensor, grid: float) -> Tensor:
    """Convert clipped contributions [n, d] to grid steps (int64), rounded towards zero so that none becomes longer.

    Nothing is refused, because a refusal would depend on the data: a number that is not finite counts as 0.
    """
    steps = torch.nan_to_num(
        rows.to(torch.float64) / grid,
        nan=0.0,
        posinf=0.0,
        neginf=0.0,
    )
    return steps.trunc_().to(torch.int64)


def share(
    total: Tensor,
    key: SiteKey,
    context: SumContext,
    peers: tuple[PublicKey, ...],
) -> Tensor:
    """Make one site's share: its sum, its noise and its masks, modulo 2^64.

    The site's ledger must ensure that a question is answered for one sum only. Two sums under one question would have
    the *same* masks, and only this site's noise would protect their difference.

    Parameters
    ----------
    total : Tensor
        [d] int64, sum of contributions on the grid (`on_grid`).
    key : SiteKey
        Key of the site.
    context : SumContext
        Question to the site.
    peers : tuple of bytes
        Public keys of the other sites in the site's policy.

    Returns
    -------
    Tensor
        [d] int64. Another question gives new noise and new masks. The same question and sum give the same bits.

    Raises
    ------
    FieldError
        If the site must not answer the question; this does not depend on the sum's values.
    """
    context.require(key.public, peers)
    if total.shape != (context.terms.dimension,) or total.dtype != torch.int64:
        raise FieldError(
            "total",
            f"{total.dtype} {tuple(total.shape)}",
            f"must be int64 [{context.terms.dimension}]",
        )
    mark = int.from_bytes(_digest(total), "big")  # other data under the same question: other noise
    source = key.source(context.digest).child("noise", mark)
    noise = context.terms.noise.sample(len(total), source=source)
    noised = (total + noise).numpy().view(np.uint64).copy()
    for peer in context.roster:
        if peer != key.public:
            _mask(noised, key.pair_key(peer, b"mask" + context.digest), add=key.public < peer)
    return torch.from_numpy(noised.view(np.int64))


def unmasked(shares: Iterable[Tensor], context: SumContext) -> Tensor:
    """Add up the shares of all sites of a roster to the noised sum.

    Parameters
    ----------
    shares : iterable of Tensor
        [d] int64, one share of each site in the roster; the sum of fewer is random.
    context : SumContext
        Question to the sites.

    Returns
    -------
    Tensor
        [d], float64, in the units of the gradients.

    Raises
    ------
    ReplyError
        If shares are missing, or of another shape.
    NoReplyError
        If the masks did not cancel: the numbers are larger than any sum's.
    """
    result = np.zeros(context.terms.dimension, dtype=np.uint64)
    count = 0
    for one in shares:
        if one.shape != (context.terms.dimension,) or one.dtype != torch.int64:
            raise ReplyError(
                f"a share is int64 [{context.terms.dimension}], not {one.dtype} {tuple(one.shape)}"
            )
        result += one.numpy().view(np.uint64)
        count += 1
    if count != len(context.roster):
        raise ReplyError(
            f"{count} of {len(context.roster)} shares are there: their sum is random numbers"
        )
    total = torch.from_numpy(result.view(np.int64)).to(torch.float64)
    if bool((total.abs() > context.terms.largest(count)).any()):
        raise NoReplyError(
            "the masks of a sum do not cancel: a site answered another question, or under another key"
        )
    return total * context.terms.grid


def _mask(values: np.ndarray[tuple[int], np.dtype[np.uint64]], key: bytes, *, add: bool) -> None:
    """Add or subtract a key's stream (ChaCha20, RFC 8439) to values in place, modulo 2^64."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    for start in range(0, len(values), _BLOCK // 8):
        part = values[start : start + _BLOCK // 8]
        drawn = np.frombuffer(stream.update(bytes(8 * len(part))), dtype="<u8")
        combine = np.add if add else np.subtract
        combine(part, drawn, out=part)


def _digest(total: Tensor) -> bytes:
    return hashlib.sha256(total.numpy().tobytes()).digest()
