"""What a client or the server reads from the run's configuration, on each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Context

from fedveil.accounting import LeakageFilter, ParticipationFilter, SpendFilter
from fedveil.aggregation import Aggregator
from fedveil.errors import FieldError, require_count
from fedveil.mechanisms import ReproducibleSource, SecureSource, Source
from fedveil.methods import Method, build

PREFIX = "privacy."
OTHERS = ("method", "seed", "rounds", "participations", "leakage_cap", "ledger_dir")  # not parameters of a method

Budget = Callable[[int], SpendFilter | None]


@dataclass(frozen=True)
class Settings:
    """One client's configuration; `privacy_mod` says what each field means."""

    partition: int
    method: Method
    source: Source
    budget: SpendFilter | None
    ledger_dir: str | None
    rounds: int | None


def privacy_keys(context: Context) -> dict[str, Any]:
    """The ``privacy.`` keys of a run; those of the node's own configuration come before the run's."""
    found: dict[str, Any] = {}
    for config in (context.run_config, context.node_config):
        found |= {_plain(k.removeprefix(PREFIX)): v for k, v in config.items() if k.startswith(PREFIX)}
    return found


def method_from(context: Context, aggregator: Aggregator | None = None) -> Method:
    """Build the method that a run's configuration names, the same on the server and on every client.

    Parameters
    ----------
    context : Context
        Of the ServerApp or ClientApp: ``privacy.method`` and ``privacy.<parameter>`` of its run_config, with
        ``privacy.clip.<layer>`` for one value a layer.
    aggregator : Aggregator, optional
        The server's rule.

    Raises
    ------
    FieldError
        For an unknown method or key.
    """
    keys = privacy_keys(context)
    if "method" not in keys:
        raise FieldError("privacy.method", None, "name a method in run_config, or give the method object itself")
    values: dict[str, Any] = {}
    for key, value in keys.items():
        name, _, layer = key.partition(".")
        if name == "aggregator":
            raise FieldError("privacy.aggregator", value, "the rule is the server's: give it to FedVeilStrategy")
        if layer:
            values.setdefault(name, {})[layer] = value
        elif name not in OTHERS:
            values[name] = value
    return build(str(keys["method"]), aggregator, **values)


def partition_of(context: Context) -> int:
    """The partition of a node.

    Raises
    ------
    FieldError
        If its configuration names none.
    """
    value = context.node_config.get("partition-id")
    if value is None:
        raise FieldError(
            "partition-id",
            None,
            "is missing from the node's configuration; noise and ledgers are kept by partition: start the node with "
            '--node-config "partition-id=0 num-partitions=3"',
        )
    return require_count("partition-id", value, least=0)


def read_settings(
    context: Context,
    method: Method | None,
    source: Source | None,
    seed: int | None,
    budget: Budget | None,
    ledger_dir: str | None,
    rounds: int | None,
) -> Settings:
    """Put arguments and configuration together; what is given twice, or unknown, is refused."""
    keys, partition = privacy_keys(context), partition_of(context)
    if method is not None:
        for key, value in keys.items():
            if key not in OTHERS or key in ("method", "seed"):
                raise FieldError(
                    f"{PREFIX}{key}", value, "the mod was given its method in code: leave method and seed to code too"
                )
    if source is not None and (seed is not None or "seed" in keys):
        raise FieldError("seed", keys.get("seed", seed), "the mod was given a source: leave the seed out")
    caps = [key for key in ("participations", "leakage_cap") if key in keys]
    if len(caps) + (budget is not None) > 1:
        raise FieldError("budget", caps, "give one of: a budget in code, privacy.participations, privacy.leakage-cap")
    if source is None:
        seed = _once("seed", seed, keys)
        source = SecureSource() if seed is None else ReproducibleSource(seed)
    limit = budget(partition) if budget is not None else None
    if caps:
        limit = (ParticipationFilter if caps[0] == "participations" else LeakageFilter)(keys[caps[0]])
    rounds = _once("rounds", rounds, keys)
    return Settings(
        partition=partition,
        method=method or method_from(context),
        source=source,
        budget=limit,
        ledger_dir=_once("ledger_dir", ledger_dir, keys),
        rounds=None if rounds is None else require_count("rounds", rounds),
    )


def _once(name: str, given: Any, keys: Mapping[str, Any]) -> Any:
    if given is not None and name in keys:
        raise FieldError(f"{PREFIX}{name}", keys[name], "was also given in code: give it once")
    return keys.get(name, given)


def _plain(key: str) -> str:
    name, dot, layer = key.partition(".")
    return name.replace("-", "_") + dot + layer
