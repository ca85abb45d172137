"""What record- and person-level privacy promises: the parameters that a promise depends on, and what follows from them.

`RecordPromise.spend` states the promise, and sees nothing else. What `RecordDP` adds (what a step is divided by, how
many examples of a person are used) changes models, and no epsilon.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fedveil.accounting import Draw, Relation, Spend, SpendFilter, StepFilter, Trust, least_noise, of_round, step_event
from fedveil.accounting.bounds import GDP, PLD, Bound
from fedveil.accounting.events import FACTOR, Gaussian
from fedveil.accounting.guarantee import (
    KEYS_ARE_SECRET,
    LIVENESS,
    NO_FAILURE,
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

OWN = {  # parameters that belong to one sum alone, those of its server side included
    "trusted": ("silos", "tolerated"),
    "secure": ("least_sites", "colluding", "retries", "units", "lr"),
}
TRUST: dict[str, Trust] = {"none": "local", "trusted": "trusted sum", "secure": "secure sum"}


@dataclass(frozen=True, kw_only=True)
class RecordPromise(Parameters):
    """The parameters of a promise at record or person level, and the numbers that follow from them.

    Parameters
    ----------
    unit : {"record", "person"}
        Whose contribution is clipped, and protected.
    sum : {"none", "trusted", "secure"}
        What becomes of the silos' steps, and so who is trusted: see `fedveil.methods.record`.
    relation : {"zero-out", "add/remove", "replace-one"}
        Which silos are neighbours. Under ``"add/remove"`` a silo's size is private, and nothing depends on it; it is
        public under the others.
    epsilon, delta : float, optional
        Target of the total over `rounds`: z is the least noise that meets it.
    noise_multiplier : float, optional
        z, in the place of `epsilon`: the noise on a step's sum has deviation z * C.
    clip : float
        C, the longest gradient of one example, or of one person.
    rate : float
        Poisson sampling rate of a step: each example takes part with this probability; 1 is the full batch.
    steps : int
        Noisy steps of a silo in a round.
    rounds : int, optional
        Rounds planned; needed with `epsilon`. A broadcast beyond them is declined.
    silos_per_person : int
        The most silos at which one person may be; the noise is raised so that the promise holds for her in all.
    most : int, optional
        Under ``"add/remove"``, the most examples (persons) that a silo may have, a condition of the promise; a full
        batch has so many places, and costs so much. Twice what is planned by default.
    silos : int
        With ``sum="trusted"``, needed: n, the silos of every sum.
    tolerated : int
        With ``sum="trusted"``: t silos that may drop out, lie about their noise, or pool what they know, all together.
        Whoever reads the result and holds a share counts, so it is at least 1.
    least_sites : int
        With ``sum="secure"``, needed: m, the smallest roster that is answered, at least 3. A site that drops out costs
        the others one more release each, and the sum needs m that stay.
    colluding : int
        With ``sum="secure"``: c sites that may pool what they know with the server, or leave out their noise; the noise
        is that of m - c.
    retries : int
        With ``sum="secure"``: sums beyond one a round that the total has room for, as when a site drops out.

    Raises
    ------
    FieldError
        For a value out of range, both or neither of `noise_multiplier` and `epsilon`, or an epsilon out of reach.
    """

    unit: Literal["record", "person"] = "record"
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

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                require_own_sum(self.sum, field.name, value)
        self._check_persons()
        self._check_noise()
        self._check_sum()

    def _check_persons(self) -> None:
        if self.silos_per_person > 1 and self.unit != "person":
            raise FieldError("silos_per_person", self.silos_per_person, 'goes with unit = "person"')
        if self.together > 1 and self.rate < 1:
            accepted = "cannot be above 1 in a sum of sampled steps: set rate to 1, or sum nothing"
            raise FieldError("silos_per_person", self.silos_per_person, accepted)

    def _check_noise(self) -> None:
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise FieldError("noise_multiplier", self.noise_multiplier, "give either it or epsilon")
        if self.epsilon is not None and self.rounds is None:
            raise FieldError("rounds", None, "it is needed with epsilon, which is the total over the rounds planned")
        if self.most is not None and self.relation != "add/remove":
            raise FieldError("most", self.most, 'goes with relation = "add/remove": sizes are public under the others')
        step_event(self.multiplier, self.rate)
        require_within("sigma", "noise_multiplier * clip", self.multiplier * self.together * self.clip)

    def _check_sum(self) -> None:
        if self.sum != "none" and self.steps != 1:
            accepted = 'must be 1: every noisy step is summed before the next; or set sum = "none"'
            raise FieldError("steps", self.steps, accepted)
        if self.sum == "trusted" and self.silos < 2:
            raise FieldError("silos", self.silos, 'a sum needs at least 2 silos; a single one has sum = "none"')
        if self.sum == "trusted" and self.tolerated >= self.silos:
            raise FieldError("tolerated", self.tolerated, f"must leave one of the {self.silos} silos to add noise")
        if self.sum == "secure":
            require_honest(self.least_sites, self.colluding)

    @property
    def trust(self) -> Trust:
        """Who is trusted follows the sum."""
        return TRUST[self.sum]

    @property
    def counted(self) -> str:
        """What is counted in a silo."""
        return "people" if self.unit == "person" else "examples"

    @property
    def together(self) -> int:
        """Shares of one sum that one unit may be in: they add up, while separate releases compose."""
        return 1 if self.sum == "none" else self.silos_per_person

    @property
    def sums(self) -> int:
        """Releases of a whole run."""
        return (self.rounds or 0) + self.retries

    @property
    def counts(self) -> int:
        """Noisy steps of a round that one unit may be in."""
        return self.steps * self.silos_per_person // self.together

    @property
    def multiplier(self) -> float:
        """Noise that the promise counts: its deviation over what one unit can contribute to a sum."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier / self.together
        count = self.sums * self.counts
        return least_noise(self.epsilon or 0.0, self.delta, count, rate=self.rate, relation=self.relation)

    @property
    def adding(self) -> int:
        """Silos whose noise makes up what is promised."""
        if self.sum == "trusted":
            return self.silos - self.tolerated
        return self.least_sites - self.colluding if self.sum == "secure" else 1

    @property
    def deviation(self) -> float:
        """Of the noise that one silo adds to the sum of a step."""
        in_units_of_clip = self.multiplier * self.together / math.sqrt(self.adding)
        return in_units_of_clip * self.clip

    @property
    def conditions(self) -> tuple[str, ...]:
        """What has to hold beside the conditions of every silo."""
        if self.sum == "trusted":
            return SUM_IS_TRUSTED, dropout_condition(self.silos, self.tolerated)
        return (KEYS_ARE_SECRET, collusion_condition(self.colluding, self.least_sites)) if self.sum == "secure" else ()

    def spend(self) -> Spend:
        """What a round costs.

        Raises
        ------
        FieldError
            Under ``"add/remove"`` without `most`, which is a condition of the promise.
        """
        private_size = self.relation == "add/remove"
        if private_size and self.most is None:
            raise FieldError("most", None, 'is needed with relation = "add/remove": the most that a silo may have')
        event = step_event(self.multiplier, self.rate)
        bound: Bound = PLD(((event, self.counts),))
        if isinstance(event, Gaussian):
            bound = GDP(FACTOR[self.relation] * math.sqrt(self.counts) / self.multiplier)
        persons = (silos_condition(self.silos_per_person),) if self.unit == "person" else ()
        sizes = (size_condition(self.most, self.counted),) if self.most is not None else ()
        conditions = (*self.conditions, *persons, *sizes, LIVENESS, NO_FAILURE)
        promise = of_round(bound, self.trust, self.relation, *conditions)
        promise = replace(promise, unit=self.unit, public_size=not private_size)
        promise = replace(promise, silos_per_person=self.silos_per_person)
        moved = FACTOR[self.relation] * self.clip
        drawn = (self._draw(),)
        return Spend(guarantee=promise, mechanism="gaussian", scale=(self.deviation,), sensitivity=moved, draws=drawn)

    def _draw(self) -> Draw:
        """What a silo's noise is drawn onto, for the ledger."""
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
        """A filter that holds a silo to the steps planned; None without a plan."""
        event = step_event(self.multiplier, self.rate)
        return None if self.rounds is None else StepFilter(event, self.sums * self.counts)

    def within(self, epsilon: float, delta: float) -> StepFilter:
        """A filter that holds a silo to a total."""
        return StepFilter.within(step_event(self.multiplier, self.rate), epsilon, delta, self.relation)

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """On the steps planned, and on the total."""
        filters: list[SpendFilter] = []
        if (planned := self.budget()) is not None:
            filters.append(planned)
        if epsilon is not None:
            filters.append(self.within(epsilon, delta))
        return filters


def fitting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without those that belong to another sum than the one among them."""
    others = {key for name, own in OWN.items() if name != values.get("sum", "none") for key in own}
    return {key: value for key, value in values.items() if key not in others}


def require_own_sum(sum_: str, name: str, value: Any) -> None:
    """Refuse a parameter that belongs to another sum."""
    for other, own in OWN.items():
        if other != sum_ and name in own:
            raise FieldError(name, value, f'goes with sum = "{other}"')
