"""What a release promises: unit, relation, trust, scope, the bound that is proven, and the conditions it rests on."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from fedveil.accounting.bounds import GDP, PARAMETERS, Bound, Heuristic, OverDistance, Unprotected, bound_from, composed
from fedveil.accounting.events import Relation
from fedveil.checks import Count, NonNegative, Parameters, SilosOfPerson
from fedveil.errors import FieldError, require_a, require_choice, require_count, require_non_negative
from fedveil.gdp import Meaning, rounded_up

Unit = Literal["client", "record", "person", "parameter vector"]
Trust = Literal["central", "local", "trusted sum", "secure sum"]
Status = Literal["formal", "conditional", "heuristic", "none"]
Scope = Literal["round", "total"]
PARTS: tuple[Unit, ...] = ("record", "person")  # units that are a part of a client's data

_SHARED = ("unit", "relation", "trust", "group", "public_size")  # by all guarantees of one total
# Not written at these values; what was written before there was such a field is read at them.
_OPTIONAL: dict[str, Any] = {"group": 1, "silos_per_person": 1, "public_size": None, "hypotheses_apart": None}

VACUOUS = 20.0  # an epsilon above this is printed, and flagged: it excludes nothing in practice

# Conditions, in the words of every method, plan and reading
# Of every proven local guarantee: a failure is answered with noise, a dead or slow process is not.
LIVENESS = "whether a client's process lives, and how long it takes, does not depend on its data"
NO_FAILURE = "whether a silo fails outside its noisy steps does not depend on one record or person"
KEYS_ARE_SECRET = (
    "the honest sites' keys stay secret for ever, and X25519, HKDF and ChaCha20 are what they are taken for "
    "(docs/secure-sum.md)"
)
SUM_IS_TRUSTED = "whoever receives single shares is trusted to hand on their sum alone"
FIXED_COHORT = "the planned cohort stays the same, and is not sampled, whoever belongs"
BEFORE_ROUNDING = "the server did what its code says: noise did not cover how a machine rounds then (SECURITY.md)"
BEFORE_ORDER = (
    "the records are no images, or the server did what its code says: noise did not cover how a machine rounds where "
    "the memory order of images follows one of them (SECURITY.md)"
)
DOUBTS = (BEFORE_ROUNDING, BEFORE_ORDER)  # of releases of earlier versions


@dataclass(frozen=True, kw_only=True)
class Guarantee(Parameters):
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
    scope : {"round", "total"}
        One release, or all of a party's releases.
    bound : Bound
        What holds (see `fedveil.accounting.bounds`): GDP, ZCDP, PLD, MetricGDP, MetricDP, Heuristic or Unprotected.
    group : int
        Units protected together: 10 records of one person instead of one. See `of_group`.
    silos_per_person : int
        Of a person's promise: the most silos at which she may be for it to hold. See `of_silos`.
    public_size : bool, optional
        Of a record's promise: whether the number of records of its silo is taken as public.
    hypotheses_apart : float, optional
        Largest distance between the hypotheses that the server offered (in a total: of any round). The client's choice
        among them is promised no more than `epsilon_at` of this distance, or nothing where that is not proven.
    conditions : tuple of str
        What must hold besides: a proven bound with conditions is conditional, without it is formal.

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
            raise FieldError("public_size", self.public_size, "is stated for records and persons, and only for them")
        if self.silos_per_person > 1 and self.unit != "person":
            raise FieldError("silos_per_person", self.silos_per_person, "is stated for persons, and only for them")
        if self.conditions and not self.proven:
            raise FieldError("conditions", self.conditions, "belong to a proven bound")

    @property
    def proven(self) -> bool:
        """Whether a definition holds (under the stated conditions, if any)."""
        return not isinstance(self.bound, Heuristic | Unprotected)

    @property
    def status(self) -> Status:
        """Formal: a definition holds; conditional: if `conditions` do; heuristic: none does; none: no noise."""
        if self.proven:
            return "conditional" if self.conditions else "formal"
        return "heuristic" if isinstance(self.bound, Heuristic) else "none"

    @property
    def by_distance(self) -> bool:
        """Whether it is a promise over a distance alone (d-privacy), without an epsilon for any two vectors."""
        return isinstance(self.bound, OverDistance)

    @property
    def mu(self) -> float | None:
        """The Gaussian-DP parameter, where the bound is one."""
        return self.bound.mu if isinstance(self.bound, GDP) else None

    @property
    def reason(self) -> str:
        """Why a heuristic is one; empty for all others."""
        return self.bound.reason if isinstance(self.bound, Heuristic) else ""

    @property
    def cost(self) -> float:
        """One number to rank guarantees of one kind by; see `Bound.cost`."""
        return self.bound.cost

    def epsilon(self, delta: float) -> float:
        """Epsilon at a delta.

        Raises
        ------
        HeuristicError
            If nothing is proven, or if the promise is a curve over distance.
        """
        return self.bound.epsilon(delta, self.relation)

    def epsilon_at(self, distance: float, delta: float) -> float:
        """Epsilon between two runs whose one difference is a client's protected vector, by at most a distance a round.

        The vector is its clipped update; under d-privacy, the model that it noises.

        Raises
        ------
        HeuristicError
            If there is no curve over distance.
        """
        return self.bound.epsilon_at(require_non_negative("distance", distance), delta)

    def meaning(self) -> Meaning:
        """What the promise means for an attacker, from its own trade-off curve.

        Raises
        ------
        HeuristicError
            If nothing is proven, or if the promise is a curve over distance.
        """
        return self.bound.meaning(self.relation)

    def of_group(self, size: int) -> "Guarantee":
        """The promise for several units together, such as all records of one person; this one has to be for one.

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
        return replace(self, bound=self.bound.of_group(size, self.relation), group=size)

    def of_silos(self, count: int) -> "Guarantee":
        """The promise for a person who may be at so many silos.

        One sum is moved by all her silos together, as by a group; releases of single silos compose. So mu grows by
        `count` in a sum or under a trusted server, and by its root without trust. A promise that holds for more silos
        than `count` is left as dear as it is.

        Raises
        ------
        FieldError
            If it is no promise for persons, or of a kind that has no such bound here.
        """
        count = require_count("silos_per_person", count)
        if self.unit != "person":
            raise FieldError("unit", self.unit, "is at one silo: only a person can be at several")
        held, bound = self.silos_per_person, self.bound
        if count > held and self.proven:
            if self.trust == "local":
                bound = composed([bound] * math.ceil(count / held), self.relation)
            else:
                bound = bound.of_group(count, self.relation) if held == 1 else bound.scaled(count / held)
        conditions = self.conditions
        if self.proven:
            others = (condition for condition in conditions if condition != few_silos(held))
            conditions = tuple(dict.fromkeys((few_silos(count), *others)))
        return replace(self, bound=bound, silos_per_person=count, conditions=conditions)

    def of_part(self, unit: Unit) -> "Guarantee":
        """The promise for one record or person among a client's data, or for one record of a protected person.

        Where neighbours differ in a whole that comes, goes or counts zero, one that changes in part still moves the
        clipped mean by up to twice the bound: mu doubles. A sampled whole is drawn as often as before, and only steps
        with it see the change (`fedveil.accounting.events.Changed`). Under replace-one it is the promise for the whole.
        A person is promised this where she is at no other client; see `of_silos`.

        Raises
        ------
        FieldError
            If it is no promise for a whole of such parts.
        """
        if unit not in {"client": PARTS, "person": PARTS[:1]}.get(self.unit, ()):
            raise FieldError("unit", self.unit, f"has no {unit} as its part")
        sizes = self.relation != "add/remove" if self.unit == "client" else self.public_size
        changes = self.proven and self.relation != "replace-one"
        bound = self.bound.of_change() if changes else self.bound
        conditions = self.conditions
        if unit == "person" and self.proven:
            conditions = tuple(dict.fromkeys((few_silos(1), *conditions)))
        whole = replace(self, silos_per_person=1)
        return replace(whole, unit=unit, public_size=sizes, bound=bound, conditions=conditions)

    def describe(self, delta: float | None = None) -> str:
        """One line for a table, with unit, relation, trust and scope; an epsilon only where one is proven."""
        if isinstance(self.bound, Unprotected):
            return "none"
        unit = self.unit if self.group == 1 else f"{self.group} {self.unit}s"
        unit += f" at {self.silos_per_person} silos" if self.silos_per_person > 1 else ""
        sizes = {None: "", True: ", silo sizes public", False: ", silo sizes private"}[self.public_size]
        where = f"{unit}, {self.trust}, {self.scope}{sizes}"
        if isinstance(self.bound, Heuristic):
            return f"heuristic ({where})"
        if isinstance(self.bound, OverDistance):
            apart, choice = self.hypotheses_apart, ""
            if apart is not None:
                most = rounded_up(self.cost * apart, 3)
                choice = f"; the choice among hypotheses {apart:.3g} apart: {self.bound.symbol}={most}"
            return f"{self.status} {self.bound.describe()} ({where}){choice}"
        if delta is None:
            return f"{self.status} {self.bound.describe()} ({self.relation}, {where})"
        epsilon = self.epsilon(delta)
        flag = ", vacuous" if epsilon > VACUOUS else ""
        return f"{self.status} eps={rounded_up(epsilon)} at delta={delta:g} ({self.relation}, {where}{flag})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {name: getattr(self, name) for name in ("unit", "relation", "trust", "status", "scope")}
        values |= dict.fromkeys(("mu", "mu_per_distance", "rho", "epsilon_per_distance"))
        values |= {k: v for k, v in self.bound.values().items() if k in PARAMETERS}
        values |= {name: getattr(self, name) for name, usual in _OPTIONAL.items() if getattr(self, name) != usual}
        return {**values, "conditions": list(self.conditions), "reason": self.reason}

    @cached_property
    def text(self) -> str:
        """`to_dict` as JSON, keys in alphabetical order."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """Inverse of `to_dict`.

        Raises
        ------
        FieldError
            For values that contradict each other.
        """
        require_a("guarantee", values, Mapping, "must be a table, as to_dict makes it")
        if "status" not in values:
            raise FieldError("guarantee.status", None, "it is needed, as in a guarantee's to_dict")
        named = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        made = cls(**named, bound=bound_from(require_choice("status", values["status"], get_args(Status)), values))
        implied = made.to_dict()
        for name, value in values.items():
            given = list(value) if isinstance(value, tuple) else value
            if given not in (None, "", []) and implied.get(name, _OPTIONAL.get(name)) != given:
                raise FieldError(name, value, f"does not go with the rest, which makes it {implied.get(name)!r}")
        return made


def of_round(bound: Bound, trust: Trust, relation: Relation = "zero-out", *conditions: str) -> Guarantee:
    """What a method promises a client in one round."""
    return Guarantee(unit="client", relation=relation, trust=trust, scope="round", bound=bound, conditions=conditions)


def unprotected(trust: Trust = "central") -> Guarantee:
    """The guarantee of a release without noise: none."""
    return of_round(Unprotected(), trust)


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
            values |= {"epsilon_of_one_record": guarantee.of_part("record").epsilon(delta)}
    return {"text": guarantee.describe(delta), **values}


def total(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Compose the releases of one party into one statement about all of them.

    Parameters
    ----------
    guarantees : iterable of Guarantee
        Per-round guarantees of one party, of one unit, relation and trust; their bounds compose by
        `fedveil.accounting.bounds`, and one release without a proof makes the total one without a proof.

    Raises
    ------
    FieldError
        If there is nothing to compose, or units, relations or kinds of parameter are mixed.
    """
    parts = list(guarantees)
    if not parts:
        raise FieldError("guarantees", [], "nothing was released, so there is nothing to compose")
    for part in parts:
        if any(getattr(part, name) != getattr(parts[0], name) for name in _SHARED):
            raise FieldError("guarantees", part.describe(), f"must share {', '.join(_SHARED)} with the others")
    apart = max((p.hypotheses_apart for p in parts if p.hypotheses_apart is not None), default=None)
    held = min(part.silos_per_person for part in parts)
    whole = replace(parts[0], scope="total", bound=Unprotected(), conditions=(), hypotheses_apart=apart)
    whole = replace(whole, silos_per_person=held)
    bound = composed((p.bound for p in parts), whole.relation)
    conditions = () if isinstance(bound, Heuristic | Unprotected) else (c for p in parts for c in p.conditions)
    return replace(whole, bound=bound, conditions=tuple(dict.fromkeys(conditions)))


def whole_noise(silos: int, tolerated: int) -> str:
    """Condition of a trusted sum: how many silos may be missing from its noise."""
    return f"at most {tolerated} of {silos} silos drop out, lie about their noise or pool what they know"


def at_most(count: int, what: str) -> str:
    """Condition of a promise under add/remove, whose rows are public in number: "examples" or "people"."""
    return f"no silo has more than {count} {what}"


def few_silos(silos: int) -> str:
    """Condition of a promise for persons: at how many silos one may be."""
    return f"no person is at more than {silos} silo{'s' * (silos > 1)}"


def few_colluding(colluding: int, least: int) -> str:
    """Condition of a secure sum: how many sites may be dishonest."""
    return f"at most {colluding} of any {least} sites pool what they know with the server or leave out their noise"


def read_off(keys: Sequence[str]) -> tuple[str, ...]:
    """Condition of a configuration whose keys hold what was read off the private data."""
    same = "would be the same without the one who is protected, though read off the data"
    return (f"{', '.join(keys)} of the configuration {same}",) if keys else ()


def conditions_of(unit: Unit, trust: Trust, relation: Relation) -> tuple[str, ...]:
    """What has to hold wherever a unit is promised something under a trust model, whoever builds it."""
    conditions: tuple[str, ...] = (SUM_IS_TRUSTED,) if trust == "trusted sum" else ()
    if trust == "secure sum":
        conditions = (KEYS_ARE_SECRET,)
    if trust != "central":
        conditions += (LIVENESS,)
    elif relation == "add/remove" and unit == "client":
        conditions += (FIXED_COHORT,)
    return (*conditions, NO_FAILURE) if unit in PARTS else conditions


def promise_of_mu(
    unit: Unit,
    trust: Trust,
    relation: Relation,
    scope: Scope,
    mu: float,
    first: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> Guarantee:
    """Mu-GDP under what has to hold for every such promise (`conditions_of`), with conditions before and behind."""
    promise = of_round(GDP(mu), trust, relation, *first, *conditions_of(unit, trust, relation), *more)
    public_size = relation != "add/remove" if unit in PARTS else None
    return replace(promise, unit=unit, scope=scope, public_size=public_size)
