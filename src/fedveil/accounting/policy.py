"""Policy: what a node allows, in costs. A server proposes; the policy accepts or refuses, and weakens nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar, get_args

from fedveil.accounting.admission import Admission, SumPolicy
from fedveil.accounting.bounds import GDP, PLD, ZCDP, Heuristic, MetricDP, OverDistance
from fedveil.accounting.events import FACTOR, Relation
from fedveil.accounting.guarantee import PARTS, Trust, total
from fedveil.accounting.ledger import Spend
from fedveil.checks import (
    Check,
    Delta,
    Limit,
    Names,
    NonNegative,
    Parameters,
    Positive,
    SilosOfPerson,
    Whole,
    require_names,
)
from fedveil.errors import FieldError, require_a
from fedveil.gdp import compose_mu, mu_of_epsilon

TrustNames = Annotated[Sequence[str], Check(partial(require_names, known=get_args(Trust)))]
RelationNames = Annotated[Sequence[str], Check(partial(require_names, known=FACTOR))]
LONGEST = 30 * 24 * 3600  # seconds: a deadline beyond it is none, and what waits for it overflows on some systems


@dataclass(frozen=True, kw_only=True)
class Limits(Parameters):
    """Largest costs, each of one kind; kinds are never added.

    Parameters
    ----------
    mu : float, optional
        Gaussian DP of the whole client.
    record_mu : float, optional
        Gaussian DP of one record. Sampled steps have none, and need `record_epsilon`; where this is named, too, they
        count with the mu that has their epsilon at the policy's `delta`.
    record_epsilon : float, optional
        Epsilon of one record at the policy's `delta`, of sampled and unsampled steps together. Releases for persons
        and for whole clients count here, too, as one of their records is promised.
    person_mu, person_epsilon : float, optional
        The same of one person, with all her records. Releases for whole clients count here, too; noise for single
        records only where the policy says how many one person has (`records_per_person`).
    leakage : float, optional
        d-privacy: epsilon at the policy's `distance`.
    participations : int, optional
        Releases of every kind together. Heuristics have no other cost: without this they are refused.

    Examples
    --------
    >>> fv.Limits(mu=1.0, participations=20).mu
    1.0
    """

    mu: Limit | None = None
    record_mu: Limit | None = None
    record_epsilon: Limit | None = None
    person_mu: Limit | None = None
    person_epsilon: Limit | None = None
    leakage: Limit | None = None
    participations: Whole | None = None


@dataclass(frozen=True, kw_only=True)
class Policy(Parameters):
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
    sum : SumPolicy, optional
        On what terms the node takes part in secure sums (in TOML, a table); needed for them.
    distance : float, optional
        Between two parameter vectors, at which d-private leakage is counted; needed to allow any.
    delta : float
        At which `record_epsilon` and `person_epsilon` are counted.
    records_per_person : int, optional
        The most records that one person has at this node, as its owner declares it (never a count of the data, which
        is private): releases for single records then count as releases for persons, too.
    silos_per_person : int
        The most silos at which one person may have records; that of `sum` counts, too, where it is larger. A method for
        persons that allows for fewer is refused. What other releases cost a person is counted for so many.
    relations : sequence of {"zero-out", "add/remove", "replace-one"}, optional
        Allowed relations: a cost under zero-out is half of that under replace-one. Default: all.
    hypotheses_apart : float
        The largest distance between hypotheses among which the client chooses. 0: it chooses among none.
    secure_source : bool
        Whether noise must come from a source that nobody can repeat.
    deadline : float, optional
        Seconds of training, at most 30 days, after which the client counts as failed, and answers with a zero update.
    node : Admission, optional
        What may run on the node. It binds under `fedveil node` alone; elsewhere a policy that has it is refused.

    Raises
    ------
    FieldError
        For a value or a combination that cannot be meant.

    Examples
    --------
    >>> policy = fv.Policy(trust=("local",), methods=("record",), total=fv.Limits(record_epsilon=4.0))
    >>> policy.forbids("global", "central") is None
    False
    >>> policy.forbids("record", "local") is None
    True
    """

    trust: TrustNames = ("local",)
    methods: Names | None = None
    release: Limits = field(default_factory=Limits)
    total: Limits = field(default_factory=Limits)
    sum: SumPolicy | None = None
    distance: Positive | None = None
    delta: Delta = 1e-5
    records_per_person: Whole | None = None
    silos_per_person: SilosOfPerson = 1
    relations: RelationNames | None = None
    hypotheses_apart: NonNegative = 0.0
    secure_source: bool = True
    deadline: Positive | None = None
    node: Admission | None = None

    section: ClassVar[str] = "policy"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trust", "methods", "relations"):
            if (names := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(names))
        if self.deadline is not None and self.deadline > LONGEST:
            raise FieldError("policy.deadline", self.deadline, f"must be at most {LONGEST:,} seconds, 30 days")
        if self.release.participations is not None:
            raise FieldError("policy.release.participations", self.release.participations, "belongs under total")
        if self.distance is None and (self.release.leakage is not None or self.total.leakage is not None):
            raise FieldError("policy.distance", None, "says at which distance leakage is counted: give it")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Policy":
        """A policy from plain values, such as those of a TOML file; unknown keys are refused."""
        require_a("policy", values, Mapping, "must be a table, as a policy's TOML file has it")
        tables: dict[str, Any] = {}
        for name, table in _TABLES.items():
            if name in values:
                if not isinstance(values[name], Mapping):
                    raise FieldError(f"policy.{name}", values[name], "must be a table of keys and values")
                try:
                    tables[name] = table(**values[name])
                except FieldError as error:
                    raise FieldError(f"policy.{name}.{error.field}", error.value, error.accepted) from error
        return cls(**{**values, **tables})

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
        if (forbidden := self.forbids(method, trust)) is not None:
            return forbidden
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
        held = quoted.guarantee.silos_per_person
        if quoted.guarantee.unit == "person" and held < self._silos:
            own = f"silos_per_person = {held}: the node's policy says that one person may be at {self._silos} silos"
            return f"{own}; raise the method's to {self._silos}"
        apart = quoted.guarantee.hypotheses_apart or 0.0
        if apart > self.hypotheses_apart:
            limit = self.hypotheses_apart
            return f"the hypotheses are {apart:g} apart; the node's policy allows {limit:g}"
        return self._dear(quoted, past)

    def forbids(self, method: str, trust: str) -> str | None:
        """Why a method may not be used here at any cost, or None if it may."""
        if trust not in self.trust:
            return f"the node's policy allows {list(self.trust)} trust; {method!r} is {trust}"
        if self.methods is not None and method not in self.methods:
            return f"the node's policy allows the methods {list(self.methods)}, not {method!r}"
        return None

    def standing(self, spends: Iterable[Spend]) -> dict[str, tuple[int, float, float | None]]:
        """How many releases each kind of cost counts, what they cost together, and what `total` allows (or None).

        The cost is infinite where promises of one kind have no sum, being of another relation or trust.
        """
        spends = list(spends)
        named = [f.name for f in fields(Limits) if getattr(self.total, f.name) is not None]
        made = ["participations"] if spends else []
        for spend in spends:  # what a client's releases cost its records is shown where a limit, or a record, asks
            made += self._own_kinds(spend) if spend.guarantee.unit == "client" else self._kinds(spend)
        standing: dict[str, tuple[int, float, float | None]] = {}
        for kind in dict.fromkeys([*(f.name for f in fields(Limits) if f.name in (*named, *made)), *made]):
            own = spends if kind == "participations" else [s for s in spends if kind in self._kinds(s)]
            try:
                cost = self._cost(kind, own)
            except FieldError:
                cost = math.inf
            standing[kind] = len(own), cost, getattr(self.total, kind, None)
        return standing

    @property
    def _silos(self) -> int:
        """The most silos at which one person may be, wherever the policy says it."""
        return max(self.silos_per_person, 1 if self.sum is None else self.sum.silos_per_person)

    def _dear(self, quoted: Spend, past: Sequence[Spend]) -> str | None:
        kinds, own = self._kinds(quoted), self._own_kinds(quoted)
        if not any(getattr(self.total, kind, None) is not None for kind in own):
            return f"the node's policy names no total of {' or '.join(own)}, so it allows none"
        for scope, limits, spends in (("release", self.release, ()), ("total", self.total, past)):
            for kind in kinds:
                limit = None if kind == "participations" else getattr(limits, kind, None)
                if limit is None:
                    continue
                try:
                    cost = self._cost(kind, [*(s for s in spends if kind in self._kinds(s)), quoted])
                except FieldError:
                    return f"the node's policy counts {kind}, and the ledger has promises of another relation or trust"
                if cost > limit * (1 + 1e-12):
                    return f"the node's policy allows {kind} = {limit:g} for each {scope}; this would make {cost:.6g}"
        return None

    def _cost(self, kind: str, spends: Sequence[Spend]) -> float:
        """What spends cost together; refused where their promises have no sum."""
        if kind == "participations":
            return len(spends)
        if not spends:
            return 0.0
        bounds = [s.guarantee.bound for s in spends]
        if kind == "leakage":
            return math.fsum(b.epsilon_per_distance * (self.distance or 0.0) for b in bounds if isinstance(b, MetricDP))
        unit = kind.rpartition("_")[0]
        if unit:
            named = next((s.guarantee for s in spends if s.guarantee.unit != "client"), spends[0].guarantee)
            spends = [self._of(unit, spend, named.relation) for spend in spends]
        whole = total(s.guarantee for s in spends)
        if kind.endswith("epsilon"):
            return whole.epsilon(self.delta)
        if isinstance(whole.bound, PLD):
            epsilon = whole.epsilon(self.delta)
            return mu_of_epsilon(epsilon, self.delta) if epsilon else 0.0
        return compose_mu((s.guarantee.mu or 0.0) if s.charge is None else s.charge for s in spends)

    def _kinds(self, spend: Spend) -> tuple[str, ...]:
        """Kinds of cost of a spend; one for a client is one for its persons and records, one for persons for theirs."""
        kinds, unit = self._own_kinds(spend), spend.guarantee.unit
        if kinds == ("mu",):
            return (*kinds, "record_mu", "record_epsilon", "person_mu", "person_epsilon")
        if unit == "person":
            kinds += tuple(kind.replace("person", "record") for kind in kinds if kind.startswith("person"))
        if isinstance(spend.guarantee.bound, PLD):  # a limit of mu that is named holds for sampled steps, too
            mus = (kind.replace("epsilon", "mu") for kind in kinds if kind.endswith("epsilon"))
            kinds += tuple(kind for kind in mus if self._names(kind))
        return kinds

    def _names(self, kind: str) -> bool:
        """Whether a release or the total has a limit of a kind."""
        return any(getattr(limits, kind, None) is not None for limits in (self.release, self.total))

    def _own_kinds(self, spend: Spend) -> tuple[str, ...]:
        """Those of which a total has to be named: of records those of persons too, if it is said how many they have."""
        kinds = kinds_of(spend)
        if self.records_per_person is not None and kinds[-1] == "record_epsilon":
            kinds += tuple(kind.replace("record", "person") for kind in kinds)
        return kinds

    def _of(self, unit: str, spend: Spend, relation: Relation) -> Spend:
        """What a spend costs one record or person, among others under a relation.

        Whatever changes in a client's data is bounded alike, so that a promise for a client has no relation of its own.
        """
        promise = spend.guarantee
        if promise.unit == unit and promise.silos_per_person == (self._silos if unit == "person" else 1):
            return spend
        if promise.unit == "client":
            promise = promise.of_part("record" if unit == "record" else "person")
            promise = replace(promise, relation=relation, public_size=relation != "add/remove")
        elif promise.unit == "person" and unit == "record":
            promise = promise.of_part("record")
        elif promise.unit == "record":  # as for a group of all that she may have
            promise = replace(promise.of_group(self.records_per_person or 1), unit="person", group=1)
        if unit == "person":
            promise = promise.of_silos(self._silos)
        return replace(spend, guarantee=promise, charge=None)


_TABLES: dict[str, type[Any]] = {"release": Limits, "total": Limits, "node": Admission, "sum": SumPolicy}


def kinds_of(spend: Spend) -> tuple[str, ...]:
    """The kinds of cost that a spend has, by the names of their limits; a name that no limit has is always refused."""
    promise, bound = spend.guarantee, spend.guarantee.bound
    if isinstance(bound, Heuristic):
        return ("participations",)
    if isinstance(bound, OverDistance):
        return ("leakage" if isinstance(bound, MetricDP) else "mu over distance",)
    if promise.unit in PARTS and isinstance(bound, GDP | PLD):
        kinds = (f"{promise.unit}_mu", f"{promise.unit}_epsilon")
        return kinds if isinstance(bound, GDP) else kinds[1:]
    if isinstance(bound, GDP):
        return ("mu" if promise.unit == "client" else f"mu of a {promise.unit}",)
    return ("rho" if isinstance(bound, ZCDP) else "unprotected",)
