"""A site of a secure sum: its key, and what it insists on whatever a server asks."""

from dataclasses import dataclass

from fedveil.errors import FieldError, require_count
from fedveil.secure.keys import PublicKey, SiteKey, roster
from fedveil.secure.terms import FEWEST, SumContext


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
