"""Secure sum, for which nobody has to be trusted: keys, terms and masked shares."""

from fedveil.secure.keys import PublicKey as PublicKey
from fedveil.secure.keys import SiteKey as SiteKey
from fedveil.secure.keys import fingerprint as fingerprint
from fedveil.secure.keys import public_key as public_key
from fedveil.secure.keys import roster as roster
from fedveil.secure.shares import FEWEST as FEWEST
from fedveil.secure.shares import Site as Site
from fedveil.secure.shares import SumContext as SumContext
from fedveil.secure.shares import SumTerms as SumTerms
from fedveil.secure.shares import on_grid as on_grid
from fedveil.secure.shares import require_honest as require_honest
from fedveil.secure.shares import share as share
from fedveil.secure.shares import unmasked as unmasked
