"""Filters: each admits a party's releases until a preset budget is used up."""

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
    """Interface of filters: decide by public worst-case costs whether a party may make a release.

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
        """Arguments of a `Filter` with the same budget, for the ledger; None if no `Filter` has this budget."""

    def admit_spend(self, spend: Spend) -> bool:
        """Charge a spend and return True if the budget allows it; otherwise change nothing and return False."""


class Filter:
    """Filter for a total (epsilon, delta): it admits Gaussian-DP releases while their composed mu stays within it.

    It is as tight as composition of fixed mu, even if each mu is chosen adaptively (Smith and Thakurta 2022, arXiv
    2210.17520). Releases under concentrated DP (discrete noise) are admitted while the sum of rho stays within the same
    target.

    Parameters
    ----------
    epsilon, delta : float
        Budget of all releases together.

    Examples
    --------
    >>> budget = fv.Filter(epsilon=1.0, delta=1e-5)
    >>> [budget.admit(0.15) for _ in range(4)]  # four releases of mu .15
    [True, True, True, False]
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.budget, step = mu_of_epsilon(epsilon, delta), 1e-14
        while (
            epsilon_of_mu(self.budget, delta) > epsilon
        ):  # so that rounding cannot push a full budget above epsilon
            self.budget *= 1 - step
            step *= 2
        self.terms: dict[str, float] | None = {"epsilon": float(epsilon), "delta": float(delta)}
        self.spent = 0.0
        self._target, self._rho = (epsilon, delta), 0.0
        self._kind: Kind | None = None

    def admit(self, mu: float) -> bool:
        """Charge mu and return True if the budget allows it; otherwise change nothing and return False."""
        return self._admit(compose_mu((self.spent, require_non_negative("mu", mu))), self._rho)

    def admit_spend(self, spend: Spend) -> bool:
        """Charge a spend by its mu or rho and return True if the budget allows it; otherwise return False.

        Raises
        ------
        FieldError
            If the spend has neither, or another unit or relation than those before.
        """
        self._kind = same_kind(self._kind, spend)
        if isinstance(spend.guarantee.bound, ZCDP):
            return self.admit_rho(spend.guarantee.bound.rho)
        if spend.guarantee.mu is None:
            raise FieldError(
                "filter", "epsilon", f"cannot hold a {spend.guarantee.status} release to an epsilon"
            )
        return self.admit(_charge(spend))

    def held(self, worst: Guarantee, spends: Iterable[Spend]) -> Guarantee:
        """Return a party's promise under this filter: the budget, or the composed worst cases if these cost less.

        The budget has to be fixed before the first release (`Ledger.budget`). A budget chosen afterwards, just above
        what was spent, depends on the releases and promises nothing.

        Parameters
        ----------
        worst : Guarantee
            Composed worst-case costs.
        spends : iterable of Spend
            All spends so far.
        """
        if worst.mu is None or worst.mu <= self.budget:
            return worst
        charged = compose_mu(_charge(spend) for spend in spends)
        if charged > self.budget * (1 + 1e-12):
            return worst
        return replace(worst, bound=GDP(self.budget))

    def admit_rho(self, rho: float) -> bool:
        """Charge rho of a concentrated-DP release and return True if the budget allows it; else return False."""
        return self._admit(self.spent, self._rho + require_non_negative("rho", rho))

    def _admit(self, mu: float, rho: float) -> bool:
        """Store the sums of mu and rho and return True if the budget allows them; else return False."""
        epsilon, delta = self._target
        exceeded = mu > self.budget * (1 + 1e-12)
        if rho > 0 and not exceeded:
            exceeded = epsilon_of_rho(mu * mu / 2 + rho, delta) > epsilon
        if exceeded:
            return False
        self.spent, self._rho = mu, rho
        return True


def same_kind(known: Kind | None, spend: Spend) -> Kind:
    """Return a spend's unit and relation, after checking that they equal those of the budget (`known`).

    Raises
    ------
    FieldError
        If they differ. For example, mu of a release under zero-out is twice as large under replace-one.
    """
    kind = spend.guarantee.unit, spend.guarantee.relation
    if known is not None and known != kind:
        accepted = f"counts promises for one {known[0]} under {known[1]} alone; give others a ledger of their own"
        raise FieldError("filter", spend.guarantee.describe(), accepted)
    return kind


def _charge(spend: Spend) -> float:
    """Return the mu that a filter charges for a spend."""
    if spend.charge is not None:
        return spend.charge
    return spend.guarantee.mu or 0.0


class LeakageFilter:
    """Filter that caps the total leakage: epsilon times distance (d-privacy), or the heuristic n / nu (n parameters).

    Parameters
    ----------
    cap : float
        Largest total.

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
        """Leakage admitted so far."""
        return math.fsum(self._admitted)

    def admit(self, leakage: float) -> bool:
        """Charge a leakage and return True if the cap allows it; otherwise change nothing and return False."""
        value = require_non_negative("leakage", leakage)
        if math.fsum([*self._admitted, value]) > self.cap * (1 + 1e-12):
            return False
        self._admitted.append(value)
        return True

    def admit_spend(self, spend: Spend) -> bool:
        """Charge a spend by its leakage and return True if the cap allows it; otherwise return False."""
        if spend.leakage is None:
            raise FieldError(
                "filter",
                "leakage",
                "the method states no leakage to cap; cap participations instead",
            )
        return self.admit(spend.leakage)


class ParticipationFilter:
    """Filter that caps the number of participations; the only limit that a heuristic can have.

    Parameters
    ----------
    cap : int
        Largest number of participations.

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
    """Filter that admits a planned number of equal noisy steps.

    The plan depends neither on data nor on releases. So the promise follows from the plan, without a composition
    theorem for adaptive budgets.

    Parameters
    ----------
    event : Event
        Noisy release of each step.
    steps : int
        Planned number of steps.
    """

    def __init__(self, event: Event, steps: int) -> None:
        self.event, self.steps = event, require_count("steps", steps, least=0)
        self.terms: dict[str, float] | None = None
        self.spent = 0
        self._kind: Kind | None = None

    @classmethod
    def within(
        cls,
        event: Event,
        epsilon: float,
        delta: float,
        relation: Relation = "zero-out",
    ) -> "StepFilter":
        """Return a filter with as many steps as (epsilon, delta) allows; there may be none."""
        epsilon = require_within("epsilon", "epsilon", epsilon)
        low, high = 0, 1

        def fits(steps: int) -> bool:
            return epsilon_of([(event, steps)], delta, relation) <= epsilon

        while fits(high):
            low, high = high, 2 * high
            if high > 1e9:
                raise FieldError(
                    "epsilon", epsilon, "allows over a billion steps: state the number you plan"
                )
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                low = middle
            else:
                high = middle
        return cls(event, low)

    def admit_spend(self, spend: Spend) -> bool:
        """Count the steps of a spend if the plan has room for all of them; otherwise change nothing.

        Raises
        ------
        FieldError
            If the spend is not a number of steps of the planned event, or has another unit or relation.
        """
        self._kind = same_kind(self._kind, spend)
        steps = self._steps_of(spend.guarantee)
        if steps is None:
            raise FieldError(
                "filter", spend.guarantee.describe(), f"counts steps of {self.event} only"
            )
        if self.spent + steps > self.steps:
            return False
        self.spent += steps
        return True

    def _steps_of(self, guarantee: Guarantee) -> int | None:
        """Return the number of planned steps in a guarantee; None if it is for any other release."""
        if guarantee.mu and isinstance(self.event, Gaussian):
            squared = (guarantee.mu * self.event.noise_multiplier / FACTOR[guarantee.relation]) ** 2
            return round(squared) if math.isclose(squared, round(squared), rel_tol=1e-9) else None
        if not isinstance(guarantee.bound, PLD) or len(guarantee.bound.events) != 1:
            return None
        event, count = guarantee.bound.events[0]
        return count if event == self.event else None
