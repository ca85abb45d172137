"""Policy: what a node allows, in costs. A server proposes; the policy accepts or refuses, and weakens nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from fedveil.accounting.events import FACTOR
from fedveil.accounting.guarantee import Trust, total
from fedveil.accounting.spend import Spend
from fedveil.errors import (
    FieldError,
    nearest,
    require_choice,
    require_count,
    require_delta,
    require_non_negative,
    require_positive,
)
from fedveil.gdp import compose_mu

LONGEST = 30 * 24 * 3600  # seconds: a deadline beyond it is none, and what waits for it overflows on some systems


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Largest costs, each of one kind; kinds are never added.

    Parameters
    ----------
    mu : float, optional
        Gaussian DP of the whole client.
    record_mu : float, optional
        Gaussian DP of one record; sampled steps have none, and need `record_epsilon`.
    record_epsilon : float, optional
        Epsilon of one record at the policy's `delta`, of sampled and unsampled steps together. Releases for persons
        count here, too, as one of a person's records is promised; those for whole clients do not.
    person_mu, person_epsilon : float, optional
        The same of one person, with all her records. Noise for single records counts here only where the policy says
        how many one person has (`records_per_person`).
    leakage : float, optional
        d-privacy: epsilon at the policy's `distance`.
    participations : int, optional
        Releases of every kind together. Heuristics have no other cost: without this they are refused.
    """

    mu: float | None = None
    record_mu: float | None = None
    record_epsilon: float | None = None
    person_mu: float | None = None
    person_epsilon: float | None = None
    leakage: float | None = None
    participations: int | None = None

    def __post_init__(self) -> None:
        """Check all."""
        for name in ("mu", "record_mu", "record_epsilon", "person_mu", "person_epsilon", "leakage"):
            if getattr(self, name) is not None:
                _number(name, getattr(self, name), require_positive)
        if self.participations is not None:
            if type(self.participations) is not int:
                raise FieldError("participations", self.participations, "must be a whole number of at least 1")
            require_count("participations", self.participations)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a node's owner allows; the default allows local trust, at no cost yet.

    Under central trust the server adds the noise, so that a policy can only allow or refuse.

    Parameters
    ----------
    trust : sequence of {"central", "local", "trusted sum", "secure sum"}
        Allowed trust models.
    methods : sequence of str, optional
        Allowed methods by name. Default: all of the allowed trust models.
    release, total : Limits
        The largest cost of one release, and of all releases in the node's ledger. A kind that `total` does not name is
        refused.
    distance : float, optional
        Between two parameter vectors, at which d-private leakage is counted; needed to allow any.
    delta : float
        At which `record_epsilon` and `person_epsilon` are counted.
    records_per_person : int, optional
        The most records that one person has at this node, as its owner declares it (never a count of the data, which
        is private): releases for single records then count as releases for persons, too.
    relations : sequence of {"zero-out", "add/remove", "replace-one"}, optional
        Allowed relations: a cost under zero-out is half of that under replace-one. Default: all.
    hypotheses_apart : float
        The largest distance between hypotheses among which the client chooses. 0: it chooses among none.
    secure_source : bool
        Whether noise must come from a source that nobody can repeat.
    deadline : float, optional
        Seconds of training, at most 30 days, after which the client counts as failed, and answers with a zero update.

    Raises
    ------
    FieldError
        For a value or a combination that cannot be meant.
    """

    trust: Sequence[str] = ("local",)
    methods: Sequence[str] | None = None
    release: Limits = field(default_factory=Limits)
    total: Limits = field(default_factory=Limits)
    distance: float | None = None
    delta: float = 1e-5
    records_per_person: int | None = None
    relations: Sequence[str] | None = None
    hypotheses_apart: float = 0.0
    secure_source: bool = True
    deadline: float | None = None

    def __post_init__(self) -> None:
        """Check all."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {f.name: given[f.name] for f in fields(self) if f.default is not None or given[f.name] is not None}
        for name, known in (("trust", get_args(Trust)), ("methods", None), ("relations", FACTOR)):
            if name in given:
                object.__setattr__(self, name, _names(f"policy.{name}", given[name], known))
        _number("policy.delta", given["delta"], require_delta)
        _number("policy.hypotheses_apart", given["hypotheses_apart"], require_non_negative)
        for name in ("distance", "deadline"):
            if name in given:
                _number(f"policy.{name}", given[name], require_positive)
        if self.deadline is not None and self.deadline > LONGEST:
            raise FieldError("policy.deadline", self.deadline, f"must be at most {LONGEST:,} seconds, 30 days")
        for name in ("release", "total"):
            if not isinstance(given[name], Limits):
                raise FieldError(f"policy.{name}", given[name], "must be Limits (in TOML, a table)")
        if self.records_per_person is not None:
            if type(self.records_per_person) is not int:
                raise FieldError("policy.records_per_person", self.records_per_person, "must be a whole number")
            require_count("policy.records_per_person", self.records_per_person)
        if not isinstance(self.secure_source, bool):
            raise FieldError("policy.secure_source", self.secure_source, "must be true or false")
        if self.release.participations is not None:
            raise FieldError("policy.release.participations", self.release.participations, "belongs under total")
        if self.distance is None and (self.release.leakage is not None or self.total.leakage is not None):
            raise FieldError("policy.distance", None, "says at which distance leakage is counted: give it")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Policy:
        """A policy from plain values, such as those of a TOML file; unknown keys are refused."""
        known = _known(values, cls, "policy")
        for name in ("release", "total"):
            if name in known:
                limits = _known(known[name], Limits, f"policy.{name}")
                try:
                    known[name] = Limits(**limits)
                except FieldError as error:
                    raise FieldError(f"policy.{name}.{error.field}", error.value, error.accepted) from error
        return cls(**known)

    def refusal(self, method: str, trust: str, deployable: bool, quoted: Spend, past: Iterable[Spend]) -> str | None:
        """Why a release may not be made, or None if it may. It depends on public worst-case costs alone.

        Parameters
        ----------
        method : str
            Its name.
        trust : {"central", "local", "trusted sum", "secure sum"}
            The trust model of its client side.
        deployable : bool
            Whether the noise comes from a source that nobody can repeat.
        quoted : Spend
            What the release would cost.
        past : iterable of Spend
            Everything in the node's ledger.
        """
        if trust not in self.trust:
            return f"the node's policy allows {list(self.trust)} trust; {method!r} is {trust}"
        if self.methods is not None and method not in self.methods:
            return f"the node's policy allows the methods {list(self.methods)}, not {method!r}"
        past = list(past)
        cap = self.total.participations
        if cap is not None and len(past) >= cap:
            return f"the node's policy allows {cap} participations, which are used up"
        if trust == "central" and quoted.guarantee.status == "none":
            return None
        if self.secure_source and not deployable:
            return "the node's policy asks for a secure source of noise"
        relation = quoted.guarantee.relation
        if self.relations is not None and relation not in self.relations:
            return f"the node's policy allows promises under {list(self.relations)}, not under {relation}"
        apart = quoted.guarantee.hypotheses_apart or 0.0
        if apart > self.hypotheses_apart:
            limit = self.hypotheses_apart
            return f"the hypotheses are {apart:g} apart; the node's policy allows {limit:g}"
        return self._dear(quoted, past)

    def standing(self, spends: Iterable[Spend]) -> dict[str, tuple[int, float, float | None]]:
        """How many releases each kind of cost counts, what they cost together, and what `total` allows (or None).

        The cost is infinite where promises of one kind have no sum, being of another relation or trust.
        """
        spends = list(spends)
        found: dict[str, tuple[int, float, float | None]] = {}
        for kind in dict.fromkeys([*(f.name for f in fields(Limits)), *(k for s in spends for k in self._kinds(s))]):
            own = spends if kind == "participations" else [s for s in spends if kind in self._kinds(s)]
            limit = getattr(self.total, kind, None)
            if own or limit is not None:
                try:
                    cost = self._cost(kind, own)
                except FieldError:
                    cost = math.inf
                found[kind] = (len(own), cost, limit)
        return found

    def _dear(self, quoted: Spend, past: Sequence[Spend]) -> str | None:
        kinds = self._kinds(quoted)
        if not any(getattr(self.total, k, None) is not None for k in kinds if k in self._own_kinds(quoted)):
            kinds = self._own_kinds(quoted)
            return f"the node's policy names no total of {' or '.join(kinds)}, so it allows none"
        for scope, limits, spends in (("release", self.release, ()), ("total", self.total, past)):
            for kind in kinds:
                limit = None if kind == "participations" else getattr(limits, kind, None)
                if limit is None:
                    continue
                try:
                    cost = self._cost(kind, [*(s for s in spends if kind in self._kinds(s)), quoted])
                except FieldError:
                    return (
                        f"the node's policy counts {kind}, and the ledger holds promises of another relation or trust"
                    )
                if cost > limit * (1 + 1e-12):
                    return f"the node's policy allows {kind} = {limit:g} for each {scope}; this would make {cost:.6g}"
        return None

    def _cost(self, kind: str, spends: Sequence[Spend]) -> float:
        if kind == "participations":
            return len(spends)
        if kind == "leakage":
            return math.fsum((s.guarantee.epsilon_per_distance or 0.0) * (self.distance or 0.0) for s in spends)
        if kind.startswith("person"):
            spends = [self._of_person(s) for s in spends]
        if kind.startswith("record"):
            spends = [_of_record(s) for s in spends]
        if kind.endswith("_epsilon"):
            return total(s.guarantee for s in spends).epsilon(self.delta) if spends else 0.0
        return compose_mu((s.guarantee.mu or 0.0) if s.charge is None else s.charge for s in spends)

    def _kinds(self, spend: Spend) -> tuple[str, ...]:
        """The kinds of cost of a spend; one for persons is one for their records, too."""
        kinds = self._own_kinds(spend)
        if spend.guarantee.unit == "person":
            kinds += tuple(kind.replace("person", "record") for kind in kinds if kind.startswith("person"))
        return kinds

    def _own_kinds(self, spend: Spend) -> tuple[str, ...]:
        """Those of which a total has to be named: of records those of persons too, if it is said how many they have."""
        kinds = kinds_of(spend)
        if self.records_per_person is not None and kinds[-1] == "record_epsilon":
            kinds += tuple(kind.replace("record", "person") for kind in kinds)
        return kinds

    def _of_person(self, spend: Spend) -> Spend:
        """What a spend costs a person: one for single records, as for a group of all that she may have."""
        if spend.guarantee.unit == "person":
            return spend
        many = spend.guarantee.of_group(self.records_per_person or 1)
        return replace(spend, guarantee=replace(many, unit="person", group=1), charge=None)


def _of_record(spend: Spend) -> Spend:
    """What a spend costs one record: one for persons, as `Guarantee.of_record` has it."""
    if spend.guarantee.unit != "person":
        return spend
    return replace(spend, guarantee=spend.guarantee.of_record(), charge=None)


def kinds_of(spend: Spend) -> tuple[str, ...]:
    """The kinds of cost that a spend has, by the names of their limits; a name that no limit has is always refused."""
    promise = spend.guarantee
    if promise.status == "heuristic":
        return ("participations",)
    if promise.by_distance:
        return ("leakage" if promise.epsilon_per_distance is not None else "mu over distance",)
    if promise.unit in ("record", "person") and (promise.mu is not None or promise.events):
        kinds = (f"{promise.unit}_mu", f"{promise.unit}_epsilon")
        return kinds[1:] if promise.mu is None else kinds
    if promise.mu is not None:
        return ("mu" if promise.unit == "client" else f"mu of a {promise.unit}",)
    return ("rho" if promise.rho is not None else "unprotected",)


def _names(field: str, values: Any, known: Iterable[str] | None) -> tuple[str, ...]:
    """A list of names: a table whose keys are names, whatever it says of them, is none."""
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise FieldError(field, values, 'must be a list of names, such as ["local"]')
    if known is not None:
        for value in values:
            require_choice(field, value, known)
    return tuple(values)


def _number(field: str, value: Any, require: Callable[[str, Any], float]) -> None:
    """A number as TOML has them, and nothing else that can be read as one."""
    if type(value) not in (int, float):
        raise FieldError(field, value, "must be a number")
    require(field, value)


def _known(values: Any, owner: type[Any], name: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise FieldError(name, values, "must be a table of keys and values")
    names = [f.name for f in fields(owner)]
    for key in values:
        if key not in names:
            raise FieldError(f"{name}.{key}", values[key], nearest(str(key), names))
    return dict(values)
