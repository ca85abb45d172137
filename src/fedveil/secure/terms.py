"""What all sites of a secure sum agree on, what its noise promises, and what a site insists on whatever is asked.

Notation: m sites at least in a roster, c of them (with the server) may pool all they know, so that m - c shares of
noise count. A share is discrete Gaussian of deviation s in steps of the grid g; the sum of k such shares is, up to
`residual`, the rounding of a continuous Gaussian of variance k s^2 - eta^2 (Peikert 2010; docs/secure-sum.md has the
proof). The grid is chosen so that this is z C exactly: the release is a Gaussian one of multiplier z, and everything
that is known of those holds.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedveil.accounting.events import Relation
from fedveil.checks import Count, Natural, NoiseMultiplier, Parameters, Positive, Share
from fedveil.clipping import require_bound
from fedveil.errors import FieldError, require_count
from fedveil.mechanisms import WideGaussianNoise
from fedveil.secure.keys import PublicKey, SiteKey, public_key, roster

VERSION = 1
FEWEST = 3  # two sites: each knows the other's share from the sum and its own
MOST = 1000
ETA = 2.0  # of the randomised rounding that turns a continuous Gaussian into a discrete one
_HALF = 1 << 63
_DEVIATIONS = 64  # of a share's noise: beyond it lies e^-2048


@dataclass(frozen=True, kw_only=True)
class SumTerms(Parameters):
    """The terms of a secure sum, all of them public and the same at every site.

    Parameters
    ----------
    unit : str
        Whose contribution is clipped: "record" or "person".
    relation : {"zero-out", "add/remove", "replace-one"}
        Which data are neighbours.
    clip : float
        C: the longest contribution of one unit.
    noise_multiplier : float
        z: the noise that counts has deviation z C.
    denominator : float
        What the server divides the sum of one site by: a planned number of units, times the sampling rate.
    rate : float
        Poisson sampling rate of a step; 1 takes everybody.
    units : int
        A public number of units that no site exceeds, so that sums do not overflow.
    dimension : int
        Numbers in a sum, d.
    least_sites : int
        m: sites in the smallest roster that a site answers; at least 3.
    colluding : int
        c: sites that may pool what they know with the server, or leave out their noise; at least 1, at most m - 2.
    silos_per_person : int
        Of how many sites' data one person may be a part: what a sum costs her grows with it.

    Raises
    ------
    FieldError
        For a value out of range, or a sum that could overflow.
    """

    unit: Literal["record", "person"]
    relation: Relation
    clip: float
    noise_multiplier: NoiseMultiplier
    denominator: Positive
    rate: Share
    units: Count
    dimension: Count
    least_sites: Count
    colluding: Count = 1
    silos_per_person: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bound("clip", self.clip)
        if not FEWEST <= self.least_sites <= MOST:
            raise FieldError("least_sites", self.least_sites, f"must be {FEWEST} to {MOST}")
        if self.colluding > self.least_sites - 2:
            accepted = f"must leave two honest sites of the least {self.least_sites}: lower it, or raise least_sites"
            raise FieldError("colluding", self.colluding, accepted)
        if not math.isfinite(1 / self.grid) or self.largest(MOST) >= _HALF:
            accepted = f"gives a grid of {self.grid:.3g} on which sums of {self.units} units overflow: raise it"
            raise FieldError("noise_multiplier", self.noise_multiplier, accepted)

    @property
    def text(self) -> str:
        """All of them, for a site to compare with its own."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def noise(self) -> WideGaussianNoise:
        """What each site adds, in steps of the grid."""
        return WideGaussianNoise()

    @property
    def grid(self) -> float:
        """g: one step, in the unit of the gradients. (m - c) s^2 - eta^2 steps^2 of variance are (z C)^2."""
        variance = (self.least_sites - self.colluding) * self.noise.sigma**2 - ETA**2
        return self.noise_multiplier * self.clip / math.sqrt(variance)

    def largest(self, sites: int) -> float:
        """What no sum of so many sites exceeds, in steps, but with a probability below e^-2000 a number."""
        return sites * (self.units * self.clip / self.grid + _DEVIATIONS * self.noise.sigma)

    def residual(self, releases: int = 1) -> float:
        """What the discrete sums add to epsilon over so many releases, beside that of Gaussian releases.

        2 d T (tau_1 + tau_2): tau_1 for the sum of shares (Kairouz, Liu and Steinke 2021, arXiv 2102.06387), tau_2 for
        discrete noise as rounded continuous noise; the two levels of a draw are within tau_1.
        """
        e = 2 * math.exp(-2 * math.pi**2 * ETA**2)
        shares = 10 * MOST * math.exp(-(math.pi**2) * self.noise.smoothness**2)
        return 2.0 * self.dimension * require_count("releases", releases) * (math.log1p(2 * e / (1 - e)) + shares)


@dataclass(frozen=True, kw_only=True)
class SumContext(Parameters):
    """One question to the sites: whoever is asked another one draws other masks.

    Parameters
    ----------
    run : str
        Names the run.
    round, attempt : int
        Which sum, from 1; and which try at it, from 0.
    roster : tuple of bytes
        Public keys of all sites in the sum, ascending.
    broadcast : str
        Digest of the model and facts that the sites received.
    layout : str
        Digest of the names and shapes of what is summed.
    terms : SumTerms
        See there.
    """

    run: str
    round: Count
    attempt: Natural
    roster: tuple[PublicKey, ...]
    broadcast: str
    layout: str
    terms: SumTerms

    def __post_init__(self) -> None:
        """Check all that needs no key."""
        super().__post_init__()
        object.__setattr__(self, "roster", roster(self.roster))
        least = self.terms.least_sites
        if not least <= len(self.roster) <= MOST:
            raise FieldError("roster", len(self.roster), f"must have {least} to {MOST} sites")

    @property
    def digest(self) -> bytes:
        """32 bytes that differ wherever anything in the question does."""
        values: dict[str, Any] = {**vars(self), "version": VERSION, "grid": self.terms.grid}
        values["roster"], values["terms"] = [key.hex() for key in self.roster], asdict(self.terms)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=_refuse)
        return hashlib.sha256(text.encode()).digest()

    def require(self, own: PublicKey, peers: tuple[PublicKey, ...]) -> None:
        """Refuse, before data are touched, a sum in which a site takes no part.

        Parameters
        ----------
        own : bytes
            The site's public key.
        peers : tuple of bytes
            The other sites' keys, as its policy pins them.

        Raises
        ------
        FieldError
            If the site is not in the roster, or somebody is whose key is not pinned.
        """
        if own not in self.roster:
            raise FieldError("roster", len(self.roster), "does not hold this site: its share would unmask nothing")
        for key in self.roster:
            if key != own and key not in peers:
                accepted = "is not pinned in this site's policy: add it to `peers` if the contract names it"
                raise FieldError("roster", public_key(key).hex(), accepted)


def _refuse(value: object) -> Any:
    raise FieldError("context", type(value).__name__, "must be plain values")


@dataclass(frozen=True, eq=False)
class Site:
    """One site's side of the contract.

    Parameters
    ----------
    key : SiteKey
        Its own.
    peers : tuple of bytes
        Public keys of the others, pinned when the contract was signed; no server adds one.
    least_sites : int
        The smallest roster that it answers, whatever the method says.
    colluding : int
        The fewest sites that the noise has to allow for.
    attempts : int
        The most contexts of one round that it answers; each costs a full release.
    silos_per_person : int
        The most sites at which one person may have records, where the unit is a person; a method that allows for fewer
        is refused.
    """

    key: SiteKey
    peers: tuple[PublicKey, ...]
    least_sites: int = FEWEST
    colluding: int = 1
    attempts: int = 3
    silos_per_person: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "peers", roster(self.peers, "peers"))
        if self.key.public in self.peers:
            raise FieldError("peers", self.key.public.hex(), "is this site's own key: name the others alone")
        for name, least in (("least_sites", FEWEST), ("colluding", 1), ("attempts", 1), ("silos_per_person", 1)):
            require_count(name, getattr(self, name), least=least)
        named = len(self.peers) + 1
        for name, most in (("least_sites", named), ("colluding", named - 2), ("silos_per_person", named)):
            if getattr(self, name) > most:
                accepted = f"must be at most {most}: with this site the contract names {named}"
                raise FieldError(name, getattr(self, name), accepted)

    def require(self, context: SumContext) -> None:
        """Refuse, before data are touched, a sum that is not the contract's.

        Raises
        ------
        FieldError
            Naming what differs.
        """
        terms = context.terms
        if terms.least_sites < self.least_sites:
            raise FieldError("least_sites", terms.least_sites, f"must be at least the {self.least_sites} of this site")
        if terms.colluding < self.colluding:
            raise FieldError("colluding", terms.colluding, f"must be at least the {self.colluding} of this site")
        if terms.unit == "person" and terms.silos_per_person < self.silos_per_person:
            accepted = f"must be at least the {self.silos_per_person} of this site"
            raise FieldError("silos_per_person", terms.silos_per_person, accepted)
        context.require(self.key.public, self.peers)
