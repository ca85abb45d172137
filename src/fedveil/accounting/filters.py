"""Filters: a hard stop at a preset budget. They remember what they admitted."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol, runtime_checkable

from fedveil.accounting.bounds import GDP, PLD, ZCDP
from fedveil.accounting.composition import epsilon as epsilon_of
from fedveil.accounting.events import FACTOR, Event, Gaussian, Relation
from fedveil.accounting.guarantee import Guarantee, Unit
from fedveil.accounting.ledger import Spend
from fedveil.errors import FieldError, require_count, require_non_negative, require_positive
from fedveil.gdp import compose_mu, epsilon_of_mu, epsilon_of_rho, mu_of_epsilon
from fedveil.ranges import require_within

Kind = tuple[Unit, Relation]


@runtime_checkable
class SpendFilter(Protocol):
    """What a party asks before it spends; the answer depends only on public worst-case cost.

    Examples
    --------
    >>> each: fv.SpendFilter = fv.ParticipationFilter(cap=1)  # a fresh one a client
    >>> once = fv.Budgets(clients=lambda partition: fv.ParticipationFilter(cap=1))
    >>> run = fv.Federation(model=model, clients=clients, method="sga-ldp", budgets=once).run(3)
    >>> len(run.rounds)
    1
    """

    @property
    def terms(self) -> dict[str, float] | None:
        """Arguments of a `Filter` that holds the same, which a party declares in its ledger; None if there is none."""

    def admit_spend(self, spend: Spend) -> bool:
        """Charge a spend if the budget allows it; otherwise change nothing and return False."""


class Filter:
    """Gaussian-DP filter: admits releases while the composed mu stays within (epsilon, delta).

    Even for adaptively chosen mu the stop is as tight as fixed composition (Smith and Thakurta 2022, arXiv 2210.17520).
    Releases under concentrated DP (discrete noise) are admitted while the sum of rho stays within the same target.

    Parameters
    ----------
    epsilon, delta : float
        The total budget.

    Examples
    --------
    >>> budget = fv.Filter(epsilon=1.0, delta=1e-5)
    >>> [budget.admit(0.15) for _ in range(4)]  # four releases of mu .15
    [True, True, True, False]
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.budget, step = mu_of_epsilon(epsilon, delta), 1e-14
        while epsilon_of_mu(self.budget, delta) > epsilon:  # of rounding: a total printed as the budget is none below
            self.budget *= 1 - step
            step *= 2
        self.terms: dict[str, float] | None = {"epsilon": float(epsilon), "delta": float(delta)}
        self.spent = 0.0
        self._target, self._rho = (epsilon, delta), 0.0
        self._kind: Kind | None = None

    def admit(self, mu: float) -> bool:
        """Charge mu if the budget allows it; otherwise change nothing and return False."""
        return self._admit(compose_mu((self.spent, require_non_negative("mu", mu))), self._rho)

    def admit_spend(self, spend: Spend) -> bool:
        """Charge a spend by its mu or rho; one without them, or of another unit or relation, has no such total."""
        self._kind = same_kind(self._kind, spend)
        if isinstance(spend.guarantee.bound, ZCDP):
            return self.admit_rho(spend.guarantee.bound.rho)
        if spend.guarantee.mu is None:
            raise FieldError("filter", "epsilon", f"cannot hold a {spend.guarantee.status} release to an epsilon")
        return self.admit(_charge(spend))

    def held(self, worst: Guarantee, spends: Iterable[Spend]) -> Guarantee:
        """A party's total under this filter: its budget, where that is less than the sum of the worst cases.

        True only of a budget that was fixed before the first release (`Ledger.budget`). A budget chosen afterwards,
        just above what was spent, follows from the releases and promises nothing.

        Parameters
        ----------
        worst : Guarantee
            The sum of the worst cases.
        spends : iterable of Spend
            Everything that was spent.
        """
        if worst.mu is None or worst.mu <= self.budget:
            return worst
        charged = compose_mu(_charge(spend) for spend in spends)
        if charged > self.budget * (1 + 1e-12):
            return worst
        return replace(worst, bound=GDP(self.budget))

    def admit_rho(self, rho: float) -> bool:
        """Charge a concentrated-DP release if the budget allows it; otherwise change nothing and return False."""
        return self._admit(self.spent, self._rho + require_non_negative("rho", rho))

    def _admit(self, mu: float, rho: float) -> bool:
        """Whether so much may be spent in all; then it is."""
        epsilon, delta = self._target
        if mu > self.budget * (1 + 1e-12) or (rho > 0 and epsilon_of_rho(mu * mu / 2 + rho, delta) > epsilon):
            return False
        self.spent, self._rho = mu, rho
        return True


def same_kind(known: Kind | None, spend: Spend) -> Kind:
    """The unit and relation of a spend, which have to be those that a budget counts; None before its first.

    Raises
    ------
    FieldError
        If they are others: a release for single records counts as many times one for the person who has them, and one
        under zero-out twice under replace-one.
    """
    kind = spend.guarantee.unit, spend.guarantee.relation
    if known is not None and known != kind:
        accepted = f"counts promises for one {known[0]} under {known[1]} alone; give others a ledger of their own"
        raise FieldError("filter", spend.guarantee.describe(), accepted)
    return kind


def _charge(spend: Spend) -> float:
    """Mu of a spend as a filter counts it."""
    return (spend.guarantee.mu or 0.0) if spend.charge is None else spend.charge


class LeakageFilter:
    """Caps the sum of epsilon times distance (d-privacy) or of the heuristic leakage n / nu.

    Parameters
    ----------
    cap : float
        The total that is allowed.

    Examples
    --------
    >>> cap = fv.LeakageFilter(cap=3.0)
    >>> spent = fv.Spend(guarantee=fv.accounting.unprotected("local"), leakage=2.0)
    >>> [cap.admit_spend(spent) for _ in range(2)]
    [True, False]
    """

    def __init__(self, cap: float) -> None:
        self.cap, self.terms = require_positive("cap", cap), None
        self._admitted: list[float] = []

    @property
    def spent(self) -> float:
        """The leakage admitted so far."""
        return math.fsum(self._admitted)

    def admit(self, leakage: float) -> bool:
        """Charge a leakage if the cap allows it; otherwise change nothing and return False."""
        value = require_non_negative("leakage", leakage)
        if math.fsum([*self._admitted, value]) > self.cap * (1 + 1e-12):
            return False
        self._admitted.append(value)
        return True

    def admit_spend(self, spend: Spend) -> bool:
        """Charge a spend by its leakage."""
        if spend.leakage is None:
            raise FieldError("filter", "leakage", "the method states no leakage to cap; cap participations instead")
        return self.admit(spend.leakage)


class ParticipationFilter:
    """Caps the number of participations: what can be promised about a heuristic.

    Parameters
    ----------
    cap : int
        Participations allowed.

    Examples
    --------
    >>> cap = fv.ParticipationFilter(cap=2)
    >>> free = fv.Spend(guarantee=fv.accounting.unprotected("local"))
    >>> [cap.admit_spend(free) for _ in range(3)]
    [True, True, False]
    """

    def __init__(self, cap: int) -> None:
        self.cap, self.terms = require_count("cap", cap), None
        self.spent = 0

    def admit_spend(self, spend: Spend) -> bool:
        """Count one participation if the cap allows it."""
        if self.spent >= self.cap:
            return False
        self.spent += 1
        return True


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
        epsilon, low, high = require_within("epsilon", "epsilon", epsilon), 0, 1

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
