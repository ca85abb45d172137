"""Spend: what one release cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from fedveil.accounting.guarantee import Guarantee, unprotected


@dataclass(frozen=True, kw_only=True)
class Spend:
    """The cost of one party's releases of one round.

    Parameters
    ----------
    guarantee : Guarantee
        What that round's release promises by itself.
    mechanism : str
        ``"gaussian"``, ``"discrete gaussian"``, ``"euclidean-laplace"`` or ``"none"``.
    scale : tuple of float
        The noise's scale: standard deviation per coordinate (one entry, or one a layer); epsilon per unit of distance
        for Euclidean Laplace. Empty without noise.
    sensitivity : float, optional
        Euclidean sensitivity that the guarantee rests on.
    charge : float, optional
        Mu of this very round where it followed earlier releases: what a filter charges. The guarantee then holds the
        public worst case, since a sum of such charges is a random number and no promise.
    leakage : float, optional
        Heuristic neighbourhood leakage n / nu of this participation (group privacy as printed): no guarantee, but it
        is public, adds up, and can be capped.
    """

    guarantee: Guarantee
    mechanism: str = "none"
    scale: tuple[float, ...] = ()
    sensitivity: float | None = None
    charge: float | None = None
    leakage: float | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Spend:
        """From plain values, as a ledger's line has them."""
        guarantee = Guarantee.from_dict(values["guarantee"])
        return cls(**{**values, "guarantee": guarantee, "scale": tuple(values["scale"])})


@cache
def nothing(trust: str = "central") -> Spend:
    """The spend of a release without noise, or of a declared identity."""
    return Spend(guarantee=unprotected("local" if trust == "local" else "central"))
