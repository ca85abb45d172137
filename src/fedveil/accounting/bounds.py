"""Proven bounds on what a release reveals: one class for each kind, which also composes releases of its kind."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedveil.accounting import composition
from fedveil.accounting.events import (
    FACTOR,
    SPARE,
    EuclideanLaplace,
    Event,
    Gaussian,
    Relation,
    count_events,
    event_of_group,
    event_of_part,
    events_from_list,
    events_to_list,
    is_dominated,
    most_of_each,
    scaled_event,
    size_of,
)
from fedveil.checks import Mu, NonNegative, Parameters, Slope
from fedveil.errors import FieldError, HeuristicError
from fedveil.gdp import (
    Meaning,
    compose_mu,
    epsilon_of_mu,
    epsilon_of_rho,
    meaning_of_curve,
    meaning_of_mu,
    rounded_up,
)
from fedveil.ranges import RANGES


@dataclass(frozen=True)
class Bound(Parameters):
    """Bound on what a release reveals. This base class bounds nothing."""

    joins: "ClassVar[tuple[type[Bound], ...]]" = ()  # other kinds of bound that a total of this kind may include

    @property
    def cost(self) -> float:
        """Number by which bounds of one kind are ranked, 0 if nothing is proven; not comparable across kinds."""
        return 0.0

    @property
    def slope(self) -> float:
        """Approximate mu for each unit of Euclidean distance; 0 if the bound says nothing about distances."""
        return 0.0

    def epsilon(self, delta: float, relation: Relation) -> float:
        """Return epsilon at a delta.

        Raises
        ------
        HeuristicError
            If the bound has no epsilon for two neighbouring inputs.
        """
        raise HeuristicError(f"a release of this kind has no epsilon: {self.describe()}")

    def epsilon_at(self, distance: float, delta: float) -> float:
        """Return epsilon for two runs in which a client's vectors are at most `distance` apart in each release.

        Raises
        ------
        HeuristicError
            If the bound says nothing about distances.
        """
        raise HeuristicError(
            f"a release of this kind promises nothing that depends on a distance: {self.describe()}"
        )

    def meaning(self, relation: Relation) -> Meaning:
        """Return limits on an attacker's success, by default from epsilon at many values of delta."""
        deltas = np.geomspace(1e-12, 0.5, 400)
        epsilons = [self.epsilon(float(delta), relation) for delta in deltas]
        return meaning_of_curve(np.array(epsilons), deltas)

    def scaled(self, times: float) -> "Bound":
        """Return the bound for a unit whose contribution is `times` as large.

        Raises
        ------
        FieldError
            If this kind of bound cannot be scaled.
        """
        raise FieldError("group", times, "a d-private promise is about vectors, not about units")

    def repeated(self, count: int) -> "Bound":
        """Return the bound for `count` releases like this one; without a proof it stays without one."""
        return self

    def of_change(self) -> "Bound":
        """Return the bound for a change of a unit, from this bound for a unit that is added, removed or set to zero.

        Raises
        ------
        FieldError
            If this kind of bound has none.
        """
        return self.scaled(2)

    def of_group(self, size: int, relation: Relation) -> "Bound":
        """Return the bound for `size` units that change together.

        Raises
        ------
        FieldError
            If this kind of bound has none.
        """
        return self.scaled(size)

    def covering(self, others: Sequence[Any]) -> "Bound":
        """Return the weakest bound that covers this one and `others` (same kind, none costs more)."""
        return self

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> "Bound":
        """Compose releases with bounds of this kind, or of a kind in `joins`, to one bound."""
        return bounds[0]  # type: ignore[no-any-return]

    def describe(self) -> str:
        """Return the parameter as text."""
        return ""

    def values(self) -> dict[str, Any]:
        """Return the parameters as plain values for JSON, without an empty list of events."""
        values: dict[str, Any] = {}
        for name, value in vars(self).items():
            plain = events_to_list(value) if name.startswith("events") else value
            if plain != []:
                values[name] = plain
        return values


@dataclass(frozen=True)
class Unprotected(Bound):
    """Release without any noise."""

    def describe(self) -> str:
        return "no noise was added"


@dataclass(frozen=True)
class Heuristic(Bound):
    """Release with noise that satisfies no definition of privacy.

    Parameters
    ----------
    reason : str
        Reason why no definition is satisfied.
    """

    reason: str = ""

    def describe(self) -> str:
        return self.reason or "no definition holds"


@dataclass(frozen=True)
class GDP(Bound):
    """Gaussian differential privacy (Dong, Roth and Su 2022, arXiv 1905.02383).

    Parameters
    ----------
    mu : float
        Parameter, at least 0; releases compose to the root of the sum of squares.
    mu_per_distance : float, optional
        Mu for each unit of Euclidean distance: if a client's clipped update moves by D, the release is (mu_per_distance
        * D)-GDP. In a total, D is the movement in every round, given the same past.
    """

    mu: Mu
    mu_per_distance: Slope | None = None

    @property
    def cost(self) -> float:
        return self.mu

    @property
    def slope(self) -> float:
        return self.mu_per_distance or 0.0

    def epsilon(self, delta: float, relation: Relation) -> float:
        return epsilon_of_mu(self.mu, delta)

    def epsilon_at(self, distance: float, delta: float) -> float:
        if self.mu_per_distance is None:
            return super().epsilon_at(distance, delta)
        return epsilon_of_mu(self.mu_per_distance * distance, delta)

    def meaning(self, relation: Relation) -> Meaning:
        return meaning_of_mu(self.mu)

    def scaled(self, times: float) -> "GDP":
        slope = self.mu_per_distance
        return GDP(times * self.mu, None if slope is None else times * slope)

    def repeated(self, count: int) -> "GDP":
        return self.scaled(math.sqrt(count))

    def covering(self, others: Sequence[Any]) -> "GDP":
        slopes = [bound.mu_per_distance for bound in (self, *others)]
        return GDP(self.mu, None if None in slopes else max(slopes))

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        mu = compose_mu(b.mu for b in bounds)
        slopes = [bound.mu_per_distance for bound in bounds]
        return cls(mu, None if None in slopes else compose_mu(slopes))

    def describe(self) -> str:
        return f"mu={rounded_up(self.mu)}"


@dataclass(frozen=True)
class ZCDP(Bound):
    """Zero-concentrated differential privacy (discrete Gaussian noise); mu-GDP is (mu^2 / 2)-zCDP.

    Parameters
    ----------
    rho : float
        Parameter, at least 0; releases add up.
    """

    rho: NonNegative
    joins: ClassVar[tuple[type[Bound], ...]] = (GDP,)

    @property
    def cost(self) -> float:
        return self.rho

    def epsilon(self, delta: float, relation: Relation) -> float:
        return epsilon_of_rho(self.rho, delta)

    def scaled(self, times: float) -> "ZCDP":
        return ZCDP(times**2 * self.rho)

    def repeated(self, count: int) -> "ZCDP":
        return self.scaled(math.sqrt(count))

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        rhos = []
        for bound in bounds:
            rhos.append(bound.rho if isinstance(bound, ZCDP) else bound.mu**2 / 2)
        return cls(math.fsum(rhos))

    def describe(self) -> str:
        return f"rho={rounded_up(self.rho)}"


@dataclass(frozen=True)
class PLD(Bound):
    """Joint privacy-loss distribution of releases, such as subsampled Gaussian steps.

    Parameters
    ----------
    events : tuple of (event, count)
        Releases (`fedveil.accounting.events`), each with the number of times it was made.
    """

    events: tuple[tuple[Event, int], ...]
    joins: ClassVar[tuple[type[Bound], ...]] = (GDP,)

    @property
    def cost(self) -> float:
        """Root of the sum of count (rate / noise multiplier)^2, by which plans with one kind of event are ranked."""
        squares = [count * size_of(event) ** 2 for event, count in self.events]
        return math.sqrt(math.fsum(squares))

    def epsilon(self, delta: float, relation: Relation) -> float:
        return composition.epsilon(self.events, delta, relation)

    def meaning(self, relation: Relation) -> Meaning:
        return meaning_of_curve(*composition.curve(self.events, relation))

    def scaled(self, times: float) -> "PLD":
        return self._mapped(partial(scaled_event, times=times))

    def repeated(self, count: int) -> "PLD":
        return PLD(tuple((event, count * times) for event, times in self.events))

    def of_change(self) -> "PLD":
        """Return the bound for a unit that changes. It is sampled as often as before, and steps without it do not change."""
        return self._mapped(event_of_part)

    def of_group(self, size: int, relation: Relation) -> "PLD":
        """Return the bound for `size` units that change together.

        Under Poisson sampling the number of sampled records is binomial, a mixture of shifts (arXiv 2401.10294). Under
        replace-one the bound ignores that groups are sampled.
        """
        if relation == "add/remove" and size > SPARE:
            accepted = f"must be at most {SPARE} under add/remove with sampling, or take zero-out"
            raise FieldError("group", size, accepted)
        sampled = relation != "replace-one"
        return self._mapped(partial(event_of_group, size=size, sampled=sampled))

    def _mapped(self, change: Callable[[Event], Event]) -> "PLD":
        return PLD(tuple((change(event), count) for event, count in self.events))

    def covering(self, others: Sequence[Any]) -> "PLD":
        return PLD(most_of_each(self.events, [bound.events for bound in others]))

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        sampled: list[tuple[Event, int]] = []
        gaussian: list[tuple[Event, int]] = []
        most_noise = RANGES["noise of an event"].most
        for bound in bounds:
            if isinstance(bound, PLD):
                sampled += bound.events
            elif bound.mu > 0:
                noise = min(
                    FACTOR[relation] / bound.mu, most_noise
                )  # assuming less noise than there is gives a valid upper bound
                gaussian.append((Gaussian(noise), 1))
        return cls(tuple(count_events(sampled + gaussian).items()))

    def describe(self) -> str:
        return "composed by PLD"


@dataclass(frozen=True)
class OverDistance(Bound):
    """Bound that depends on a distance (d-privacy): it compares two vectors by how far apart they are."""

    symbol: ClassVar[str]

    @property
    def cost(self) -> float:
        """Cost for each unit of distance."""
        return float(next(iter(vars(self).values())))

    def epsilon(self, delta: float, relation: Relation) -> float:
        raise HeuristicError(
            "a d-private release has no epsilon without a distance; see epsilon_at"
        )


@dataclass(frozen=True)
class MetricGDP(OverDistance):
    """Gaussian noise under a metric: two vectors at distance D are (mu_per_distance * D)-GDP.

    Parameters
    ----------
    mu_per_distance : float
        Mu for each unit of distance, at least 0; releases compose to the root of the sum of squares.
    """

    mu_per_distance: Slope
    symbol: ClassVar[str] = "mu"

    @property
    def slope(self) -> float:
        return self.mu_per_distance

    def epsilon_at(self, distance: float, delta: float) -> float:
        return epsilon_of_mu(self.mu_per_distance * distance, delta)

    def repeated(self, count: int) -> "MetricGDP":
        return MetricGDP(self.mu_per_distance * math.sqrt(count))

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        return cls(compose_mu(b.mu_per_distance for b in bounds))

    def describe(self) -> str:
        return f"mu={rounded_up(self.cost, 3)} per distance"


@dataclass(frozen=True)
class MetricDP(OverDistance):
    """d-privacy: likelihoods of two vectors' releases differ at most by the factor exp(epsilon * their distance).

    Parameters
    ----------
    epsilon_per_distance : float
        Epsilon for each unit of Euclidean distance, at least 0; releases add up. In a total the distance is the largest
        of any round.
    events_per_distance : tuple of (EuclideanLaplace, count)
        Releases from which it follows, for two vectors one unit of distance apart. `epsilon_at` composes them exactly
        with dp-accounting; at delta 0 they add up.
    """

    epsilon_per_distance: NonNegative
    events_per_distance: tuple[tuple[EuclideanLaplace, int], ...] = ()
    symbol: ClassVar[str] = "eps"

    @property
    def slope(self) -> float:
        squares = [
            count * event.shift**2 / event.dimension for event, count in self.events_per_distance
        ]
        return math.sqrt(math.fsum(squares)) or self.epsilon_per_distance

    def epsilon_at(self, distance: float, delta: float) -> float:
        pure = self.epsilon_per_distance * distance
        if not (delta and pure and self.events_per_distance):
            return pure
        seen = []
        for event, count in self.events_per_distance:
            seen.append((EuclideanLaplace(event.dimension, event.shift * distance), count))
        return min(pure, composition.epsilon(seen, delta))

    def repeated(self, count: int) -> "MetricDP":
        events = ((event, count * times) for event, times in self.events_per_distance)
        return MetricDP(count * self.epsilon_per_distance, tuple(events))

    def covering(self, others: Sequence[Any]) -> "MetricDP":
        own = self.events_per_distance
        seen = [bound.events_per_distance for bound in others]
        if not all((own, *seen)):  # without its releases a bound cannot be composed exactly
            return MetricDP(self.epsilon_per_distance)
        more = [events for events in seen if not is_dominated(events, own)]
        return MetricDP(self.epsilon_per_distance, most_of_each(own, more))

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        epsilon = math.fsum(bound.epsilon_per_distance for bound in bounds)
        releases: list[tuple[Event, int]] = []
        for bound in bounds:
            if (
                not bound.events_per_distance
            ):  # without its releases a bound cannot be composed exactly
                return cls(epsilon)
            releases += bound.events_per_distance
        behind: dict[Any, int] = count_events(releases)
        return cls(epsilon, tuple(behind.items()))

    def describe(self) -> str:
        return f"{rounded_up(self.cost, 3)}-d-private"


PROVEN = (
    GDP,
    MetricGDP,
    PLD,
    ZCDP,
    MetricDP,
)  # kinds of bound, in the order in which a total tries them
PARAMETERS = (
    "mu",
    "mu_per_distance",
    "rho",
    "epsilon_per_distance",
    "events_per_distance",
    "events",
)


def composed(bounds: Iterable[Bound], relation: Relation) -> Bound:
    """Compose the bounds of several releases into one; if one is without a proof, so is the total.

    Raises
    ------
    FieldError
        If bounds of these kinds cannot be composed.
    """
    every = list(bounds)
    for unproven in (Unprotected, Heuristic):
        for bound in every:
            if isinstance(bound, unproven):
                return bound
    for kind in PROVEN:
        if all(isinstance(bound, (kind, *kind.joins)) for bound in every):
            return kind.total(every, relation)
    names = [bound.describe() for bound in every]
    raise FieldError(
        "guarantees", names, "rho or d-privacy and the others do not compose into one number"
    )


def bound_from(status: str, values: Mapping[str, Any]) -> Bound:
    """Read a bound from the plain values in a ledger; its kind follows from the names of the parameters.

    Raises
    ------
    FieldError
        If none or several kinds fit.
    """
    given: dict[str, Any] = {}
    for name in PARAMETERS:
        value = values.get(name)
        if value not in (None, [], ()):
            given[name] = value
    if status in ("none", "heuristic"):
        if given:
            raise FieldError("status", status, "carries no privacy parameter: nothing is proven")
        return Unprotected() if status == "none" else Heuristic(values.get("reason", ""))
    for name in given:
        if name.startswith("events"):
            given[name] = events_from_list(given[name])
    for kind in PROVEN:
        names = [field.name for field in fields(kind)]
        if names[0] in given and given.keys() <= set(names):
            return kind(**given)
    accepted = (
        "needs exactly one of mu, mu_per_distance alone, rho, epsilon_per_distance and events"
    )
    raise FieldError("status", status, accepted)
