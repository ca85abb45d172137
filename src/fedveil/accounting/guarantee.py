"""Guarantees: a release's proven bound, with unit, relation, trust, scope, and the conditions of the proof."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from fedveil.accounting.bounds import (
    GDP,
    PARAMETERS,
    Bound,
    Heuristic,
    OverDistance,
    Unprotected,
    bound_from,
    composed,
)
from fedveil.accounting.events import Relation
from fedveil.checks import Count, NonNegative, Parameters, SilosOfPerson
from fedveil.errors import (
    FieldError,
    require_a,
    require_choice,
    require_count,
    require_non_negative,
)
from fedveil.gdp import Meaning, rounded_up

Unit = Literal["client", "record", "person", "parameter vector", "region", "person region"]
Trust = Literal["central", "local", "trusted sum", "secure sum"]
Status = Literal["formal", "conditional", "heuristic", "none"]
Scope = Literal["round", "total"]
PARTS: tuple[Unit, ...] = (  # units that are part of a client's data
    "record",
    "person",
    "region",
    "person region",
)
REGIONS: tuple[Unit, ...] = (
    "region",
    "person region",
)  # units that protect marked coordinates only
_PARTS_OF: dict[Unit, tuple[Unit, ...]] = {
    "client": PARTS,
    "person": ("record", "region", "person region"),
    "record": ("region",),
    "person region": ("region",),
}

_SHARED = (
    "unit",
    "relation",
    "trust",
    "group",
    "public_size",
)  # the same in all guarantees of one total
# Defaults are not written. A guarantee that was written before a field existed is read with its default.
_OPTIONAL: dict[str, Any] = {
    "group": 1,
    "silos_per_person": 1,
    "public_size": None,
    "hypotheses_apart": None,
}

VACUOUS = 20.0  # an epsilon above this is printed with a warning: it excludes nothing in practice

# Texts of the conditions, the same in every method, plan and reading. LIVENESS belongs to every proven local guarantee:
# a failed client answers with noise, but a dead or slow process does not answer.
LIVENESS = "whether a client's process lives, and how long it takes, does not depend on its data"
NO_FAILURE = "whether a silo fails outside its noisy steps does not depend on one record or person"
MARKS_ARE_PUBLIC = (
    "which coordinates are marked does not follow what they hold: marks are inputs, or follow "
    "unmarked coordinates alone"
)
APP_LOOP = (
    "the app's own code reads the data of a site through its loop alone and writes none of them, and neither its "
    "optimiser's state nor its learning rate follows them"
)
KEYS_ARE_SECRET = (
    "the honest sites' keys stay secret for ever, and X25519, HKDF and ChaCha20 are what they are taken for "
    "(docs/secure-sum.md)"
)
SUM_IS_TRUSTED = "whoever receives single shares is trusted to hand on their sum alone"
FIXED_COHORT = "the planned cohort stays the same, and is not sampled, whoever belongs"
BEFORE_ROUNDING = (
    "the server did what its code says: noise did not cover how a machine rounds then (SECURITY.md)"
)
BEFORE_ORDER = (
    "the records are no images, or the server did what its code says: noise did not cover how a machine rounds where "
    "the memory order of images follows one of them (SECURITY.md)"
)
DOUBTS = (BEFORE_ROUNDING, BEFORE_ORDER)  # conditions of releases that earlier versions made


@dataclass(frozen=True, kw_only=True)
class Guarantee(Parameters):
    """Privacy guarantee of a release, or the statement that it has none.

    Parameters
    ----------
    unit : {"client", "record", "person", "parameter vector", "region", "person region"}
        Protected unit: all data of a client, one record, all records of one person, or a client's vector of parameters.
        A region is the content of the marked coordinates of one record, or of all records of one person. Labels, other
        coordinates, the marks and membership are then not protected (`fedveil.learning.regions`).
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs. For a region: its content against the blank value, or against other content.
    trust : {"central", "local", "trusted sum", "secure sum"}
        Trusted party. Central: the server, which sees updates in the clear. Local: nobody. Trusted sum: the receiver of
        single shares, which passes on only their sum. Secure sum: nobody, as shares are encrypted.
    scope : {"round", "total"}
        One release, or all of a party's releases.
    bound : Bound
        Proven bound (`fedveil.accounting.bounds`): GDP, ZCDP, PLD, MetricGDP, MetricDP, Heuristic or Unprotected.
    group : int
        Number of units that are protected together, such as 10 records of one person (`of_group`).
    silos_per_person : int
        Largest number of silos at which one person may have records; above 1 only for persons (`of_silos`).
    public_size : bool, optional
        Whether the proof takes the number of a silo's records as public; only for records and persons.
    hypotheses_apart : float, optional
        Largest Euclidean distance between the server's hypotheses; in a total, the largest of any round. The client's
        choice among them is only bounded by `epsilon_at` this distance.
    conditions : tuple of str
        Conditions of the proof. A proven bound with conditions is conditional; without conditions it is formal.

    Examples
    --------
    >>> from fedveil.accounting.bounds import GDP
    >>> who = {"unit": "record", "relation": "zero-out", "trust": "local", "public_size": True}
    >>> promise = fv.Guarantee(**who, scope="total", bound=GDP(0.5))
    >>> promise.describe(1e-5)
    'formal eps=1.994 at delta=1e-05 (zero-out, record, local, total, silo sizes public)'
    >>> promise.of_group(10).describe(1e-5)
    'formal eps=33.11 at delta=1e-05 (zero-out, 10 records, local, total, silo sizes public, vacuous)'
    """

    unit: Unit
    relation: Relation
    trust: Trust
    scope: Scope
    bound: Bound
    group: Count = 1
    silos_per_person: SilosOfPerson = 1
    public_size: bool | None = None
    hypotheses_apart: NonNegative | None = None
    conditions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a guarantee that contradicts itself."""
        super().__post_init__()
        object.__setattr__(self, "conditions", tuple(self.conditions))
        if (self.public_size is not None) != (self.unit in PARTS):
            raise FieldError(
                "public_size",
                self.public_size,
                "is stated for records and persons, and only for them",
            )
        if self.silos_per_person > 1 and self.unit != "person":
            raise FieldError(
                "silos_per_person",
                self.silos_per_person,
                "is stated for persons, and only for them",
            )
        if self.conditions and not self.proven:
            raise FieldError("conditions", self.conditions, "belong to a proven bound")

    @property
    def proven(self) -> bool:
        """Whether a definition of privacy holds (under the stated conditions, if any)."""
        return not isinstance(self.bound, Heuristic | Unprotected)

    @property
    def status(self) -> Status:
        """Kind of the guarantee.

        "formal": a definition of privacy holds. "conditional": it holds under `conditions`. "heuristic": none holds.
        "none": there is no noise.
        """
        if self.proven:
            return "conditional" if self.conditions else "formal"
        return "heuristic" if isinstance(self.bound, Heuristic) else "none"

    @property
    def by_distance(self) -> bool:
        """Whether the guarantee only compares vectors at a given distance (d-privacy); no single epsilon then holds for all."""
        return isinstance(self.bound, OverDistance)

    @property
    def mu(self) -> float | None:
        """Mu of Gaussian DP; None for other kinds of bound."""
        return self.bound.mu if isinstance(self.bound, GDP) else None

    @property
    def reason(self) -> str:
        """Reason why the guarantee is only a heuristic; empty for all others."""
        return self.bound.reason if isinstance(self.bound, Heuristic) else ""

    @property
    def cost(self) -> float:
        """Number by which guarantees of one kind are ranked (`Bound.cost`)."""
        return self.bound.cost

    def epsilon(self, delta: float) -> float:
        """Return epsilon at a delta.

        Raises
        ------
        HeuristicError
            If nothing is proven, or if the promise is a curve over distance.
        """
        return self.bound.epsilon(delta, self.relation)

    def epsilon_at(self, distance: float, delta: float) -> float:
        """Return epsilon between two runs in which one client's vectors differ by at most the distance in each round.

        The vector is the client's clipped update; under d-privacy it is the model before noise.

        Raises
        ------
        HeuristicError
            If there is no curve over distance.
        """
        return self.bound.epsilon_at(require_non_negative("distance", distance), delta)

    def meaning(self) -> Meaning:
        """Return limits on an attacker's success, from the guarantee's own trade-off curve.

        Raises
        ------
        HeuristicError
            If nothing is proven, or if the promise is a curve over distance.
        """
        return self.bound.meaning(self.relation)

    def of_group(self, size: int) -> "Guarantee":
        """Return the guarantee for `size` units together, such as all records of one person.

        `self` has to be the guarantee for one unit.

        Raises
        ------
        FieldError
            If FedVeil has no such bound for this kind of promise.
        """
        size = require_count("group", size)
        if size == 1 or not self.proven:
            return self
        if self.group != 1:
            raise FieldError("group", self.group, "start from the promise for one unit")
        return replace(self, bound=self.bound.of_group(size, self.relation), group=size)

    def of_silos(self, count: int) -> "Guarantee":
        """Return the guarantee for a person with data at up to `count` silos.

        In one sum all her silos move the result together, as a group does; releases of single silos compose. So mu
        grows by the factor `count` in a sum or under a trusted server, and by the root of `count` under local trust. A
        guarantee that already holds for more silos than `count` is unchanged.

        Raises
        ------
        FieldError
            If the guarantee is not for persons, or FedVeil has no such bound for its kind.
        """
        count = require_count("silos_per_person", count)
        if self.unit != "person":
            raise FieldError("unit", self.unit, "is at one silo: only a person can be at several")
        if not self.proven:
            return replace(self, silos_per_person=count)
        before = self.silos_per_person
        others = [
            condition for condition in self.conditions if condition != silos_condition(before)
        ]
        conditions = _distinct([silos_condition(count), *others])
        return replace(
            self,
            bound=self._bound_of_silos(count),
            silos_per_person=count,
            conditions=conditions,
        )

    def _bound_of_silos(self, count: int) -> Bound:
        before = self.silos_per_person
        if count <= before:
            return self.bound
        if self.trust == "local":
            return composed([self.bound] * math.ceil(count / before), self.relation)
        if before == 1:
            return self.bound.of_group(count, self.relation)
        return self.bound.scaled(count / before)

    def of_part(self, unit: Unit) -> "Guarantee":
        """Return the guarantee for a part of the unit: a record, person or region of a client, a record of a person.

        Zero-out and add/remove compare a whole with its absence. A part that changes can move the whole's clipped
        contribution by twice the bound, so mu doubles. A sampled whole is sampled as often as before, and only steps
        that sample it see the change (`fedveil.accounting.events.Changed`). Under replace-one the guarantee is that of
        the whole. For a person it holds only if she is at no other client (`of_silos`). The content of a region changes
        to other content or to blank. Membership is the same in both inputs, so add/remove of the whole becomes
        replace-one for a region.

        Raises
        ------
        FieldError
            If the guarantee is for a unit that has no such parts.
        """
        if unit not in _PARTS_OF.get(self.unit, ()):
            raise FieldError("unit", self.unit, f"has no {unit} as its part")
        sizes = self.public_size
        relation = self.relation
        if self.unit == "client":
            sizes = self.relation != "add/remove"
        if unit in REGIONS:
            sizes = True
            relation = "replace-one" if self.relation == "add/remove" else self.relation
        bound = self.bound
        if self.proven and self.relation != "replace-one":
            bound = bound.of_change()
        conditions = self.conditions
        if unit in ("person", "person region") and self.proven:
            conditions = _distinct([silos_condition(1), *conditions])
        whole = replace(self, silos_per_person=1)
        return replace(
            whole,
            unit=unit,
            relation=relation,
            public_size=sizes,
            bound=bound,
            conditions=conditions,
        )

    def describe(self, delta: float | None = None) -> str:
        """Return one line for a table: status, unit, relation, trust, scope, and epsilon if one is proven."""
        if isinstance(self.bound, Unprotected):
            return "none"
        sizes = {None: "", True: ", silo sizes public", False: ", silo sizes private"}
        limits = (
            ", marked content alone: no labels, nothing else"
            if self.unit in REGIONS
            else sizes[self.public_size]
        )
        where = f"{self._units}, {self.trust}, {self.scope}{limits}"
        if isinstance(self.bound, Heuristic):
            return f"heuristic ({where})"
        if isinstance(self.bound, OverDistance):
            return (
                f"{self.status} {self.bound.describe()} ({where}){self._choice(self.bound.symbol)}"
            )
        if delta is None:
            return f"{self.status} {self.bound.describe()} ({self.relation}, {where})"
        epsilon = self.epsilon(delta)
        flag = ", vacuous" if epsilon > VACUOUS else ""
        return f"{self.status} eps={rounded_up(epsilon)} at delta={delta:g} ({self.relation}, {where}{flag})"

    @property
    def _units(self) -> str:
        units = self.unit if self.group == 1 else f"{self.group} {self.unit}s"
        if self.silos_per_person > 1:
            units += f" at {self.silos_per_person} silos"
        return units

    def _choice(self, symbol: str) -> str:
        """Describe, in a text, the cost of the client's choice among hypotheses; empty without a choice."""
        apart = self.hypotheses_apart
        if apart is None:
            return ""
        most = rounded_up(self.cost * apart, 3)
        return f"; the choice among hypotheses {apart:.3g} apart: {symbol}={most}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        first = ("unit", "relation", "trust", "status", "scope")
        values: dict[str, Any] = {name: getattr(self, name) for name in first}
        values |= dict.fromkeys(("mu", "mu_per_distance", "rho", "epsilon_per_distance"))
        for name, value in self.bound.values().items():
            if name in PARAMETERS:
                values[name] = value
        for name, default in _OPTIONAL.items():
            value = getattr(self, name)
            if value != default:
                values[name] = value
        return {**values, "conditions": list(self.conditions), "reason": self.reason}

    @cached_property
    def text(self) -> str:
        """Values of `to_dict` as JSON, with sorted keys."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """Read the values that `to_dict` wrote.

        Raises
        ------
        FieldError
            For values that contradict each other.
        """
        require_a("guarantee", values, Mapping, "must be a table, as to_dict makes it")
        if "status" not in values:
            raise FieldError("guarantee.status", None, "it is needed, as in a guarantee's to_dict")
        status = require_choice("status", values["status"], get_args(Status))
        own = [field.name for field in fields(cls)]
        named = {name: values[name] for name in own if name in values}
        made = cls(**named, bound=bound_from(status, values))
        implied = made.to_dict()
        for name, value in values.items():
            given = list(value) if isinstance(value, tuple) else value
            if given not in (None, "", []) and implied.get(name, _OPTIONAL.get(name)) != given:
                raise FieldError(
                    name, value, f"does not go with the rest, which makes it {implied.get(name)!r}"
                )
        return made


def of_round(
    bound: Bound,
    trust: Trust,
    relation: Relation = "zero-out",
    *conditions: str,
) -> Guarantee:
    """Make a client's guarantee for one round."""
    return Guarantee(
        unit="client",
        relation=relation,
        trust=trust,
        scope="round",
        bound=bound,
        conditions=conditions,
    )


def unprotected(trust: Trust = "central") -> Guarantee:
    """Make the statement that a release has no noise and no guarantee."""
    return of_round(Unprotected(), trust)


def guarantee_values(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """Return a guarantee as plain values for JSON, with epsilon and delta only if an epsilon is proven."""
    values: dict[str, Any] = {"text": guarantee.describe(delta)}
    for name, value in guarantee.to_dict().items():
        if value not in (None, "", []):
            values[name] = value
    if not guarantee.proven or guarantee.by_distance:
        return values
    epsilon = guarantee.epsilon(delta)
    values |= {"epsilon": epsilon, "delta": delta, "vacuous": epsilon > VACUOUS}
    values["meaning"] = guarantee.meaning().to_dict()
    if guarantee.unit == "record" and guarantee.group == 1:
        values["epsilon_of_10_records"] = guarantee.of_group(10).epsilon(delta)
    if guarantee.unit == "person":
        values["epsilon_of_one_record"] = guarantee.of_part("record").epsilon(delta)
    return values


def total(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Compose the releases of one party into one guarantee for all of them.

    Parameters
    ----------
    guarantees : iterable of Guarantee
        Guarantees of rounds, of one party, unit, relation and trust. Their bounds compose by
        `fedveil.accounting.bounds`; one release without a proof makes a total without a proof.

    Raises
    ------
    FieldError
        If there is nothing to compose, or units, relations or kinds of parameter differ.
    """
    parts = list(guarantees)
    if not parts:
        raise FieldError("guarantees", [], "nothing was released, so there is nothing to compose")
    first = parts[0]
    conditions: list[str] = []
    distances: list[float] = []
    for part in parts:
        if any(getattr(part, name) != getattr(first, name) for name in _SHARED):
            raise FieldError(
                "guarantees", part.describe(), f"must share {', '.join(_SHARED)} with the others"
            )
        conditions += part.conditions
        if part.hypotheses_apart is not None:
            distances.append(part.hypotheses_apart)
    bound = composed([part.bound for part in parts], first.relation)
    if isinstance(bound, Heuristic | Unprotected):
        conditions = []
    return replace(
        first,
        scope="total",
        bound=bound,
        silos_per_person=min(part.silos_per_person for part in parts),
        hypotheses_apart=max(distances, default=None),
        conditions=_distinct(conditions),
    )


def _distinct(conditions: Iterable[str]) -> tuple[str, ...]:
    """Drop repeated conditions, and keep the order."""
    return tuple(dict.fromkeys(conditions))


def dropout_condition(silos: int, tolerated: int) -> str:
    """Return the condition of a trusted sum: how many silos' noise may be missing."""
    return f"at most {tolerated} of {silos} silos drop out, lie about their noise or pool what they know"


def size_condition(count: int, what: str) -> str:
    """Return the condition of a promise under add/remove: the largest size of a silo, in "examples" or "people"."""
    return f"no silo has more than {count} {what}"


def silos_condition(silos: int) -> str:
    """Return the condition of a promise for persons: at how many silos one person may have records."""
    silo = "silo" if silos == 1 else "silos"
    return f"no person is at more than {silos} {silo}"


def collusion_condition(colluding: int, least: int) -> str:
    """Return the condition of a secure sum: how many sites may be dishonest."""
    return f"at most {colluding} of any {least} sites pool what they know with the server or leave out their noise"


def read_off(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the condition for configuration keys that were computed from the private data; empty without such keys."""
    if not keys:
        return ()
    same = "would be the same without the one who is protected, though read off the data"
    return (f"{', '.join(keys)} of the configuration {same}",)


def conditions_of(unit: Unit, trust: Trust, relation: Relation) -> tuple[str, ...]:
    """Return the conditions that every promise to this unit has under a trust model and a relation."""
    conditions = []
    if trust == "trusted sum":
        conditions.append(SUM_IS_TRUSTED)
    if trust == "secure sum":
        conditions.append(KEYS_ARE_SECRET)
    if trust != "central":
        conditions.append(LIVENESS)
    elif relation == "add/remove" and unit == "client":
        conditions.append(FIXED_COHORT)
    if unit in REGIONS:
        conditions.append(MARKS_ARE_PUBLIC)
    if unit in PARTS:
        conditions.append(NO_FAILURE)
    return tuple(conditions)


def promise_of_mu(
    unit: Unit,
    trust: Trust,
    relation: Relation,
    scope: Scope,
    mu: float,
    first: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> Guarantee:
    """Make a promise of mu-GDP; its conditions are `first`, those of `conditions_of`, and `more`."""
    promise = of_round(
        GDP(mu),
        trust,
        relation,
        *first,
        *conditions_of(unit, trust, relation),
        *more,
    )
    public_size = relation != "add/remove" if unit in PARTS else None
    return replace(promise, unit=unit, scope=scope, public_size=public_size)
