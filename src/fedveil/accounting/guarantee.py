"""What a release promises: unit, relation, trust, status, parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from fedveil.accounting.events import (
    FACTOR,
    SPARE,
    EuclideanLaplace,
    Event,
    Gaussian,
    Relation,
    doubled,
    events_from_list,
    events_to_list,
    grouped,
    grown,
    size_of,
)
from fedveil.accounting.meaning import Meaning, meaning_of_curve, meaning_of_mu
from fedveil.errors import FieldError, HeuristicError, require_choice, require_count, require_non_negative
from fedveil.gdp import compose_mu, epsilon_of_mu, epsilon_of_rho, rounded_up

Unit = Literal["client", "record", "person", "parameter vector"]
Trust = Literal["central", "local", "trusted sum", "secure sum"]
Status = Literal["formal", "conditional", "heuristic", "none"]
Scope = Literal["round", "total"]
Events = tuple[tuple[Event, int], ...]

_CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind)
    for name, kind in (("unit", Unit), ("relation", Relation), ("trust", Trust), ("status", Status), ("scope", Scope))
}

_SHARED = ("unit", "relation", "trust", "group", "public_size")  # by all guarantees of one total

# not written where they say nothing
_OPTIONAL: dict[str, Any] = {
    "events": [],
    "group": 1,
    "public_size": None,
    "hypotheses_apart": None,
    "events_per_distance": [],
}

VACUOUS = 20.0  # an epsilon above this is printed, and flagged: it excludes nothing in practice


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What is proven about a release, or that nothing is.

    Parameters
    ----------
    unit : {"client", "record", "person", "parameter vector"}
        What is protected: all data of a client, one record, all records of one person, or the vector that a client
        holds.
    relation : {"zero-out", "add/remove", "replace-one"}
        Which inputs are neighbours.
    trust : {"central", "local", "trusted sum", "secure sum"}
        Whether the server is trusted with the clear updates, nobody is trusted, or whoever receives the clients'
        single shares is trusted to hand on their sum alone.
    status : {"formal", "conditional", "heuristic", "none"}
        Formal: a definition holds. Conditional: it holds if `conditions` do. Heuristic: noise was added, no definition
        holds. None: no noise at all.
    scope : {"round", "total"}
        One release, or all of a party's releases.
    mu : float, optional
        Gaussian-DP parameter; only for formal and conditional guarantees under a relation.
    mu_per_distance : float, optional
        The curve behind `mu`: if a client's clipped update moves by a Euclidean distance D (in a total: in every
        round, given the same past), the release is (mu_per_distance * D)-GDP. Without a `mu`: Gaussian noise under a
        metric, which bounds no two vectors but those at most D apart.
    rho : float, optional
        Zero-concentrated DP parameter (discrete Gaussian noise).
    epsilon_per_distance : float, optional
        d-privacy: log-ratios are at most this times the Euclidean distance between the two vectors (in a total: the
        largest of any round).
    events_per_distance : tuple of (EuclideanLaplace, count)
        The releases behind `epsilon_per_distance` as two vectors one unit of distance apart see them: `epsilon_at`
        composes them exactly.
    events : tuple of (event, count)
        Composed by PLD: the releases whose joint privacy-loss distribution is the promise (see
        `fedveil.accounting.events`), for what has no single parameter, such as subsampled Gaussian steps.
    group : int
        Units protected together: 10 records of one person instead of one. See `of_group`.
    public_size : bool, optional
        Of a record's promise: whether the number of records of its silo is taken as public.
    hypotheses_apart : float, optional
        Largest distance between the hypotheses that the server offered (in a total: of any round). The client's choice
        among them is promised no more than `epsilon_at` of this distance, or nothing where that is not proven.
    conditions : tuple of str
        What must hold for a conditional guarantee.
    reason : str
        Why a heuristic is one.
    """

    unit: Unit
    relation: Relation
    trust: Trust
    status: Status
    scope: Scope
    mu: float | None = None
    mu_per_distance: float | None = None
    rho: float | None = None
    epsilon_per_distance: float | None = None
    events_per_distance: Events = ()
    events: Events = ()
    group: int = 1
    public_size: bool | None = None
    hypotheses_apart: float | None = None
    conditions: tuple[str, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse a guarantee that contradicts itself."""
        object.__setattr__(self, "conditions", tuple(self.conditions))
        for name, choices in _CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        over_metric = self.mu_per_distance if self.mu is None else None
        numbers = [v for v in (self.mu, over_metric, self.rho, self.epsilon_per_distance) if v is not None]
        for value in numbers:
            require_non_negative("guarantee", value)
        if self.hypotheses_apart is not None:
            require_non_negative("hypotheses_apart", self.hypotheses_apart)
        if self.mu_per_distance is not None and not self.mu_per_distance >= 0:
            raise FieldError("mu_per_distance", self.mu_per_distance, "must be at least 0")
        if self.events_per_distance and self.epsilon_per_distance is None:
            raise FieldError("events_per_distance", self.events_per_distance, "go with epsilon_per_distance")
        require_count("group", self.group)
        given = len(numbers) + bool(self.events)
        if self.status in ("heuristic", "none") and given:
            raise FieldError("status", self.status, "carries no privacy parameter: nothing is proven")
        if self.status in ("formal", "conditional") and given != 1:
            accepted = "needs exactly one of mu, mu_per_distance alone, rho, epsilon_per_distance and events"
            raise FieldError("status", self.status, accepted)
        if (self.public_size is not None) != (self.unit in ("record", "person")):
            raise FieldError("public_size", self.public_size, "is stated for records and persons, and only for them")
        if (self.status == "conditional") != bool(self.conditions):
            raise FieldError("conditions", self.conditions, "belong to a conditional guarantee, and it needs them")

    @property
    def proven(self) -> bool:
        """Whether a definition holds (under the stated conditions, if any)."""
        return self.status in ("formal", "conditional")

    @property
    def by_distance(self) -> bool:
        """Whether it is a promise over a distance alone (d-privacy), without an epsilon for any two vectors."""
        return self.mu is None and (self.epsilon_per_distance is not None or self.mu_per_distance is not None)

    @property
    def slope(self) -> float:
        """About the mu that a unit of distance costs, for `by_distance`; exact for Gaussian noise."""
        if self.mu_per_distance is not None:
            return self.mu_per_distance
        behind = ((e, c) for e, c in self.events_per_distance if isinstance(e, EuclideanLaplace))
        return math.sqrt(math.fsum(c * e.shift**2 / e.dimension for e, c in behind)) or self.epsilon_per_distance or 0.0

    @property
    def cost(self) -> float:
        """The one parameter, to rank guarantees of one kind by; 0 where nothing is proven.

        For composed events the root of the sum of count (rate / noise multiplier)^2: it ranks plans of one kind of
        event, and is no privacy parameter.
        """
        if self.events:
            return math.sqrt(math.fsum(count * size_of(event) ** 2 for event, count in self.events))
        kinds = (self.mu, self.rho, self.epsilon_per_distance, self.mu_per_distance)
        return next((v for v in kinds if v is not None), 0.0)

    def epsilon(self, delta: float) -> float:
        """Epsilon at a delta.

        Raises
        ------
        HeuristicError
            If nothing is proven, or if the promise is a curve over distance.
        """
        if not self.proven:
            why = self.reason or "no noise was added"
            raise HeuristicError(f"a release of status {self.status!r} has no epsilon: {why}")
        if self.rho is not None:
            return epsilon_of_rho(self.rho, delta)
        if self.events:
            from fedveil.accounting.composition import epsilon  # which needs this file for its types

            return epsilon(self.events, delta, self.relation)
        if self.mu is None:
            raise HeuristicError("a d-private release has no epsilon without a distance; see epsilon_at")
        return epsilon_of_mu(self.mu, delta)

    def epsilon_at(self, distance: float, delta: float) -> float:
        """Epsilon between two runs whose one difference is a client's protected vector, by at most a distance a round.

        The vector is its clipped update; under d-privacy, the model that it noises. Releases of Laplace noise are
        composed by their loss distribution, which needs dp-accounting; at delta 0 they add up.

        Raises
        ------
        HeuristicError
            If there is no curve over distance.
        """
        distance = require_non_negative("distance", distance)
        if self.proven and self.epsilon_per_distance is not None:
            pure = self.epsilon_per_distance * distance
            if not (delta and pure and self.events_per_distance):
                return pure
            from fedveil.accounting.composition import epsilon

            behind = ((e, c) for e, c in self.events_per_distance if isinstance(e, EuclideanLaplace))
            apart = [(EuclideanLaplace(e.dimension, e.shift * distance), c) for e, c in behind]
            return min(pure, epsilon(apart, delta))
        if not self.proven or self.mu_per_distance is None:
            raise HeuristicError(f"a release of status {self.status!r} has no curve over distance: {self.reason}")
        return epsilon_of_mu(self.mu_per_distance * distance, delta)

    def meaning(self) -> Meaning:
        """What the promise means for an attacker, from its own trade-off curve.

        Raises
        ------
        HeuristicError
            If nothing is proven, or if the promise is a curve over distance.
        """
        if self.mu is not None:
            return meaning_of_mu(self.mu)
        if self.events:
            from fedveil.accounting.composition import curve

            return meaning_of_curve(*curve(self.events, self.relation))
        deltas = np.geomspace(1e-12, 0.5, 400)
        return meaning_of_curve(np.array([self.epsilon(float(d)) for d in deltas]), deltas)

    def of_group(self, size: int) -> Guarantee:
        """The promise for several units together, such as all records of one person; this one has to be for one.

        Mu grows by the factor `size`. Under Poisson sampling the number of sampled records is binomial, and the
        mixture of their shifts bounds the loss (Ganesh 2024, arXiv 2401.10294); under replace-one no credit is taken
        for the sampling of groups.

        Raises
        ------
        FieldError
            For a kind of promise that has no such bound here.
        """
        size = require_count("group", size)
        if size == 1 or not self.proven:
            return self
        if self.group != 1:
            raise FieldError("group", self.group, "start from the promise for one unit")
        if self.mu is not None:
            slope = None if self.mu_per_distance is None else size * self.mu_per_distance
            return replace(self, mu=size * self.mu, mu_per_distance=slope, group=size)
        if self.rho is not None:
            return replace(self, rho=size**2 * self.rho, group=size)
        if not self.events:
            raise FieldError("group", size, "a d-private promise is about vectors, not about units")
        if self.relation == "add/remove" and size > SPARE:
            accepted = f"must be at most {SPARE} under add/remove with sampling, or take zero-out"
            raise FieldError("group", size, accepted)
        sampled = self.relation != "replace-one"
        return replace(self, events=tuple((grown(e, size, sampled), c) for e, c in self.events), group=size)

    def of_record(self) -> Guarantee:
        """The promise for one record of a protected person.

        Where neighbours differ in a person who comes, goes or counts zero, a person who loses one of her records still
        moves the clipped mean by up to twice its bound: mu doubles. Under replace-one it is the promise for the person.

        Raises
        ------
        FieldError
            If it is no promise for persons.
        """
        if self.unit != "person":
            raise FieldError("unit", self.unit, "must be a person")
        if self.relation == "replace-one" or not self.proven:
            return replace(self, unit="record")
        if self.mu is not None:
            return replace(self, unit="record", mu=2 * self.mu)
        return replace(self, unit="record", events=tuple((doubled(event), count) for event, count in self.events))

    def describe(self, delta: float | None = None) -> str:
        """One line for a table, with unit, relation, trust and scope; an epsilon only where one is proven."""
        if self.status == "none":
            return "none"
        unit = self.unit if self.group == 1 else f"{self.group} {self.unit}s"
        sizes = {None: "", True: ", silo sizes public", False: ", silo sizes private"}[self.public_size]
        where = f"{unit}, {self.trust}, {self.scope}{sizes}"
        if self.status == "heuristic":
            return f"heuristic ({where})"
        if self.by_distance:
            each, apart, choice = self.cost, self.hypotheses_apart, ""
            kind = "mu" if self.epsilon_per_distance is None else "eps"
            if apart is not None:
                choice = f"; the choice among hypotheses {apart:.3g} apart: {kind}={rounded_up(each * apart, 3)}"
            promise = f"{rounded_up(each, 3)}-d-private" if kind == "eps" else f"mu={rounded_up(each, 3)} per distance"
            return f"{self.status} {promise} ({where}){choice}"
        if delta is None:
            known = f"mu={rounded_up(self.mu)}" if self.mu is not None else f"rho={rounded_up(self.rho or 0.0)}"
            parameter = "composed by PLD" if self.events else known
            return f"{self.status} {parameter} ({self.relation}, {where})"
        epsilon = self.epsilon(delta)
        flag = ", vacuous" if epsilon > VACUOUS else ""
        return f"{self.status} eps={rounded_up(epsilon)} at delta={delta:g} ({self.relation}, {where}{flag})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {**vars(self), "conditions": list(self.conditions)}
        values.pop("text", None)
        values |= {name: events_to_list(values[name]) for name in ("events", "events_per_distance")}
        return {k: v for k, v in values.items() if k not in _OPTIONAL or v != _OPTIONAL[k]}

    @cached_property
    def text(self) -> str:
        """`to_dict` as JSON, keys in alphabetical order."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Guarantee:
        """Inverse of `to_dict`."""
        events = {name: events_from_list(values.get(name, [])) for name in ("events", "events_per_distance")}
        return cls(**{**values, "conditions": tuple(values["conditions"]), **events})


def unprotected(trust: Trust = "central") -> Guarantee:
    """The guarantee of a release without noise: none."""
    return Guarantee(unit="client", relation="zero-out", trust=trust, status="none", scope="round")


def guarantee_values(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """A guarantee for JSON; epsilon and delta are there only where an epsilon is proven."""
    values = {k: v for k, v in guarantee.to_dict().items() if v not in (None, "", [])}
    if guarantee.proven and not guarantee.by_distance:
        epsilon = guarantee.epsilon(delta)
        values |= {"epsilon": epsilon, "delta": delta, "vacuous": epsilon > VACUOUS}
        values |= {"meaning": guarantee.meaning().to_dict()}
        if guarantee.unit == "record" and guarantee.group == 1:
            values |= {"epsilon_of_10_records": guarantee.of_group(10).epsilon(delta)}
        if guarantee.unit == "person":
            values |= {"epsilon_of_one_record": guarantee.of_record().epsilon(delta)}
    return {"text": guarantee.describe(delta), **values}


def total(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Compose the releases of one party into one statement about all of them.

    Parameters
    ----------
    guarantees : iterable of Guarantee
        Per-round guarantees of one party, of one unit, relation and trust. Mu composes exactly; events are counted and
        composed by PLD, with mu as Gaussian events; d-privacy adds up, and keeps the releases behind it for
        `epsilon_at`; one release without a proof makes the total one without a proof.

    Raises
    ------
    FieldError
        If there is nothing to compose, or units, relations or kinds of parameter are mixed.
    """
    parts = list(guarantees)
    if not parts:
        raise FieldError("guarantees", [], "nothing was released, so there is nothing to compose")
    first = parts[0]
    for part in parts:
        if any(getattr(part, name) != getattr(first, name) for name in _SHARED):
            raise FieldError("guarantees", part.describe(), f"must share {', '.join(_SHARED)} with the others")
    far = max((p.hypotheses_apart for p in parts if p.hypotheses_apart is not None), default=None)
    first = replace(first, hypotheses_apart=far)
    for status in ("none", "heuristic"):
        weak = [p for p in parts if p.status == status]
        if weak:
            return replace(weak[0], scope="total", hypotheses_apart=far)
    conditions = tuple(dict.fromkeys(c for p in parts for c in p.conditions))
    proven: Status = "conditional" if conditions else "formal"
    if all(p.mu is not None for p in parts):
        mu = compose_mu(p.mu or 0.0 for p in parts)
        slopes = [p.mu_per_distance for p in parts if p.mu_per_distance is not None]
        slope = compose_mu(slopes) if len(slopes) == len(parts) else None
        return replace(first, scope="total", status=proven, mu=mu, mu_per_distance=slope, conditions=conditions)
    if all(p.by_distance and p.mu_per_distance is not None for p in parts):
        slope = compose_mu(p.mu_per_distance or 0.0 for p in parts)
        return replace(first, scope="total", status=proven, mu_per_distance=slope, conditions=conditions)
    if any(p.events for p in parts) and all(p.events or p.mu is not None for p in parts):
        pairs: list[tuple[Event, int]] = [pair for p in parts for pair in p.events]
        pairs += [(Gaussian(FACTOR[p.relation] / p.mu), 1) for p in parts if p.mu]
        events = tuple(grouped(pairs).items())
        return replace(
            first, scope="total", status=proven, mu=None, mu_per_distance=None, events=events, conditions=conditions
        )
    if all(not p.by_distance and not p.events for p in parts):  # mu-GDP is (mu^2 / 2)-zCDP
        rho = math.fsum(p.rho if p.rho is not None else (p.mu or 0.0) ** 2 / 2 for p in parts)
        return replace(
            first, scope="total", status=proven, mu=None, mu_per_distance=None, rho=rho, conditions=conditions
        )
    if all(p.epsilon_per_distance is not None for p in parts):
        added = math.fsum(p.epsilon_per_distance or 0.0 for p in parts)
        whole = all(p.events_per_distance for p in parts)
        behind = tuple(grouped(pair for p in parts for pair in p.events_per_distance).items()) if whole else ()
        return replace(
            first,
            scope="total",
            status=proven,
            epsilon_per_distance=added,
            events_per_distance=behind,
            conditions=conditions,
        )
    kinds = [p.describe() for p in parts]
    raise FieldError("guarantees", kinds, "rho or d-privacy and the others do not compose into one number")
