"""Promise of record- and person-level privacy: its parameters, and the numbers computed from them.

`RecordPromise.spend` computes the cost from these parameters alone. The other parameters of `RecordDP` (such as the
divisor of a step) change models, but no epsilon.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fedveil.accounting import (
    Draw,
    Relation,
    Spend,
    SpendFilter,
    StepFilter,
    Trust,
    least_noise,
    of_round,
    step_event,
)
from fedveil.accounting.bounds import GDP, PLD, Bound
from fedveil.accounting.events import FACTOR, Gaussian
from fedveil.accounting.guarantee import (
    APP_LOOP,
    KEYS_ARE_SECRET,
    LIVENESS,
    MARKS_ARE_PUBLIC,
    NO_FAILURE,
    REGIONS,
    SUM_IS_TRUSTED,
    collusion_condition,
    dropout_condition,
    silos_condition,
    size_condition,
)
from fedveil.checks import (
    Clip,
    Count,
    Delta,
    Epsilon,
    Natural,
    NoiseLevel,
    Parameters,
    Rate,
    Rounds,
    SilosOfPerson,
    Steps,
)
from fedveil.errors import FieldError
from fedveil.ranges import require_within
from fedveil.secure import require_honest

OWN = {  # parameters, of either side, that belong to one kind of sum alone
    "trusted": ("silos", "tolerated"),
    "secure": ("least_sites", "colluding", "retries", "units", "lr"),
}
OF_PERSONS = ("person", "person region")  # units that hold all examples of one person
TRUST: dict[str, Trust] = {"none": "local", "trusted": "trusted sum", "secure": "secure sum"}


@dataclass(frozen=True, kw_only=True)
class RecordPromise(Parameters):
    """Parameters of a promise at record or person level, and the numbers computed from them.

    Parameters
    ----------
    unit : {"record", "person", "region", "person region"}
        Unit that is clipped and protected. A region is the marked content of one record, or of all records of one
        person (`fedveil.learning.regions`). Labels, other coordinates and membership are then not protected.
    sum : {"none", "trusted", "secure"}
        Summation of the silos' steps. It determines who is trusted (`fedveil.methods.record`).
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring silos. Under ``"add/remove"`` a silo's size is private, and nothing depends on it; under the others
        it is public. In the neighbouring silo a region is blank (``"zero-out"``) or has other content
        (``"replace-one"``).
    epsilon, delta : float, optional
        Target of the total over `rounds`; z is computed as the least noise that meets it.
    noise_multiplier : float, optional
        z, in place of `epsilon`: the noise on a step's sum has deviation z * C.
    clip : float
        C, the clipping norm of the gradient of one example, or of one person.
    rate : float
        Poisson sampling rate of a step: the probability that an example takes part; 1 is the full batch.
    steps : int
        Noisy steps of a silo in a round.
    rounds : int, optional
        Planned number of rounds; needed with `epsilon`. A broadcast beyond them is declined.
    silos_per_person : int
        Largest number of silos that may hold data of one person. The noise is raised so that the promise covers all of
        them together.
    most : int, optional
        Under ``"add/remove"``: most examples (persons) that a silo may have, a condition of the promise. A full batch
        always has this many places, and each takes time. By default twice the planned number.
    silos : int
        With ``sum="trusted"``, required: n, the number of silos in every sum.
    tolerated : int
        With ``sum="trusted"``: t, the total number of silos that may drop out, lie about their noise, or pool what they
        know. It is at least 1, because every silo knows its own share.
    least_sites : int
        With ``sum="secure"``, required: m, the smallest roster that a site answers, at least 3. If a site drops out, at
        least m must remain, and each of them pays one more release.
    colluding : int
        With ``sum="secure"``: c, the number of sites that may pool what they know with the server, or leave out their
        noise. The other m - c add enough noise.
    retries : int
        With ``sum="secure"``: planned number of sums to repeat because a site dropped out.
    loop : {"trainer", "app"}
        Code that takes the noised steps: FedVeil's trainer, or an app's own loop and optimiser
        (`fedveil.learning.AppLoop`). With an app's loop the promise gets a condition.

    Raises
    ------
    FieldError
        For a value out of range, for both or neither of `noise_multiplier` and `epsilon`, or for an epsilon that no
        noise reaches.
    """

    unit: Literal["record", "person", "region", "person region"] = "record"
    sum: Literal["none", "trusted", "secure"] = "none"
    relation: Relation = "zero-out"
    epsilon: Epsilon | None = None
    delta: Delta = 1e-5
    noise_multiplier: NoiseLevel | None = None
    clip: Clip = 1.0
    rate: Rate = 1.0
    steps: Steps = 1
    rounds: Rounds | None = None
    silos_per_person: SilosOfPerson = 1
    most: Count | None = None
    silos: Natural = 0
    tolerated: Count = 1
    least_sites: Natural = 0
    colluding: Count = 1
    retries: Natural = 0
    loop: Literal["trainer", "app"] = "trainer"

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                require_own_sum(self.sum, field.name, value)
        self._check_persons()
        if self.unit in REGIONS:
            self._check_regions()
        self._check_noise()
        self._check_sum()

    def _check_persons(self) -> None:
        if self.silos_per_person > 1 and self.unit != "person":
            raise FieldError("silos_per_person", self.silos_per_person, 'goes with unit = "person"')
        if self.together > 1 and self.rate < 1:
            accepted = "cannot be above 1 in a sum of sampled steps: set rate to 1, or sum nothing"
            raise FieldError("silos_per_person", self.silos_per_person, accepted)

    def _check_regions(self) -> None:
        if self.relation == "add/remove":
            accepted = 'cannot be used with regions, whose records exist in both data sets; set "zero-out" or "replace-one"'
            raise FieldError("relation", self.relation, accepted)
        if self.sum != "none":
            accepted = 'must be "none" for regions: the part without noise has no place in a sum'
            raise FieldError("sum", self.sum, accepted)
        if self.loop != "trainer":
            accepted = 'must be "trainer" for regions: an app\'s loop has no blanked examples'
            raise FieldError("loop", self.loop, accepted)

    def _check_noise(self) -> None:
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise FieldError(
                "noise_multiplier", self.noise_multiplier, "give either noise_multiplier or epsilon"
            )
        if self.epsilon is not None and self.rounds is None:
            raise FieldError(
                "rounds",
                None,
                "it is needed with epsilon, which is the total over the rounds planned",
            )
        if self.most is not None and self.relation != "add/remove":
            raise FieldError(
                "most",
                self.most,
                'goes with relation = "add/remove": sizes are public under the others',
            )
        step_event(self.multiplier, self.rate)
        require_within(
            "sigma", "noise_multiplier * clip", self.multiplier * self.together * self.clip
        )

    def _check_sum(self) -> None:
        if self.sum != "none" and self.loop == "app":
            accepted = (
                'goes with sum = "none": a share of a sum is one step of plain SGD, by the trainer'
            )
            raise FieldError("loop", self.loop, accepted)
        if self.sum != "none" and self.steps != 1:
            accepted = 'must be 1: every noisy step is summed before the next; or set sum = "none"'
            raise FieldError("steps", self.steps, accepted)
        if self.sum == "trusted" and self.silos < 2:
            raise FieldError(
                "silos", self.silos, 'a sum needs at least 2 silos; a single one has sum = "none"'
            )
        if self.sum == "trusted" and self.tolerated >= self.silos:
            raise FieldError(
                "tolerated",
                self.tolerated,
                f"must leave one of the {self.silos} silos to add noise",
            )
        if self.sum == "secure":
            require_honest(self.least_sites, self.colluding)

    @property
    def trust(self) -> Trust:
        """Trust model, determined by `sum`."""
        return TRUST[self.sum]

    @property
    def counted(self) -> str:
        """Plural of the unit, for conditions."""
        return "people" if self.unit in OF_PERSONS else "examples"

    @property
    def together(self) -> int:
        """Number of shares in one sum to which one unit may contribute; their contributions add up."""
        return 1 if self.sum == "none" else self.silos_per_person

    @property
    def sums(self) -> int:
        """Number of releases in a whole run, with the planned repeats."""
        return (self.rounds or 0) + self.retries

    @property
    def counts(self) -> int:
        """Number of noisy steps in a round to which one unit may contribute; the shares of one sum count once."""
        return self.steps * self.silos_per_person // self.together

    @property
    def multiplier(self) -> float:
        """Noise multiplier of the promise: the noise's deviation divided by one unit's largest contribution to a sum."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier / self.together
        count = self.sums * self.counts
        return least_noise(
            self.epsilon or 0.0, self.delta, count, rate=self.rate, relation=self.relation
        )

    @property
    def adding(self) -> int:
        """Number of silos whose noise together makes up the promised noise."""
        if self.sum == "trusted":
            return self.silos - self.tolerated
        if self.sum == "secure":
            return self.least_sites - self.colluding
        return 1

    @property
    def deviation(self) -> float:
        """Deviation of the noise that one silo adds to the sum of a step."""
        in_units_of_clip = self.multiplier * self.together / math.sqrt(self.adding)
        return in_units_of_clip * self.clip

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions of the promise that come from the sum."""
        if self.sum == "trusted":
            return SUM_IS_TRUSTED, dropout_condition(self.silos, self.tolerated)
        if self.sum == "secure":
            return KEYS_ARE_SECRET, collusion_condition(self.colluding, self.least_sites)
        return ()

    def spend(self) -> Spend:
        """Return the cost of a round, with its promise.

        Raises
        ------
        FieldError
            Under ``"add/remove"`` without `most`, which is a condition of the promise.
        """
        private_size = self.relation == "add/remove"
        if private_size and self.most is None:
            raise FieldError(
                "most",
                None,
                'it is needed with relation = "add/remove": the most that a silo may have',
            )
        event = step_event(self.multiplier, self.rate)
        bound: Bound = PLD(((event, self.counts),))
        if isinstance(event, Gaussian):
            bound = GDP(FACTOR[self.relation] * math.sqrt(self.counts) / self.multiplier)
        conditions = list(self.conditions)
        if self.unit in OF_PERSONS:
            conditions.append(silos_condition(self.silos_per_person))
        if self.unit in REGIONS:
            conditions.append(MARKS_ARE_PUBLIC)
        if self.most is not None:
            conditions.append(size_condition(self.most, self.counted))
        conditions += [LIVENESS, NO_FAILURE]
        if self.loop == "app":
            conditions.append(APP_LOOP)
        promise = of_round(bound, self.trust, self.relation, *conditions)
        promise = replace(promise, unit=self.unit, public_size=not private_size)
        promise = replace(promise, silos_per_person=self.silos_per_person)
        moved = FACTOR[self.relation] * self.clip
        drawn = (self._draw(),)
        return Spend(
            guarantee=promise,
            mechanism="gaussian",
            scale=(self.deviation,),
            sensitivity=moved,
            draws=drawn,
        )

    def _draw(self) -> Draw:
        """Return the numbers of a silo's noise for the ledger."""
        parties = {
            "none": (1, 0),
            "trusted": (self.silos, self.tolerated),
            "secure": (self.least_sites, self.colluding),
        }
        adding, lost = parties[self.sum]
        return Draw(
            unit=self.unit,
            relation=self.relation,
            moved=FACTOR[self.relation] * self.clip * self.together,
            noise=self.deviation,
            steps=self.counts,
            rate=self.rate,
            parties=adding,
            lost=lost,
            silos_per_person=self.silos_per_person,
        )

    def budget(self) -> StepFilter | None:
        """Return a filter that limits a silo to the planned steps; None without a plan."""
        if self.rounds is None:
            return None
        event = step_event(self.multiplier, self.rate)
        return StepFilter(event, self.sums * self.counts)

    def within(self, epsilon: float, delta: float) -> StepFilter:
        """Return a filter that limits a silo to the total (epsilon, delta)."""
        return StepFilter.within(
            step_event(self.multiplier, self.rate), epsilon, delta, self.relation
        )

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """Return filters on the planned steps and on the total."""
        filters: list[SpendFilter] = []
        planned = self.budget()
        if planned is not None:
            filters.append(planned)
        if epsilon is not None:
            filters.append(self.within(epsilon, delta))
        return filters


def fitting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the parameters that belong to another `sum` than the one in `values`."""
    kept = dict(values)
    for sum_, own in OWN.items():
        if sum_ != values.get("sum", "none"):
            for name in own:
                kept.pop(name, None)
    return kept


def require_own_sum(sum_: str, name: str, value: Any) -> None:
    """Refuse a parameter that belongs to another `sum` than `sum_`."""
    for other, own in OWN.items():
        if other != sum_ and name in own:
            raise FieldError(name, value, f'goes with sum = "{other}"')
