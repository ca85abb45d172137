"""The sites of secure sums in one process: each one's key is known to its own party alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedveil.errors import FieldError
from fedveil.mechanisms import Source
from fedveil.secure import PublicKey, Site, SiteKey


@dataclass(frozen=True, eq=False)
class Sites:
    """Keys of all clients, by partition; none for methods without a secure sum.

    Parameters
    ----------
    keys : sequence of SiteKey
        One a client, or none at all.
    """

    keys: Sequence[SiteKey] = ()

    @classmethod
    def of(cls, given: Sequence[SiteKey], clients: int, source: Source, seed: int) -> Sites:
        """The given keys, or made ones: fresh where the source is deployable, else of the seed, to be drawn again.

        Raises
        ------
        FieldError
            If there is another number of keys than of clients.
        """
        if given and len(given) != clients:
            raise FieldError("keys", len(given), f"must be one for each of the {clients} clients")
        if given or source.deployable:
            return cls(tuple(given) or tuple(SiteKey.new()[0] for _ in range(clients)))
        return cls(tuple(SiteKey(hashlib.sha512(f"site {seed} {p}".encode()).digest()) for p in range(clients)))

    def __bool__(self) -> bool:
        """Whether sums are secure."""
        return bool(self.keys)

    def roster(self, cohort: Iterable[int]) -> list[PublicKey]:
        """Public keys of a cohort."""
        return [self.keys[p].public for p in cohort] if self.keys else []

    def site(self, partition: int) -> Site | None:
        """A client's side of the contract, which pins the keys of all others."""
        if not self.keys:
            return None
        return Site(self.keys[partition], tuple(k.public for i, k in enumerate(self.keys) if i != partition))
