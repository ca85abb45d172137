"""First line of a run's ledgers: the parties that may release, and the terms of every epsilon.

The line binds them, so no party and no condition can be left out when promises are computed from the ledgers later.
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
    """Make the first line of a deployed run's server; `run` is the framework's id, which the clients' own ledgers have."""
    return {**terms_of(method, method.name, delta, engine), "parties": [SERVER], RUN_OF_SITES: run}


def parties_of(federation: Federation) -> Sequence[str]:
    """List the parties whose releases count for a promise: the server, clients with their own noise, and validators.

    Under central trust clients may record participations. These promise nothing, so the clients are not listed.
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
    """Return the terms in every opening line, for any engine."""
    named = {
        "setting": setting,
        "method": method.name,
        "trust": method.client.trust,
        "delta": delta,
    }
    return {**named, "engine": engine, "conditions": [], "clients": None, "terms": {}}
