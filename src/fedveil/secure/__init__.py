"""A sum that nobody has to be trusted with: keys, terms and shares of the secure sum."""

from fedveil.secure.keys import PublicKey, SiteKey, fingerprint, public_key, roster
from fedveil.secure.shares import on_grid, share, unmasked
from fedveil.secure.site import Site
from fedveil.secure.terms import FEWEST, SumContext, SumTerms

__all__ = [
    "FEWEST",
    "PublicKey",
    "Site",
    "SiteKey",
    "SumContext",
    "SumTerms",
    "fingerprint",
    "on_grid",
    "public_key",
    "roster",
    "share",
    "unmasked",
]
