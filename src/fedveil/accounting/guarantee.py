"""What a release promises: unit, relation, trust, status, parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from fedveil.errors import FieldError, HeuristicError, require_choice, require_non_negative
from fedveil.gdp import compose_mu, epsilon_of_mu, epsilon_of_rho

Unit = Literal["client", "record", "parameter vector"]
Relation = Literal["zero-out", "add/remove", "replace-one"]
Trust = Literal["central", "local"]
Status = Literal["formal", "conditional", "heuristic", "none"]
Scope = Literal["round", "total"]

_CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind)
    for name, kind in (("unit", Unit), ("relation", Relation), ("trust", Trust), ("status", Status), ("scope", Scope))
}

VACUOUS = 20.0  # an epsilon above this is printed, and flagged: it excludes nothing in practice


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What is proven about a release, or that nothing is.

    Parameters
    ----------
    unit : {"client", "record", "parameter vector"}
        What is protected: all data of a client, one record, or the vector that a client holds.
    relation : {"zero-out", "add/remove", "replace-one"}
        Which inputs are neighbours.
    trust : {"central", "local"}
        Whether the server is trusted with the clear updates.
    status : {"formal", "conditional", "heuristic", "none"}
        Formal: a definition holds. Conditional: it holds if `conditions` do. Heuristic: noise was added, no definition
        holds. None: no noise at all.
    scope : {"round", "total"}
        One release, or all of a party's releases.
    mu : float, optional
        Gaussian-DP parameter; only for formal and conditional guarantees under a relation.
    mu_per_distance : float, optional
        The curve behind `mu`: if a client's clipped update moves by a Euclidean distance D (in a total: in every
        round, given the same past), the release is (mu_per_distance * D)-GDP.
    rho : float, optional
        Zero-concentrated DP parameter (discrete Gaussian noise).
    epsilon_per_distance : float, optional
        d-privacy: log-ratios are at most this times the Euclidean distance between the two vectors (in a total: the
        largest of any round).
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
    conditions: tuple[str, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse a guarantee that contradicts itself."""
        for name, choices in _CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        numbers = [v for v in (self.mu, self.rho, self.epsilon_per_distance) if v is not None]
        for value in numbers:
            require_non_negative("guarantee", value)
        if self.mu_per_distance is not None and (self.mu is None or not self.mu_per_distance >= 0):
            raise FieldError("mu_per_distance", self.mu_per_distance, "goes with a mu and is at least 0")
        if self.status in ("heuristic", "none") and numbers:
            raise FieldError("status", self.status, "carries no privacy parameter: nothing is proven")
        if self.status in ("formal", "conditional") and len(numbers) != 1:
            raise FieldError("status", self.status, "needs exactly one of mu, rho and epsilon_per_distance")
        if (self.status == "conditional") != bool(self.conditions):
            raise FieldError("conditions", self.conditions, "belong to a conditional guarantee, and it needs them")

    @property
    def proven(self) -> bool:
        """Whether a definition holds (under the stated conditions, if any)."""
        return self.status in ("formal", "conditional")

    @property
    def cost(self) -> float:
        """The one parameter, to rank guarantees of one kind by; 0 where nothing is proven."""
        return next((v for v in (self.mu, self.rho, self.epsilon_per_distance) if v is not None), 0.0)

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
        if self.mu is None:
            raise HeuristicError("a d-private release has no epsilon without a distance; see epsilon_per_distance")
        return epsilon_of_mu(self.mu, delta)

    def epsilon_at(self, distance: float, delta: float) -> float:
        """Epsilon between two runs whose one difference is a client's protected vector, by at most a distance a round.

        The vector is its clipped update; under d-privacy, the model that it noises.

        Raises
        ------
        HeuristicError
            If there is no curve over distance.
        """
        distance = require_non_negative("distance", distance)
        if self.proven and self.epsilon_per_distance is not None:
            return self.epsilon_per_distance * distance
        if not self.proven or self.mu_per_distance is None:
            raise HeuristicError(f"a release of status {self.status!r} has no curve over distance: {self.reason}")
        return epsilon_of_mu(self.mu_per_distance * distance, delta)

    def describe(self, delta: float | None = None) -> str:
        """One line for a table, with unit, relation, trust and scope; an epsilon only where one is proven."""
        if self.status == "none":
            return "none"
        where = f"{self.unit}, {self.trust}, {self.scope}"
        if self.status == "heuristic":
            return f"heuristic ({where})"
        if self.epsilon_per_distance is not None:
            return f"{self.status} {self.epsilon_per_distance:.3g}-d-private ({where})"
        if delta is None:
            parameter = f"rho={self.rho:.4g}" if self.mu is None else f"mu={self.mu:.4g}"
            return f"{self.status} {parameter} ({self.relation}, {where})"
        epsilon = self.epsilon(delta)
        flag = ", vacuous" if epsilon > VACUOUS else ""
        return f"{self.status} eps={epsilon:.4g} at delta={delta:g} ({self.relation}, {where}{flag})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "conditions": list(self.conditions)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Guarantee:
        """Inverse of `to_dict`."""
        return cls(**{**values, "conditions": tuple(values["conditions"])})


def unprotected(trust: Trust = "central") -> Guarantee:
    """The guarantee of a release without noise: none."""
    return Guarantee(unit="client", relation="zero-out", trust=trust, status="none", scope="round")


def total(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Compose the releases of one party into one statement about all of them.

    Parameters
    ----------
    guarantees : iterable of Guarantee
        Per-round guarantees of one party, of one unit, relation and trust. Mu composes exactly; d-privacy adds up;
        one release without a proof makes the total one without a proof.

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
        if (part.unit, part.relation, part.trust) != (first.unit, first.relation, first.trust):
            raise FieldError("guarantees", part.describe(), "must share unit, relation and trust model")
    for status in ("none", "heuristic"):
        weak = [p for p in parts if p.status == status]
        if weak:
            return replace(weak[0], scope="total")
    conditions = tuple(dict.fromkeys(c for p in parts for c in p.conditions))
    proven: Status = "conditional" if conditions else "formal"
    if all(p.mu is not None for p in parts):
        mu = compose_mu(p.mu or 0.0 for p in parts)
        slopes = [p.mu_per_distance for p in parts if p.mu_per_distance is not None]
        slope = compose_mu(slopes) if len(slopes) == len(parts) else None
        return replace(first, scope="total", status=proven, mu=mu, mu_per_distance=slope, conditions=conditions)
    if all(p.epsilon_per_distance is None for p in parts):  # mu-GDP is (mu^2 / 2)-zCDP
        rho = math.fsum(p.rho if p.rho is not None else (p.mu or 0.0) ** 2 / 2 for p in parts)
        return replace(
            first, scope="total", status=proven, mu=None, mu_per_distance=None, rho=rho, conditions=conditions
        )
    if all(p.epsilon_per_distance is not None for p in parts):
        added = math.fsum(p.epsilon_per_distance or 0.0 for p in parts)
        return replace(first, scope="total", status=proven, epsilon_per_distance=added, conditions=conditions)
    raise FieldError("guarantees", [p.describe() for p in parts], "mu and d-privacy do not compose into one number")
