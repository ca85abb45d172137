"""What is proven about a release: one class for each kind of bound, which knows how its own kind composes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
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
    changed,
    covering,
    events_from_list,
    events_to_list,
    grouped,
    grown,
    louder,
    size_of,
    softer,
)
from fedveil.checks import Mu, NonNegative, Parameters, Slope
from fedveil.errors import FieldError, HeuristicError
from fedveil.gdp import Meaning, compose_mu, epsilon_of_mu, epsilon_of_rho, meaning_of_curve, meaning_of_mu, rounded_up
from fedveil.ranges import RANGES


@dataclass(frozen=True)
class Bound(Parameters):
    """What is proven about a release. The base: of what promises nothing for any two neighbours."""

    joins: "ClassVar[tuple[type[Bound], ...]]" = ()  # kinds that this one takes into its own total

    @property
    def cost(self) -> float:
        """One number to rank bounds of one kind by; no privacy parameter across kinds, 0 where nothing is proven."""
        return 0.0

    @property
    def slope(self) -> float:
        """About the mu that a unit of Euclidean distance costs; 0 without a curve over distance."""
        return 0.0

    def epsilon(self, delta: float, relation: Relation) -> float:
        """Epsilon at a delta.

        Raises
        ------
        HeuristicError
            If there is none for two neighbouring inputs.
        """
        raise HeuristicError(f"a release of this kind has no epsilon: {self.describe()}")

    def epsilon_at(self, distance: float, delta: float) -> float:
        """Epsilon where a client's vector moves by at most a Euclidean distance in each release.

        Raises
        ------
        HeuristicError
            If there is no curve over distance.
        """
        raise HeuristicError(f"a release of this kind has no curve over distance: {self.describe()}")

    def meaning(self, relation: Relation) -> Meaning:
        """What it means for an attacker; from the curve of epsilon over delta where there is no better."""
        deltas = np.geomspace(1e-12, 0.5, 400)
        return meaning_of_curve(np.array([self.epsilon(float(d), relation) for d in deltas]), deltas)

    def scaled(self, times: float) -> "Bound":
        """The bound for a unit that contributes so many times as much.

        Raises
        ------
        FieldError
            If this kind has none.
        """
        raise FieldError("group", times, "a d-private promise is about vectors, not about units")

    def of_change(self) -> "Bound":
        """The bound for a unit that is in both inputs, and changes, where this one is for its coming or counting zero.

        Raises
        ------
        FieldError
            If this kind has none.
        """
        return self.scaled(2)

    def of_group(self, size: int, relation: Relation) -> "Bound":
        """The bound for several units together.

        Raises
        ------
        FieldError
            If this kind has none.
        """
        return self.scaled(size)

    def covering(self, others: Sequence[Any]) -> "Bound":
        """What holds wherever this bound or one of the others holds, which are of its kind and cost no more."""
        return self

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> "Bound":
        """The bound of all releases together, which are of this kind or of one that it joins."""
        return bounds[0]  # type: ignore[no-any-return]

    def describe(self) -> str:
        """The parameter as it is printed."""
        return ""

    def values(self) -> dict[str, Any]:
        """Plain values for JSON; events only where there are some."""
        own = {name: events_to_list(v) if name.startswith("events") else v for name, v in vars(self).items()}
        return {name: value for name, value in own.items() if value != []}


@dataclass(frozen=True)
class Unprotected(Bound):
    """No noise at all."""

    def describe(self) -> str:
        return "no noise was added"


@dataclass(frozen=True)
class Heuristic(Bound):
    """Noise that satisfies no definition.

    Parameters
    ----------
    reason : str
        Why.
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
        At least 0; composes as the root of the sum of squares.
    mu_per_distance : float, optional
        If a client's clipped update moves by a Euclidean distance D (in a total: in every round, given the same past),
        the release is (mu_per_distance * D)-GDP.
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
        return GDP(times * self.mu, None if self.mu_per_distance is None else times * self.mu_per_distance)

    def covering(self, others: Sequence[Any]) -> "GDP":
        slopes = [b.mu_per_distance for b in (self, *others) if b.mu_per_distance is not None]
        return GDP(self.mu, max(slopes) if len(slopes) > len(others) else None)

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        slopes = [b.mu_per_distance for b in bounds if b.mu_per_distance is not None]
        return cls(compose_mu(b.mu for b in bounds), compose_mu(slopes) if len(slopes) == len(bounds) else None)

    def describe(self) -> str:
        return f"mu={rounded_up(self.mu)}"


@dataclass(frozen=True)
class ZCDP(Bound):
    """Zero-concentrated differential privacy (discrete Gaussian noise); mu-GDP is (mu^2 / 2)-zCDP.

    Parameters
    ----------
    rho : float
        At least 0; adds up.
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

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        return cls(math.fsum(b.rho if isinstance(b, ZCDP) else b.mu**2 / 2 for b in bounds))

    def describe(self) -> str:
        return f"rho={rounded_up(self.rho)}"


@dataclass(frozen=True)
class PLD(Bound):
    """Releases whose joint privacy-loss distribution is the promise, such as subsampled Gaussian steps.

    Parameters
    ----------
    events : tuple of (event, count)
        See `fedveil.accounting.events`.
    """

    events: tuple[tuple[Event, int], ...]
    joins: ClassVar[tuple[type[Bound], ...]] = (GDP,)

    @property
    def cost(self) -> float:
        """The root of the sum of count (rate / noise multiplier)^2: it ranks plans of one kind of event."""
        return math.sqrt(math.fsum(count * size_of(event) ** 2 for event, count in self.events))

    def epsilon(self, delta: float, relation: Relation) -> float:
        return composition.epsilon(self.events, delta, relation)

    def meaning(self, relation: Relation) -> Meaning:
        return meaning_of_curve(*composition.curve(self.events, relation))

    def scaled(self, times: float) -> "PLD":
        return PLD(tuple((louder(event, times), count) for event, count in self.events))

    def of_change(self) -> "PLD":
        """Sampled steps draw the unit as often as before, so that most of them do not see the change: `Changed`."""
        return PLD(tuple((changed(event), count) for event, count in self.events))

    def of_group(self, size: int, relation: Relation) -> "PLD":
        """Under Poisson sampling the number of sampled records is binomial, a mixture of shifts (arXiv 2401.10294).

        Under replace-one no credit is taken for the sampling of groups.
        """
        if relation == "add/remove" and size > SPARE:
            accepted = f"must be at most {SPARE} under add/remove with sampling, or take zero-out"
            raise FieldError("group", size, accepted)
        sampled = relation != "replace-one"
        return PLD(tuple((grown(event, size, sampled), count) for event, count in self.events))

    def covering(self, others: Sequence[Any]) -> "PLD":
        return PLD(covering(self.events, [b.events for b in others]))

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        pairs = [pair for b in bounds if isinstance(b, PLD) for pair in b.events]
        quietest = RANGES["noise of an event"].most
        for bound in bounds:
            if isinstance(bound, GDP) and bound.mu > 0:
                noise = min(FACTOR[relation] / bound.mu, quietest)  # less noise than there is costs no less
                pairs.append((Gaussian(noise), 1))
        return cls(tuple(grouped(pairs).items()))

    def describe(self) -> str:
        return "composed by PLD"


@dataclass(frozen=True)
class OverDistance(Bound):
    """A promise over a distance alone: it bounds no two vectors but those at most so far apart."""

    symbol: ClassVar[str]

    @property
    def cost(self) -> float:
        """What a unit of distance costs."""
        return float(next(iter(vars(self).values())))

    def epsilon(self, delta: float, relation: Relation) -> float:
        raise HeuristicError("a d-private release has no epsilon without a distance; see epsilon_at")


@dataclass(frozen=True)
class MetricGDP(OverDistance):
    """Gaussian noise under a metric: two vectors at distance D are (mu_per_distance * D)-GDP.

    Parameters
    ----------
    mu_per_distance : float
        At least 0.
    """

    mu_per_distance: Slope
    symbol: ClassVar[str] = "mu"

    @property
    def slope(self) -> float:
        return self.mu_per_distance

    def epsilon_at(self, distance: float, delta: float) -> float:
        return epsilon_of_mu(self.mu_per_distance * distance, delta)

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        return cls(compose_mu(b.mu_per_distance for b in bounds))

    def describe(self) -> str:
        return f"mu={rounded_up(self.cost, 3)} per distance"


@dataclass(frozen=True)
class MetricDP(OverDistance):
    """d-privacy: log-ratios are at most epsilon times the Euclidean distance between two vectors.

    Parameters
    ----------
    epsilon_per_distance : float
        At least 0; adds up (in a total the distance is the largest of any round).
    events_per_distance : tuple of (EuclideanLaplace, count)
        The releases behind it as two vectors one unit of distance apart see them: `epsilon_at` composes them exactly,
        which needs dp-accounting. At delta 0 they add up.
    """

    epsilon_per_distance: NonNegative
    events_per_distance: tuple[tuple[EuclideanLaplace, int], ...] = ()
    symbol: ClassVar[str] = "eps"

    @property
    def slope(self) -> float:
        squares = (c * e.shift**2 / e.dimension for e, c in self.events_per_distance)
        return math.sqrt(math.fsum(squares)) or self.epsilon_per_distance

    def epsilon_at(self, distance: float, delta: float) -> float:
        pure = self.epsilon_per_distance * distance
        if not (delta and pure and self.events_per_distance):
            return pure
        seen = [(EuclideanLaplace(e.dimension, e.shift * distance), c) for e, c in self.events_per_distance]
        return min(pure, composition.epsilon(seen, delta))

    def covering(self, others: Sequence[Any]) -> "MetricDP":
        own, seen = self.events_per_distance, [b.events_per_distance for b in others]
        if not all((own, *seen)):  # of one without its releases nothing exact is known
            return MetricDP(self.epsilon_per_distance)
        return MetricDP(
            self.epsilon_per_distance, covering(own, [events for events in seen if not softer(events, own)])
        )

    @classmethod
    def total(cls, bounds: Sequence[Any], relation: Relation) -> Bound:
        whole = all(b.events_per_distance for b in bounds)  # of one without its releases nothing exact is known
        behind: dict[Any, int] = grouped(pair for b in bounds for pair in b.events_per_distance) if whole else {}
        return cls(math.fsum(b.epsilon_per_distance for b in bounds), tuple(behind.items()))

    def describe(self) -> str:
        return f"{rounded_up(self.cost, 3)}-d-private"


PROVEN = (GDP, MetricGDP, PLD, ZCDP, MetricDP)  # in the order in which a total is tried
PARAMETERS = ("mu", "mu_per_distance", "rho", "epsilon_per_distance", "events_per_distance", "events")


def composed(bounds: Iterable[Bound], relation: Relation) -> Bound:
    """One bound for several releases; one that is not proven makes the total one that is not.

    Raises
    ------
    FieldError
        If the kinds do not compose into one number.
    """
    every = list(bounds)
    weak = [b for unproven in (Unprotected, Heuristic) for b in every if isinstance(b, unproven)]
    if weak:
        return weak[0]
    for kind in PROVEN:
        if all(isinstance(b, (kind, *kind.joins)) for b in every):
            return kind.total(every, relation)
    names = [b.describe() for b in every]
    raise FieldError("guarantees", names, "rho or d-privacy and the others do not compose into one number")


def bound_from(status: str, values: Mapping[str, Any]) -> Bound:
    """The bound that a ledger's values hold, by the parameters that are given.

    Raises
    ------
    FieldError
        If none or several kinds fit.
    """
    given = {name: values[name] for name in PARAMETERS if values.get(name) not in (None, [], ())}
    if status in ("none", "heuristic"):
        if given:
            raise FieldError("status", status, "carries no privacy parameter: nothing is proven")
        return Unprotected() if status == "none" else Heuristic(values.get("reason", ""))
    own: dict[str, Any] = {name: events_from_list(v) if name.startswith("events") else v for name, v in given.items()}
    for kind in PROVEN:
        names = [f.name for f in fields(kind)]
        if names[0] in own and set(own) <= set(names):
            return kind(**own)
    accepted = "needs exactly one of mu, mu_per_distance alone, rho, epsilon_per_distance and events"
    raise FieldError("status", status, accepted)
