"""The methods, one file each, and the registry that puts their two sides together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fedveil.aggregation import Aggregator
from fedveil.errors import FieldError, nearest
from fedveil.methods.contract import ClientSide, Method, ServerSide
from fedveil.methods.facts import (
    Broadcast,
    ClientFacts,
    Combined,
    NoisySteps,
    Protected,
    PublicFacts,
    Refusal,
    Releases,
    ServerFacts,
)
from fedveil.methods.fedre import FedRE, PerturbationAware
from fedveil.methods.global_dp import GlobalDP
from fedveil.methods.group_privacy import Clusters, GroupPrivacy
from fedveil.methods.ifca import ReportedClusters, ReportsIndex
from fedveil.methods.metric_privacy import MetricPrivacy
from fedveil.methods.plain import Plain, TrustedServer
from fedveil.methods.publishing import Publishing
from fedveil.methods.record import RecordDP, RecordShares, TrustedSum
from fedveil.methods.record_secure import RecordSecure, SecureSum
from fedveil.methods.replies import check_figures, check_reply, models_of, stack_counts, stack_models
from fedveil.methods.sga_central import SGACentral
from fedveil.methods.sga_ldp import SGALDP
from fedveil.registry import Registry


@dataclass(frozen=True)
class Sides:
    """The two classes that make up a method."""

    client: type[Any]
    server: type[Any]
    summary: str


METHODS: Registry[Sides] = Registry(
    "privacy.method",
    {
        "vanilla": Sides(TrustedServer, Plain, "no privacy"),
        "global": Sides(TrustedServer, GlobalDP, "global DP: fixed Gaussian noise on the server"),
        "metric": Sides(
            TrustedServer, MetricPrivacy, "metric privacy: server noise divided by the distance of the models"
        ),
        "group": Sides(GroupPrivacy, Clusters, "group privacy: Laplace noise on each client, k-means on the server"),
        "ifca": Sides(ReportsIndex, ReportedClusters, "IFCA: clients report their cluster, no privacy"),
        "fedre": Sides(FedRE, PerturbationAware, "FedRE: layer-wise client noise from sensitive regions"),
        "record": Sides(RecordDP, Plain, "record-level DP: noise inside each silo's training, nobody is trusted"),
        "record-sum": Sides(
            RecordShares, TrustedSum, "record-level DP: silos add shares of one sum's noise, a trusted sum"
        ),
        "record-secure": Sides(
            RecordSecure, SecureSum, "record-level DP: silos add masked shares, a sum that nobody is trusted with"
        ),
        "sga-ldp": Sides(SGALDP, Plain, "SGA-LDP: client noise from the cosine of the update"),
        "sga-central": Sides(
            TrustedServer, SGACentral, "SGA-LDP, section B: the server sees the updates and adds their noise"
        ),
    },
)


def parameters(name: str) -> dict[str, type[Any]]:
    """Names of a method's parameters, each with the side that owns it."""
    if name not in METHODS:
        raise FieldError("privacy.method", name, f"{nearest(name, METHODS)} (vanilla: no privacy)")
    sides = METHODS[name]
    return {f.name: side for side in (sides.client, sides.server) for f in fields(side)}


def build(name: str, aggregator: Aggregator | None = None, **values: Any) -> Method:
    """Build both sides of a method by name.

    Parameters
    ----------
    name : str
        A key of `METHODS`.
    aggregator : Aggregator, optional
        The rule inside the server side, for methods that take one.
    **values
        Parameters of either side; each goes where it belongs.

    Raises
    ------
    FieldError
        For an unknown method, an unknown parameter or a refused value.
    """
    owners = parameters(name)
    if aggregator is not None:
        if "aggregator" not in owners:
            raise FieldError(
                "aggregator", type(aggregator).__name__, f"{name!r} brings its own aggregation; leave it out"
            )
        values = {**values, "aggregator": aggregator}
    for key in values:
        if key not in owners:
            raise FieldError(f"privacy.{key}", values[key], f"is no parameter of {name!r}; " + nearest(key, owners))
    sides = METHODS[name]
    client = sides.client(**{k: v for k, v in values.items() if owners[k] is sides.client})
    server = sides.server(**{k: v for k, v in values.items() if owners[k] is sides.server})
    return Method(name, client, server)


def paired(client: ClientSide, aggregator: Aggregator | None = None) -> Method:
    """A client side with the server side that belongs to it, or around a rule of your own.

    Raises
    ------
    FieldError
        If its server side brings its own aggregation.
    """
    sides = next((s for s in METHODS.values() if s.client is type(client)), Sides(type(client), Plain, ""))
    if aggregator is None:
        return Method(type(client).__name__, client, sides.server())
    if "aggregator" not in {f.name for f in fields(sides.server)}:
        accepted = f"{type(client).__name__} brings its own aggregation; leave it out"
        raise FieldError("aggregator", type(aggregator).__name__, accepted)
    return Method(type(client).__name__, client, sides.server(aggregator=aggregator))


__all__ = [
    "METHODS",
    "SGALDP",
    "Broadcast",
    "ClientFacts",
    "ClientSide",
    "Clusters",
    "Combined",
    "FedRE",
    "GlobalDP",
    "GroupPrivacy",
    "Method",
    "MetricPrivacy",
    "NoisySteps",
    "PerturbationAware",
    "Plain",
    "Protected",
    "PublicFacts",
    "Publishing",
    "RecordDP",
    "RecordSecure",
    "RecordShares",
    "Refusal",
    "Releases",
    "ReportedClusters",
    "ReportsIndex",
    "SGACentral",
    "SecureSum",
    "ServerFacts",
    "ServerSide",
    "Sides",
    "TrustedServer",
    "TrustedSum",
    "build",
    "check_figures",
    "check_reply",
    "models_of",
    "paired",
    "parameters",
    "stack_counts",
    "stack_models",
]
