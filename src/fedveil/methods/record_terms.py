"""What is agreed on at record and person level: whose contribution is clipped, how often it counts, and by whom."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedveil.accounting import Relation, least_noise, step_event
from fedveil.checks import (
    Clip,
    Count,
    Delta,
    Epsilon,
    Natural,
    NoiseLevel,
    Parameters,
    PlannedUnits,
    Rate,
    RecordsOfPerson,
    Rounds,
    SilosOfPerson,
    Steps,
)
from fedveil.errors import FieldError
from fedveil.ranges import require_within

OWN = {  # parameters that belong to one sum alone, those of its server side included
    "trusted": ("silos", "tolerated"),
    "secure": ("least_sites", "colluding", "retries", "units", "lr"),
}


@dataclass(frozen=True, kw_only=True)
class RecordTerms(Parameters):
    """The parameters of `RecordDP`, and the numbers that follow from them.

    Parameters
    ----------
    examples : float
        Examples planned for a silo, a public number and the same for all; needed. `rate` times it is the denominator of
        every step, so that a silo with more of them weighs more.
    unit : {"record", "person"}
        Whose contribution is clipped, and protected.
    sum : {"none", "trusted", "secure"}
        What becomes of the silos' steps, and so who is trusted: see above.
    people : float
        With ``unit="person"``, in the place of `examples`: persons planned for a silo.
    records_per_person : int
        With ``unit="person"``, needed: the most examples of one person that are used, the first of hers; a step costs
        time for so many of each.
    silos_per_person : int
        The most silos at which one person may be; the noise is raised so that the promise holds for her in all.
    clip : float
        C, the longest gradient of one example, or of one person.
    noise_multiplier : float, optional
        z: the noise on a step's sum has deviation z * C.
    epsilon, delta : float, optional
        Target of the total over `rounds` instead: z is the least noise that meets it.
    rounds : int, optional
        Rounds planned; needed with `epsilon`. A broadcast beyond them is declined.
    steps : int
        Noisy steps of a silo in a round.
    rate : float
        Poisson sampling rate of a step: each example takes part with this probability; 1 is the full batch.
    relation : {"zero-out", "add/remove", "replace-one"}
        Which silos are neighbours. Under ``"add/remove"`` a silo's size is private, and nothing depends on it; it is
        public under the others.
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
    units : int
        With ``sum="secure"``: a public number of examples (persons) that no site exceeds, so that sums do not overflow.

    Raises
    ------
    FieldError
        For a value out of range, both or neither of `noise_multiplier` and `epsilon`, or an epsilon out of reach.
    """

    examples: PlannedUnits | None = None
    unit: Literal["record", "person"] = "record"
    people: PlannedUnits | None = None
    records_per_person: RecordsOfPerson | None = None
    silos_per_person: SilosOfPerson = 1
    clip: Clip = 1.0
    noise_multiplier: NoiseLevel | None = None
    epsilon: Epsilon | None = None
    delta: Delta = 1e-5
    rounds: Rounds | None = None
    steps: Steps = 1
    rate: Rate = 1.0
    relation: Relation = "zero-out"
    most: Count | None = None
    sum: Literal["none", "trusted", "secure"] = "none"
    silos: Natural = 0
    tolerated: Count = 1
    least_sites: Natural = 0
    colluding: Count = 1
    retries: Natural = 0
    units: Count = 1_000_000

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                require_own_sum(self.sum, field.name, getattr(self, field.name))
        self._check_unit()
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise FieldError("noise_multiplier", self.noise_multiplier, "give either it or epsilon")
        if self.epsilon is not None and self.rounds is None:
            raise FieldError("rounds", None, "is needed with epsilon, which is the total over the rounds planned")
        if self.most is not None and self.relation != "add/remove":
            raise FieldError("most", self.most, 'goes with relation = "add/remove": sizes are public under the others')
        step_event(self.multiplier, self.rate)
        require_within("sigma", "noise_multiplier * clip", self.multiplier * self.together * self.clip)

    def _check_unit(self) -> None:
        person = {"people": self.people, "records_per_person": self.records_per_person}
        needed = person if self.unit == "person" else {"examples": self.examples}
        for name, value in {**person, "examples": self.examples}.items():
            if name not in needed and value is not None:
                raise FieldError(name, value, f'does not belong to unit = "{self.unit}": give {", ".join(needed)}')
            if name in needed and value is None:
                raise FieldError(name, None, "is needed: a planned, public number, such as the mean over the silos")
        if self.silos_per_person > 1 and self.unit != "person":
            raise FieldError("silos_per_person", self.silos_per_person, 'goes with unit = "person"')
        if self.together > 1 and self.rate < 1:
            accepted = "cannot be above 1 in a sum of sampled steps: set rate to 1, or sum nothing"
            raise FieldError("silos_per_person", self.silos_per_person, accepted)

    @property
    def counted(self) -> str:
        """What is counted in a silo."""
        return "people" if self.unit == "person" else "examples"

    @property
    def planned(self) -> float:
        """Of them, how many a silo is planned to have."""
        return float((self.people if self.unit == "person" else self.examples) or 0.0)

    @property
    def denominator(self) -> float:
        """What a silo's step is divided by."""
        return self.rate * self.planned

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
    def most_units(self) -> int:
        """The most examples of a silo whose number is private."""
        if self.relation != "add/remove":
            return 0
        return math.ceil(2 * self.planned) if self.most is None else self.most


def fitting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without those that belong to another sum than the one among them."""
    others = {key for name, own in OWN.items() if name != values.get("sum", "none") for key in own}
    return {key: value for key, value in values.items() if key not in others}


def require_own_sum(sum_: str, name: str, value: Any) -> None:
    """Refuse a parameter that belongs to another sum."""
    for other, own in OWN.items():
        if other != sum_ and name in own:
            raise FieldError(name, value, f'goes with sum = "{other}"')
