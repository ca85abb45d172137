"""Policy: the costs that a node's owner allows. The policy accepts or refuses a proposed run; it never weakens a method."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar, get_args

from fedveil.accounting.admission import Admission, Denied, SumPolicy
from fedveil.accounting.bounds import GDP, PLD, ZCDP, Heuristic, MetricDP, OverDistance
from fedveil.accounting.events import FACTOR, Relation
from fedveil.accounting.guarantee import PARTS, REGIONS, Guarantee, Trust, total
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
_WITH_REGIONS = ("client", "person", "record")  # units whose records contain regions
LONGEST = 30 * 24 * 3600  # seconds; timers of some systems overflow above this


@dataclass(frozen=True, kw_only=True)
class Limits(Parameters):
    """Limits on a policy's costs, one for each kind of cost; costs of different kinds are never added.

    Parameters
    ----------
    mu : float, optional
        Gaussian DP of the whole client.
    record_mu : float, optional
        Gaussian DP of one record. Sampled steps need `record_epsilon` instead. If both limits are set, sampled steps
        count here with the mu whose epsilon equals theirs at the policy's `delta`.
    record_epsilon : float, optional
        Epsilon of one record at the policy's `delta`, for sampled and unsampled steps together. Releases that protect
        persons or whole clients also count here, with their promise for one record.
    person_mu, person_epsilon : float, optional
        The same for one person with all her records. Releases for whole clients also count here. Releases for single
        records count only if the policy declares `records_per_person`.
    region_mu, region_epsilon : float, optional
        The same for the marked coordinates of one record. A limit for regions allows releases that protect nothing but
        regions: labels, other coordinates and membership are then not protected. Releases for records, persons and
        whole clients also count here.
    leakage : float, optional
        d-private epsilon at the policy's `distance`.
    participations : int, optional
        Number of releases of all kinds together. Heuristics have no other cost, so without this limit they are refused.

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
    region_mu: Limit | None = None
    region_epsilon: Limit | None = None
    leakage: Limit | None = None
    participations: Whole | None = None


@dataclass(frozen=True, kw_only=True)
class Policy(Parameters):
    """Costs and trust models that a node's owner allows. By default only local trust is allowed, and no cost.

    Under central trust the server adds the noise, so a policy can only allow or refuse that trust model.

    Parameters
    ----------
    trust : sequence of {"central", "local", "trusted sum", "secure sum"}
        Allowed trust models.
    methods : sequence of str, optional
        Names of allowed methods. Default: all methods of the allowed trust models.
    release, total : Limits
        Largest cost of one release, and of all releases in the node's ledger. A kind that `total` does not name is
        refused.
    sum : SumPolicy, optional
        Terms on which the node takes part in secure sums (a table in TOML); required for secure sums.
    distance : float, optional
        Distance between two parameter vectors at which d-private leakage is counted; required to allow any d-private
        release.
    delta : float
        Delta for `record_epsilon` and `person_epsilon`.
    records_per_person : int, optional
        Largest number of records of one person at this node. The owner declares it, because a count of the data would
        be private. Releases for single records then also count as releases for persons.
    silos_per_person : int
        Largest number of silos at which one person may have records; a larger number in `sum` is used instead. A method
        for persons with a smaller number is refused. Other releases cost a person as much as releases of that many
        silos.
    relations : sequence of {"zero-out", "add/remove", "replace-one"}, optional
        Allowed relations. (The same noise costs under zero-out half of what it costs under replace-one.) Default: all.
    hypotheses_apart : float
        Largest allowed distance between the hypotheses among which the client chooses. 0: no choice is allowed.
    secure_source : bool
        Whether noise must come from a source that cannot be reproduced.
    deadline : float, optional
        Seconds of training, at most 30 days, after which the client counts as failed and answers with a zero update.
    receipts : bool
        Whether the node declines a round whose broadcast carries no receipt. It then also declines one round after its
        own share was left out for any reason. By default it declines only a receipt that contradicts itself or the
        node's ledger.
    node : Admission, optional
        Code that may run on the node. Only `fedveil node` enforces it; elsewhere a policy with this table is refused.

    Raises
    ------
    FieldError
        For an invalid value, or values that contradict each other.

    Examples
    --------
    >>> policy = fv.Policy(
    ...     trust=("local",), methods=("record",), total=fv.Limits(record_epsilon=4.0)
    ... )
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
    receipts: bool = False
    node: Admission | None = None

    section: ClassVar[str] = "policy"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trust", "methods", "relations"):
            names = getattr(self, name)
            if names is not None:
                object.__setattr__(self, name, tuple(names))
        if self.deadline is not None and self.deadline > LONGEST:
            raise FieldError(
                "policy.deadline", self.deadline, f"must be at most {LONGEST:,} seconds, 30 days"
            )
        if self.release.participations is not None:
            raise FieldError(
                "policy.release.participations", self.release.participations, "belongs under total"
            )
        leakages = (self.release.leakage, self.total.leakage)
        if self.distance is None and leakages != (None, None):
            raise FieldError(
                "policy.distance", None, "give the distance at which leakage is counted"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Policy":
        """Read a policy from plain values, such as those of a TOML file; unknown keys are refused."""
        require_a("policy", values, Mapping, "must be a table, as a policy's TOML file has it")
        tables: dict[str, Any] = {}
        for name, table in _TABLES.items():
            if name not in values:
                continue
            if not isinstance(values[name], Mapping):
                raise FieldError(
                    f"policy.{name}", values[name], "must be a table of keys and values"
                )
            try:
                tables[name] = table(**values[name])
            except FieldError as error:
                raise FieldError(
                    f"policy.{name}.{error.field}", error.value, error.accepted
                ) from error
        return cls(**{**values, **tables})

    def refusal(
        self,
        method: str,
        trust: str,
        deployable: bool,
        quoted: Spend,
        past: Iterable[Spend],
    ) -> Denied | None:
        """Return the reason why a release may not be made; None if it may.

        The decision depends on public worst-case costs only.

        Parameters
        ----------
        method : str
            Name of the method.
        trust : {"central", "local", "trusted sum", "secure sum"}
            Trust model of its client side.
        deployable : bool
            Whether the noise comes from a source that cannot be reproduced.
        quoted : Spend
            Cost of the release.
        past : iterable of Spend
            Costs in the node's ledger.
        """
        forbidden = self.forbids(method, trust)
        if forbidden is not None:
            return forbidden
        past = list(past)
        cap = self.total.participations
        if cap is not None and len(past) >= cap:
            return Denied(
                "total.participations",
                f"the node's policy allows {cap} participations, which are used up",
            )
        promise = quoted.guarantee
        if trust == "central" and promise.status == "none":
            return None
        if self.secure_source and not deployable:
            return Denied("secure_source", "the node's policy asks for a secure source of noise")
        if self.relations is not None and promise.relation not in self.relations:
            allowed = f"the node's policy allows promises under {list(self.relations)}"
            return Denied("relations", f"{allowed}, not under {promise.relation}")
        if promise.unit == "person" and promise.silos_per_person < self._silos:
            own = f"silos_per_person = {promise.silos_per_person}"
            allowed = f"the node's policy says that one person may be at {self._silos} silos"
            return Denied(
                "silos_per_person", f"{own}: {allowed}; raise the method's to {self._silos}"
            )
        apart = promise.hypotheses_apart or 0.0
        if apart > self.hypotheses_apart:
            limit = self.hypotheses_apart
            reason = f"the hypotheses are {apart:g} apart; the node's policy allows {limit:g}"
            return Denied("hypotheses_apart", reason)
        return self._too_costly(quoted, past)

    def forbids(self, method: str, trust: str) -> Denied | None:
        """Return the reason why a method may not be used here, whatever it costs; None if it may."""
        if trust not in self.trust:
            return Denied(
                "trust", f"the node's policy allows {list(self.trust)} trust; {method!r} is {trust}"
            )
        if self.methods is not None and method not in self.methods:
            return Denied(
                "methods",
                f"the node's policy allows the methods {list(self.methods)}, not {method!r}",
            )
        return None

    def standing(self, spends: Iterable[Spend]) -> dict[str, tuple[int, float, float | None]]:
        """Compare past costs with the limits of `total`.

        Returns
        -------
        dict of str to (int, float, float or None)
            For each kind of cost: the number of releases that count, their total cost, and the limit. The cost is
            infinite if promises of one kind cannot be added, because their relations or trust models differ.
        """
        spends = list(spends)
        standing: dict[str, tuple[int, float, float | None]] = {}
        for kind in self._kinds_to_show(spends):
            own = [
                spend for spend in spends if kind == "participations" or kind in self._kinds(spend)
            ]
            try:
                cost = self._cost(kind, own)
            except FieldError:
                cost = math.inf
            standing[kind] = len(own), cost, getattr(self.total, kind, None)
        return standing

    def _kinds_to_show(self, spends: Sequence[Spend]) -> list[str]:
        """List the kinds of cost with a limit in `total` or with a spend, in the order of `Limits`."""
        spent = ["participations"] if spends else []
        for spend in spends:  # the cost of a client's release to its records is shown only beside a limit or a record's release
            spent += (
                self._own_kinds(spend) if spend.guarantee.unit == "client" else self._kinds(spend)
            )
        known = [field.name for field in fields(Limits)]
        first = [kind for kind in known if kind in spent or getattr(self.total, kind) is not None]
        return list(dict.fromkeys([*first, *spent]))

    @property
    def _silos(self) -> int:
        """Largest number of silos at which one person may have records, by this policy or its `sum`."""
        return max(self.silos_per_person, 1 if self.sum is None else self.sum.silos_per_person)

    def _too_costly(self, quoted: Spend, past: Sequence[Spend]) -> Denied | None:
        """Return the refusal of a release that would exceed a limit; None if it exceeds none."""
        kinds, own = self._kinds(quoted), self._own_kinds(quoted)
        if not any(getattr(self.total, kind, None) is not None for kind in own):
            return Denied(
                "total",
                f"the node's policy names no total of {' or '.join(own)}, so it allows none",
            )
        counted = [kind for kind in kinds if kind != "participations"]
        scopes = (("release", self.release, ()), ("total", self.total, past))
        for scope, limits, spends in scopes:
            for kind in counted:
                limit = getattr(limits, kind, None)
                if limit is None:
                    continue
                before = [spend for spend in spends if kind in self._kinds(spend)]
                try:
                    cost = self._cost(kind, [*before, quoted])
                except FieldError:
                    reason = f"the node's policy counts {kind}, and the ledger has promises of another relation or trust"
                    return Denied(f"{scope}.{kind}", reason)
                if cost > limit * (1 + 1e-12):
                    allowed = f"the node's policy allows {kind} = {limit:g} for each {scope}"
                    return Denied(f"{scope}.{kind}", f"{allowed}; this would make {cost:.6g}")
        return None

    def _cost(self, kind: str, spends: Sequence[Spend]) -> float:
        """Return the total of one kind of cost; refuse promises that cannot be added."""
        if kind == "participations":
            return len(spends)
        if not spends:
            return 0.0
        if kind == "leakage":
            return self._leakage(spends)
        unit = kind.rpartition("_")[0]
        if unit:
            relation = _relation_among(spends)
            spends = [self._of(unit, spend, relation) for spend in spends]
        whole = total(spend.guarantee for spend in spends)
        if kind.endswith("epsilon"):
            return whole.epsilon(self.delta)
        if isinstance(whole.bound, PLD):
            epsilon = whole.epsilon(self.delta)
            return mu_of_epsilon(epsilon, self.delta) if epsilon else 0.0
        return compose_mu(map(_charged_mu, spends))

    def _leakage(self, spends: Sequence[Spend]) -> float:
        slopes = []
        for spend in spends:
            bound = spend.guarantee.bound
            if isinstance(bound, MetricDP):
                slopes.append(bound.epsilon_per_distance * (self.distance or 0.0))
        return math.fsum(slopes)

    def _kinds(self, spend: Spend) -> tuple[str, ...]:
        """List all kinds of cost of a spend: one for a client also costs its persons and records, one for a person her records."""
        kinds = self._own_kinds(spend)
        every = list(kinds)
        if kinds == ("mu",):
            every += ["record_mu", "record_epsilon", "person_mu", "person_epsilon"]
        if spend.guarantee.unit in _WITH_REGIONS and isinstance(spend.guarantee.bound, GDP | PLD):
            is_mixture = isinstance(spend.guarantee.bound, PLD)
            of_regions = ["region_epsilon"] if is_mixture else ["region_mu", "region_epsilon"]
            every += [kind for kind in of_regions if self._limits(kind)]
        if spend.guarantee.unit == "person":
            every += [
                kind.replace("person", "record") for kind in kinds if kind.startswith("person")
            ]
        if isinstance(
            spend.guarantee.bound, PLD
        ):  # a limit on mu, if there is one, also holds for sampled steps
            mus = [kind.replace("epsilon", "mu") for kind in every if kind.endswith("epsilon")]
            every += [kind for kind in mus if self._limits(kind)]
        return tuple(every)

    def _limits(self, kind: str) -> bool:
        """Whether `release` or `total` has a limit of this kind."""
        return any(getattr(limits, kind, None) is not None for limits in (self.release, self.total))

    def _own_kinds(self, spend: Spend) -> tuple[str, ...]:
        """List the kinds of cost of a spend; `total` needs a limit for at least one of them.

        If records per person are declared, limits for persons also count for records.
        """
        kinds = kinds_of(spend)
        if self.records_per_person is not None and kinds[-1] == "record_epsilon":
            kinds += tuple(kind.replace("record", "person") for kind in kinds)
        return kinds

    def _of(self, unit: str, spend: Spend, relation: Relation) -> Spend:
        """Restate a spend for one record or person under a relation, so that it adds up with others.

        A promise for a client bounds every change of the client's data, so it counts under any relation.
        """
        promise = spend.guarantee
        silos = self._silos if unit == "person" else 1
        if promise.unit == unit and promise.silos_per_person == silos:
            return spend
        if unit == "region":
            return replace(spend, guarantee=_of_region(promise, relation), charge=None)
        if promise.unit == "client":
            promise = promise.of_part("record" if unit == "record" else "person")
            promise = replace(promise, relation=relation, public_size=relation != "add/remove")
        elif promise.unit == "person" and unit == "record":
            promise = promise.of_part("record")
        elif promise.unit == "record":  # as for a group of all records that she may have
            promise = replace(
                promise.of_group(self.records_per_person or 1), unit="person", group=1
            )
        if unit == "person":
            promise = promise.of_silos(self._silos)
        return replace(spend, guarantee=promise, charge=None)


_TABLES: dict[str, type[Any]] = {
    "release": Limits,
    "total": Limits,
    "node": Admission,
    "sum": SumPolicy,
}


def _relation_among(spends: Sequence[Spend]) -> Relation:
    """Return the relation of the first promise for a part of a client; else of the first promise."""
    for spend in spends:
        if spend.guarantee.unit != "client":
            return spend.guarantee.relation
    return spends[0].guarantee.relation


def _of_region(promise: Guarantee, relation: Relation) -> Guarantee:
    """Restate a promise for one region under a relation, so that it adds up with others.

    Unless the relation is replace-one, the promise for a part covers every change, also from content to blank.
    """
    part = promise.of_part("region")
    if promise.relation == "replace-one" or relation == "add/remove":
        return part
    return replace(part, relation=relation)


def _charged_mu(spend: Spend) -> float:
    if spend.charge is not None:
        return spend.charge
    return spend.guarantee.mu or 0.0


def kinds_of(spend: Spend) -> tuple[str, ...]:
    """List the kinds of cost of a spend, by the names of their limits; a kind without a limit is always refused."""
    promise, bound = spend.guarantee, spend.guarantee.bound
    if isinstance(bound, Heuristic):
        return ("participations",)
    if isinstance(bound, OverDistance):
        return ("leakage" if isinstance(bound, MetricDP) else "mu over distance",)
    unit = "region" if promise.unit in REGIONS else promise.unit
    if unit in PARTS and isinstance(bound, GDP):
        return f"{unit}_mu", f"{unit}_epsilon"
    if unit in PARTS and isinstance(bound, PLD):
        return (f"{unit}_epsilon",)
    if isinstance(bound, GDP):
        return ("mu" if promise.unit == "client" else f"mu of a {promise.unit}",)
    return ("rho" if isinstance(bound, ZCDP) else "unprotected",)
