"""What a client or the server reads from the run's configuration, on each call."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context

from fedveil.accounting import Policy, SpendFilter
from fedveil.aggregation import Aggregator
from fedveil.engines.assembly import AnyMethod, resolve_method
from fedveil.engines.lifetime import read_policy
from fedveil.engines.node import CAPS, RUN, Settings, settle
from fedveil.engines.sites import site_of
from fedveil.errors import FieldError, require_count
from fedveil.mechanisms import Source, source_of
from fedveil.methods import METHODS, Method, build, parameters
from fedveil.secure import Site

PREFIX = "privacy."
# no server may as much as propose these: who knows the seed takes the noise off
OWN = ("seed", "participations", "leakage_cap", "ledger", "head", "dataset", "policy", "key")
OTHERS = ("method", "rounds", *OWN)  # not parameters of a method

WHERE = (
    "in the node's configuration (privacy.ledger, privacy.head) or as privacy_mod(..., ledger=FOLDER, head=ANOTHER), "
    "after fedveil.flower.begin_ledger(FOLDER, ..., head=ANOTHER) once; for a simulation, "
    'privacy_mod(..., ledger="run")'
)

BudgetOf = Callable[[int], SpendFilter | None]


def privacy_keys(context: Context, method: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``privacy.`` keys of the run and of the node's own configuration, which comes before the run's.

    A method's own table, ``privacy.<method>.<parameter>``, counts if that method is used; other methods' are left out,
    so that one key, ``privacy.method``, switches between them.

    Parameters
    ----------
    context : Context
        Of the ServerApp or ClientApp.
    method : Method, optional
        What code says, which comes first.
    """
    run, own = (
        {_plain(key.removeprefix(PREFIX)): value for key, value in config.items() if key.startswith(PREFIX)}
        for config in (context.run_config, context.node_config)
    )
    name = method.name if isinstance(method, Method) else own.get("method", run.get("method"))
    return _of_method(run, name), _of_method(own, name)


def _of_method(keys: Mapping[str, Any], method: Any) -> dict[str, Any]:
    tables = {_plain(name): name for name in METHODS}
    own = {key: value for key, value in keys.items() if key.partition(".")[0] not in tables}
    for key, value in keys.items():
        table, _, inner = key.partition(".")
        if tables.get(table) == method and method is not None:
            name = _plain(inner)
            if name in own:
                raise FieldError(f"{PREFIX}{method}.{inner}", value, f"is also given as {PREFIX}{inner}: give it once")
            own[name] = value
    return own


def method_from(context: Context, aggregator: Aggregator | None = None) -> Method:
    """Build the method that a run's configuration names, the same on the server and on every client.

    Parameters
    ----------
    context : Context
        Of the ServerApp or ClientApp: ``privacy.method`` and ``privacy.<method>.<parameter>`` of its run_config, or
        ``privacy.<parameter>`` whatever the method, with ``.<layer>`` behind it for one value a layer.
    aggregator : Aggregator, optional
        The server's rule.

    Raises
    ------
    FieldError
        For an unknown method or key.
    """
    run, own = privacy_keys(context)
    keys = run | own
    if "method" not in keys:
        raise FieldError("privacy.method", None, "name a method in run_config, or give the method object itself")
    values: dict[str, Any] = {}
    for key, value in keys.items():
        name, _, layer = key.partition(".")
        if name == "aggregator":
            raise FieldError("privacy.aggregator", value, "the rule is the server's: give it to FedVeilStrategy")
        if layer:
            values.setdefault(name, {})[layer] = value
        elif name not in OTHERS or (name == "rounds" and "epsilon" in keys and name in parameters(str(keys["method"]))):
            values[name] = value
    return build(str(keys["method"]), aggregator, **values)


def own_method(method: AnyMethod | Callable[[int], AnyMethod] | None, context: Context) -> Method:
    """A client's method: what was given in code, for its partition if that is a function, or else its configuration."""
    if method is None:
        return method_from(context)
    if callable(method) and not isinstance(method, type):
        method = method(partition_of(context))
    return resolve_method(method)  # type: ignore[arg-type]  # a class is refused by name


def partition_of(context: Context) -> int:
    """The partition of a node.

    Raises
    ------
    FieldError
        If its configuration names none.
    """
    value = context.node_config.get("partition-id")
    if value is None:
        fix = 'start the node with --node-config "partition-id=0 num-partitions=3"'
        accepted = f"is missing from the node's configuration; noise and ledgers are kept by partition: {fix}"
        raise FieldError("partition-id", None, accepted)
    return require_count("partition-id", value, least=0)


def read_settings(
    context: Context,
    method: AnyMethod | Callable[[int], AnyMethod] | None,
    source: Source | None = None,
    budget: BudgetOf | None = None,
    site: Site | Callable[[int], Site | None] | None = None,
    trains: bool = True,
    **given: Any,
) -> Settings:
    """Put code and configuration together; what is given twice, unknown, or not for the run to say, is refused.

    What protects a client comes from its node: from code, or from the node's configuration. What the run's
    configuration says is the server's proposal, and only a policy can accept one.

    Parameters
    ----------
    context, method, source, budget, site
        See `privacy_mod`.
    trains : bool
        Whether the node is more than a validating one.
    **given
        What code says of seed, policy, ledger, head and rounds; None where it says nothing.
    """
    (run, own), partition = privacy_keys(context, method), partition_of(context)
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("ledger") == RUN:  # unless the node names a folder
        given["ledger"] = own.pop("ledger", RUN)
    policy = read_policy({**own, **given}.get("policy"))
    _require_proposals(run, own, policy)
    keys = run | own
    for name in sorted(given.keys() & keys.keys()):
        raise FieldError(f"{PREFIX}{name}", keys[name], "was also given in code: give it once")
    for key, value in keys.items() if method is not None else ():
        if key not in OTHERS or key in ("method", "seed"):
            accepted = "the mod was given its method in code: leave method and seed to code"
            raise FieldError(f"{PREFIX}{key}", value, accepted)
    keys |= given
    if source is not None and "seed" in keys:
        raise FieldError("seed", keys["seed"], "the mod was given a source: leave the seed out")
    chosen, dataset = own_method(method, context), str(keys.get("dataset", partition))
    if chosen.client.trust == "secure sum" and trains:  # who only validates is in no sum
        site = site(partition) if callable(site) else site
        site = site_of(keys.get("key"), policy, keys.get("ledger"), dataset) if site is None else site
    settings = Settings(
        partition=partition,
        method=chosen,
        source=source_of(keys.get("seed")) if source is None else source,
        policy=policy,
        ledger=str(keys["ledger"]) if "ledger" in keys else None,
        head=str(keys["head"]) if "head" in keys else None,
        dataset=dataset,
        rounds=keys.get("rounds"),
        budget=budget(partition) if budget is not None else None,
        site=site if isinstance(site, Site) else None,
    )
    return settle(settings, {key: keys[key] for key in CAPS if key in keys}, WHERE, trains)


def _require_proposals(proposed: Mapping[str, Any], own: Mapping[str, Any], policy: Policy | None) -> None:
    """Refuse what a run's configuration may not say to this node."""
    for key, value in proposed.items():
        if key in OWN:
            raise FieldError(f"{PREFIX}{key}", value, "is the node's own: it is not taken from the run's configuration")
        if key in own:  # the node's word is the last
            continue
        if policy is None:
            accepted = "comes from the run's configuration, which whoever starts the run writes: set it in code or in "
            accepted += "the node's configuration, or give the node a policy that says what it accepts (privacy.policy)"
            raise FieldError(f"{PREFIX}{key}", value, accepted)


def _plain(key: str) -> str:
    name, dot, layer = key.partition(".")
    return name.replace("-", "_") + dot + layer
