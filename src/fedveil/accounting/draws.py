"""Noise as it was drawn onto a release, in numbers that no accountant has touched: its cost follows from them alone.

A ledger's line holds them beside the promise that was made of them. So whoever reads it later computes the promise
anew (`fedveil.evidence.recomputed`), and takes none on its word.
"""

from dataclasses import dataclass

from fedveil.accounting.events import Relation
from fedveil.accounting.guarantee import Unit
from fedveil.checks import Count, Natural, NonNegative, Parameters, Positive, Rate, SilosOfPerson


@dataclass(frozen=True, kw_only=True)
class Draw(Parameters):
    """Gaussian noise on one or more sums of a release.

    Parameters
    ----------
    unit : {"client", "record", "person", "parameter vector"}
        Whose contribution is bounded.
    relation : {"zero-out", "add/remove", "replace-one"}
        Which inputs are neighbours.
    moved : float
        The most by which one unit changes a sum: C where its contribution is cut to C and comes or goes, C / n in a
        mean of n, twice that where another takes its place.
    noise : float
        Standard deviation that each of the parties adds to a coordinate of the sum.
    steps : int
        Sums of this release that one unit may be in.
    rate : float
        q: a unit is in each with this probability.
    parties : int
        That add noise to one sum: n of a trusted sum, m of a secure one.
    lost : int
        Parties whose noise is not counted on: t, or c.
    silos_per_person : int
        The most silos at which one person may be; `moved` and `steps` are of all of them.
    slope : float, optional
        How far the sum moves per unit of distance that one client's clipped update moves.

    Examples
    --------
    >>> fv.RecordDP(examples=40, noise_multiplier=2.0, clip=0.5, steps=3).spend().draws
    (Draw(unit='record', relation='zero-out', moved=0.5, noise=1.0, steps=3, ...),)
    """

    unit: Unit
    relation: Relation
    moved: Positive
    noise: Positive
    steps: Count = 1
    rate: Rate = 1.0
    parties: Count = 1
    lost: Natural = 0
    silos_per_person: SilosOfPerson = 1
    slope: NonNegative | None = None
