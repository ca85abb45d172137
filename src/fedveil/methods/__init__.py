"""Privacy methods, one file each, and the registry that maps a name to a client side and a server side."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedveil.aggregation import Aggregator
from fedveil.errors import FieldError, kind_of, nearest, require_a
from fedveil.methods.central import STEPS as STEPS
from fedveil.methods.central import CentralNoise as CentralNoise
from fedveil.methods.central import CentralState as CentralState
from fedveil.methods.contract import ClientSide as ClientSide
from fedveil.methods.contract import Method as Method
from fedveil.methods.contract import NoisyClientSide as NoisyClientSide
from fedveil.methods.contract import ServerSide as ServerSide
from fedveil.methods.contract import require_parts
from fedveil.methods.facts import Broadcast as Broadcast
from fedveil.methods.facts import ClientFacts as ClientFacts
from fedveil.methods.facts import Combined as Combined
from fedveil.methods.facts import NoisySteps as NoisySteps
from fedveil.methods.facts import Protected as Protected
from fedveil.methods.facts import PublicFacts as PublicFacts
from fedveil.methods.facts import Refusal as Refusal
from fedveil.methods.facts import Releases as Releases
from fedveil.methods.facts import ServerFacts as ServerFacts
from fedveil.methods.fedre import FedRE as FedRE
from fedveil.methods.fedre import LastScores as LastScores
from fedveil.methods.fedre import PerturbationAware as PerturbationAware
from fedveil.methods.global_dp import GlobalDP as GlobalDP
from fedveil.methods.global_dp import running_sum as running_sum
from fedveil.methods.group_privacy import Clusters as Clusters
from fedveil.methods.group_privacy import GroupPrivacy as GroupPrivacy
from fedveil.methods.group_privacy import mean_length as mean_length
from fedveil.methods.metric_privacy import MetricPrivacy as MetricPrivacy
from fedveil.methods.plain import AroundRule as AroundRule
from fedveil.methods.plain import Plain as Plain
from fedveil.methods.plain import ReportedClusters as ReportedClusters
from fedveil.methods.plain import ReportsIndex as ReportsIndex
from fedveil.methods.plain import TrustedServer as TrustedServer
from fedveil.methods.publishing import Publishing as Publishing
from fedveil.methods.publishing import Validation as Validation
from fedveil.methods.record import RecordDP as RecordDP
from fedveil.methods.record_promise import RecordPromise as RecordPromise
from fedveil.methods.record_promise import fitting as fitting
from fedveil.methods.record_promise import require_own_sum
from fedveil.methods.replies import UNMEASURED as UNMEASURED
from fedveil.methods.replies import Replies as Replies
from fedveil.methods.replies import check_figures as check_figures
from fedveil.methods.replies import check_reply as check_reply
from fedveil.methods.replies import models_of as models_of
from fedveil.methods.replies import stack_counts as stack_counts
from fedveil.methods.replies import stack_models as stack_models
from fedveil.methods.sga_ldp import SGALDP as SGALDP
from fedveil.methods.sga_ldp import LastBroadcast as LastBroadcast
from fedveil.methods.sums import SecureSum as SecureSum
from fedveil.methods.sums import TrustedSum as TrustedSum
from fedveil.registry import Registry


@dataclass(frozen=True)
class Sides:
    """Client class and server class of a registered method, with a one-line summary."""

    client: type[Any]
    server: type[Any]
    summary: str

    def server_of(self, client: Any) -> type[Any]:
        """Return the server class for a client side: its own `server`, or else the registered one."""
        chosen: type[Any] = getattr(client, "server", self.server)
        return chosen


METHODS: Registry[Sides] = Registry(
    "privacy.method",
    {
        "vanilla": Sides(TrustedServer, Plain, "no privacy"),
        "global": Sides(TrustedServer, GlobalDP, "global DP: fixed Gaussian noise on the server"),
        "metric": Sides(
            TrustedServer, MetricPrivacy, "metric privacy: noise divided by the models' distance"
        ),
        "group": Sides(
            GroupPrivacy,
            Clusters,
            "group privacy: Laplace noise on each client, k-means on the server",
        ),
        "ifca": Sides(
            ReportsIndex, ReportedClusters, "IFCA: clients report their cluster, no privacy"
        ),
        "fedre": Sides(
            FedRE, PerturbationAware, "FedRE: layer-wise client noise from sensitive regions"
        ),
        "record": Sides(
            RecordDP,
            SecureSum,
            "record- or person-level DP: noise inside training; sum: who is trusted",
        ),
        "sga-ldp": Sides(SGALDP, Plain, "SGA-LDP: client noise from the cosine of the update"),
    },
    group="fedveil.methods",
)


_FORMER = {
    "record-sum": "trusted",
    "record-secure": "secure",
}  # former names; keys of stored results still use them


def require_method(field: str, name: str) -> str:
    """Return a method's name if it is registered; refuse others, and give the present name for a former one."""
    if name in METHODS:
        sides = METHODS[name]
        classes = (
            isinstance(sides, Sides)
            and isinstance(sides.client, type)
            and isinstance(sides.server, type)
        )
        if not classes:
            accepted = "is registered as something else than fedveil.methods.Sides(client class, server class, summary)"
            raise FieldError(field, name, accepted)
        require_parts(name, sides.client, ClientSide)
        require_parts(name, sides.server, ServerSide)
        return name
    if name in _FORMER:
        raise FieldError(
            field, name, f'is called "record" with sum = "{_FORMER[name]}" in [privacy] now'
        )
    own = "one of yours is there once the module that registers it is imported"
    raise FieldError(field, name, f"{nearest(name, METHODS)} (vanilla: no privacy); {own}")


def formerly(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's values in their former form, where the method's name also named the sum.

    Keys of stored results are made from that form. So old results stay valid.
    """
    if values.get("method") != "record":
        return dict(values)
    kept = dict(values)
    of_sum = kept.pop("sum", None)
    for former, its_sum in _FORMER.items():
        if its_sum == of_sum:
            kept["method"] = former
    return kept


def is_central(name: str) -> bool:
    """Whether a method trusts the server under all its parameters."""
    return bool(METHODS[name].client.trust == "central")


def parameters(name: str) -> dict[str, type[Any]]:
    """Map each parameter of a method to the class (client or server side) that owns it."""
    sides = METHODS[require_method("privacy.method", name)]
    owners: dict[str, type[Any]] = {}
    for side in (sides.client, sides.server):
        owners |= dict.fromkeys([field.name for field in fields(side)], side)
    return owners


def touches_promise(name: str, parameter: str) -> bool:
    """Whether changing a parameter of either side may change the method's promise."""
    owner = parameters(name)[parameter]
    return parameter not in getattr(owner, "outside_promise", frozenset())


def build(name: str, aggregator: Aggregator | None = None, **values: Any) -> Method:
    """Build a method from its name and plain values, as in configurations, Flower and FLARE.

    In Python write the method itself: ``fv.GlobalDP(rule, ...)``, ``fv.RecordDP(rule, ...)``.

    Parameters
    ----------
    name : str
        Name in `METHODS`.
    aggregator : Aggregator, optional
        Aggregation rule of the server side, for methods that take one.
    **values
        Parameters of the client side and the server side.

    Returns
    -------
    Method
        Client side and server side.

    Raises
    ------
    FieldError
        For an unknown method or parameter, or an invalid value.

    Examples
    --------
    >>> named = {"sum": "trusted", "examples": 40, "epsilon": 4, "rounds": 5, "silos": 3}
    >>> fv.methods.build("record", fv.FedAvgM(), **named).client.trust
    'trusted sum'
    """
    require_a("privacy.method", name, str, "must be the name of a method, such as 'global'")
    owners = parameters(name)
    if aggregator is not None:
        _require_rule_of(name, owners, aggregator)
        values = {**values, "aggregator": aggregator}
    for key in values:
        if key not in owners:
            raise FieldError(
                f"privacy.{key}",
                values[key],
                f"is no parameter of {name!r}; " + nearest(key, owners),
            )
    sides = METHODS[name]
    of_client: dict[str, Any] = {}
    of_server: dict[str, Any] = {}
    for key, value in values.items():
        own = of_client if owners[key] is sides.client else of_server
        own[key] = value
    client = sides.client(**of_client)
    if isinstance(client, RecordDP):
        for key, value in of_server.items():
            require_own_sum(client.sum, key, value)
    return Method(name, client, sides.server_of(client)(**of_server))


def paired(client: ClientSide, aggregator: Aggregator | None = None) -> Method:
    """Pair a client side with its server side, which gets `aggregator` or the client side's own rule.

    Raises
    ------
    FieldError
        If an `aggregator` is given and the server side has its own aggregation.
    """
    kind = type(client)
    known = [
        sides for sides in METHODS.values() if isinstance(sides, Sides) and sides.client is kind
    ]
    sides = known[0] if known else Sides(kind, Plain, "")
    server = sides.server_of(client)
    names = [field.name for field in fields(server)]
    given: dict[str, Any] = {}
    for name in ("aggregator", "lr"):  # parameters of the server that a client side may name
        value = getattr(client, name, None)
        if value is not None:
            given[name] = value
    if aggregator is not None:
        given["aggregator"] = aggregator
    if "aggregator" in given:
        _require_rule_of(kind.__name__, names, given["aggregator"])
    return Method(kind.__name__, client, server(**given))


def registered_as(method: Method) -> str:
    """Return the registered name of a method's kind; the method's own name if it is not registered.

    Policies list methods by this name, and configurations of runs use it.

    Examples
    --------
    >>> fv.methods.registered_as(fv.methods.paired(fv.RecordDP(examples=40, noise_multiplier=2.0)))
    'record'
    """
    if method.name in METHODS:
        return method.name
    central = type(method.client) is TrustedServer
    for name, sides in METHODS.items():
        if not isinstance(sides, Sides) or type(method.client) is not sides.client:
            continue
        if not central or type(method.server) is sides.server:
            return name
    return method.name


def _require_rule_of(method: str, names: Container[str], aggregator: Aggregator) -> None:
    """Refuse an aggregation rule for a method that has no parameter for one."""
    if "aggregator" not in names:
        accepted = f"{method!r} brings its own aggregation; leave it out"
        raise FieldError("aggregator", kind_of(aggregator), accepted)
