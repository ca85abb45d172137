"""Draws: the numbers of a release's noise from which its cost follows, such as deviation, sensitivity and steps.

A ledger's line holds them together with the promise. So a reader can compute the promise again
(`fedveil.evidence.recomputed`) and need not believe it.
"""

from dataclasses import dataclass

from fedveil.accounting.events import Relation
from fedveil.accounting.guarantee import Unit
from fedveil.checks import Count, Natural, NonNegative, Parameters, Positive, Rate, SilosOfPerson


@dataclass(frozen=True, kw_only=True)
class Draw(Parameters):
    """Gaussian noise on the sums of a release, as recorded in a ledger.

    Parameters
    ----------
    unit : {"client", "record", "person", "parameter vector", "region", "person region"}
        Unit with a bounded contribution.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs.
    moved : float
        Largest change of a sum by one unit. If a contribution clipped to C comes or goes, this is C, or C / n in a mean
        of n. If another unit replaces it, it is twice that.
    noise : float
        Standard deviation of each party's noise on a coordinate of the sum.
    steps : int
        Number of sums of this release to which one unit may contribute.
    rate : float
        q: probability with which a unit is sampled into a sum.
    parties : int
        Number of parties that add noise to one sum: n of a trusted sum, m of a secure one.
    lost : int
        Number of parties whose noise does not count: t of a trusted sum, c of a secure one.
    silos_per_person : int
        Largest number of silos at which one person may have records; `moved` and `steps` cover all of them.
    slope : float, optional
        Change of the sum for each unit of Euclidean distance by which a client's clipped update moves.

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
