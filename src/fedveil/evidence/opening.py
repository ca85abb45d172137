"""First line of a run's ledgers: the parties that may release, and the terms of every epsilon.

Because they are bound there, neither a party nor a condition can be left out when the ledgers are added up later.
"""

from collections.abc import Sequence
from typing import Any

from fedveil.accounting.ledger import RUN_OF_SITES
from fedveil.engines import Federation
from fedveil.engines.party import VALIDATORS
from fedveil.files import SERVER
from fedveil.methods import Method


def opening_of_server(
    method: Method,
    delta: float,
    engine: str,
    run: str,
) -> dict[str, Any]:
    """Return the first line of a deployed run's server; the clients' own ledgers know the framework's `run`."""
    return {**terms_of(method, method.name, delta, engine), "parties": [SERVER], RUN_OF_SITES: run}


def parties_of(federation: Federation) -> Sequence[str]:
    """Name the parties whose releases a promise counts: the server, clients with their own noise, and validators.

    Under central trust clients may record how often they took part. That promises nothing, and is not bound.
    """
    parties = [SERVER]
    local = federation.method.client.trust != "central"
    if local:
        parties += map(str, range(len(federation.clients)))
    validators = federation.validators
    if validators is not None and (local or validators.rule.validation.losses == "public"):
        parties += [f"{VALIDATORS}{partition}" for partition in range(len(validators.clients))]
    return parties


def terms_of(method: Method, setting: str, delta: float, engine: str) -> dict[str, Any]:
    """Return the terms that every opening states, whoever runs the rounds."""
    named = {
        "setting": setting,
        "method": method.name,
        "trust": method.client.trust,
        "delta": delta,
    }
    return {**named, "engine": engine, "conditions": [], "clients": None, "terms": {}}
