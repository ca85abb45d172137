"""On what terms a node takes part in secure sums: the part of a policy that a study's contract says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedveil.accounting.admission import names_of
from fedveil.errors import FieldError, require_count


@dataclass(frozen=True, kw_only=True)
class SumPolicy:
    """On what terms a site takes part in secure sums; what the contract of a study says.

    Parameters
    ----------
    peers : sequence of str
        Public keys of the other sites, 64 hexadecimal digits each, as `fedveil keys show` prints them. No server adds
        one.
    least_sites : int
        The smallest roster that is answered, whatever the method says; at least 3.
    colluding : int
        The fewest sites that the noise has to allow for.
    attempts : int
        The most questions of one round that are answered; each costs a full release.
    """

    peers: Sequence[str] = ()
    least_sites: int = 3
    colluding: int = 1
    attempts: int = 3

    def __post_init__(self) -> None:
        for key in (peers := names_of("peers", self.peers)):
            if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
                raise FieldError("peers", key, "must be public keys of 64 hexadecimal digits (fedveil keys show)")
        if len(set(peers)) < 2 or len(set(peers)) != len(peers):
            raise FieldError("peers", len(peers), "must be at least 2 other sites, each once: two alone have no sum")
        object.__setattr__(self, "peers", peers)
        for name, least in (("least_sites", 3), ("colluding", 1), ("attempts", 1)):
            if type(getattr(self, name)) is not int:
                raise FieldError(name, getattr(self, name), "must be a whole number")
            require_count(name, getattr(self, name), least=least)
