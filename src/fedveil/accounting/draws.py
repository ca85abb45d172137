"""Draws: the noise of a release in the mechanism's own numbers, from which its cost follows.

A ledger's line holds them beside the promise. So a later reader computes the promise anew
(`fedveil.evidence.recomputed`), and does not have to believe it.
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
    unit : {"client", "record", "person", "parameter vector", "region", "person region"}
        Unit with a bounded contribution.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs.
    moved : float
        Largest change of a sum by one unit: C for a contribution clipped to C that comes or goes, C / n in a mean of n.
        It is twice that if another unit takes its place.
    noise : float
        Standard deviation of each party's noise on a coordinate of the sum.
    steps : int
        Number of sums of this release that one unit may be in.
    rate : float
        q, the probability of a unit to be in each sum.
    parties : int
        Number of parties that add noise to one sum: n of a trusted sum, m of a secure one.
    lost : int
        Number of parties without countable noise: t of a trusted sum, c of a secure one.
    silos_per_person : int
        Most silos at which one person may be; `moved` and `steps` cover all of them.
    slope : float, optional
        Change of the sum per unit of distance by which one client's clipped update moves.

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
