"""Plan one event, many times: the noise of private training steps for a total, and a filter that counts the steps."""

import math
from functools import lru_cache

import scipy

from fedveil.accounting.bounds import PLD
from fedveil.accounting.composition import epsilon as epsilon_of
from fedveil.accounting.events import FACTOR, Event, Gaussian, Poisson, Relation
from fedveil.accounting.filters import Kind, same_kind
from fedveil.accounting.release import Spend
from fedveil.errors import FieldError, require_choice, require_count, require_delta, require_positive
from fedveil.gdp import noise_of_epsilon

_WIDEST = 1e6  # a noise multiplier that drowns everything


def step_event(noise_multiplier: float, rate: float = 1.0) -> Event:
    """One noisy step: a Gaussian sum over everybody, or over a Poisson sample."""
    noise = Gaussian(noise_multiplier)
    return noise if rate == 1 else Poisson(rate, noise)


@lru_cache(maxsize=256)
def least_places(examples: int, rate: float, chance: float) -> int:
    """The least size of a batch that a Poisson lot exceeds with at most this chance; never more than the examples."""
    low, high = -1, examples
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if scipy.special.bdtrc(middle, examples, rate) <= chance else (middle, high)
    return max(high, 1)


@lru_cache(maxsize=64)
def least_noise(
    epsilon: float, delta: float, steps: int, *, rate: float = 1.0, relation: Relation = "zero-out"
) -> float:
    """The least noise multiplier z = sigma / C for which all steps together stay within (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        Of the total.
    steps : int
        Noisy steps, each with noise of deviation z * C on a sum of contributions clipped to C.
    rate : float
        Poisson sampling rate of each step, in (0, 1].
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs.

    Returns
    -------
    float
        To 4 digits above the least one with sampling, to 12 without; never below it.

    Raises
    ------
    FieldError
        If no noise reaches epsilon, or it is not above delta.
    """
    epsilon, delta = require_positive("epsilon", epsilon), require_delta("delta", delta)
    if epsilon <= delta:
        accepted = f"says no more than its delta of {delta:g}, and leaves nothing to learn: raise it, or lower delta"
        raise FieldError("epsilon", epsilon, accepted)
    steps, sampled = require_count("steps", steps), step_event(1.0, rate) != Gaussian(1.0)
    change = FACTOR[require_choice("relation", relation, FACTOR)] * math.sqrt(steps)  # type: ignore[index]
    most = noise_of_epsilon(epsilon, delta, change)
    if not most < _WIDEST:
        accepted = f"no noise reaches it in {steps} steps: raise epsilon or delta, or take fewer steps"
        raise FieldError("epsilon", epsilon, accepted)
    if not sampled:
        return most

    def excess(log_noise: float) -> float:
        return epsilon_of([(step_event(math.exp(log_noise), rate), steps)], delta, relation) - epsilon

    if excess(math.log(most)) > 0:  # the grid of the loss distribution is too coarse for so small an epsilon
        accepted = "is below what the accountant resolves under sampling: raise it, or set the rate to 1"
        raise FieldError("epsilon", epsilon, accepted)
    least = most
    while excess(math.log(least)) <= 0:  # sampling only lowers what a noise costs
        least /= 2
    found = scipy.optimize.brentq(excess, math.log(least), math.log(2 * least), xtol=2e-5)
    while excess(found) > 0:
        found += 2e-5
    return math.exp(found)


class StepFilter:
    """Admits a planned number of steps of one planned event, and nothing else.

    What is planned does not depend on data or on what was released, so the promise is that of the plan, as long as no
    step beyond it is admitted: no composition theorem for adaptive budgets is needed.

    Parameters
    ----------
    event : Event
        Of each step.
    steps : int
        How many.
    """

    def __init__(self, event: Event, steps: int) -> None:
        self.event, self.steps = event, require_count("steps", steps, least=0)
        self.terms: dict[str, float] | None = None
        self.spent = 0
        self._kind: Kind | None = None

    @classmethod
    def within(cls, event: Event, epsilon: float, delta: float, relation: Relation = "zero-out") -> "StepFilter":
        """As many steps as (epsilon, delta) allows; possibly none."""
        epsilon, low, high = require_positive("epsilon", epsilon), 0, 1

        def fits(steps: int) -> bool:
            return epsilon_of([(event, steps)], delta, relation) <= epsilon

        while fits(high):
            low, high = high, 2 * high
            if high > 1e9:
                raise FieldError("epsilon", epsilon, "allows over a billion steps: state the number you plan")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return cls(event, low)

    def admit_spend(self, spend: Spend) -> bool:
        """Count the steps of a spend if the plan has room for all of them; otherwise change nothing.

        Raises
        ------
        FieldError
            If the spend is no number of steps of the planned event, or under another unit or relation.
        """
        self._kind = same_kind(self._kind, spend)
        guarantee = spend.guarantee
        events = guarantee.bound.events if isinstance(guarantee.bound, PLD) else ()
        if guarantee.mu and isinstance(self.event, Gaussian):
            ratio = guarantee.mu * self.event.noise_multiplier / FACTOR[guarantee.relation]
            events = ((self.event, round(ratio**2)),)
            if not math.isclose(ratio**2, round(ratio**2), rel_tol=1e-9):
                events = ()
        if len(events) != 1 or events[0][0] != self.event:
            raise FieldError("filter", guarantee.describe(), f"counts steps of {self.event} only")
        if self.spent + events[0][1] > self.steps:
            return False
        self.spent += events[0][1]
        return True
