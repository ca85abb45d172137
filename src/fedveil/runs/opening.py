"""What the first line of a run's ledgers binds: who may release, and what every epsilon of the run rests on.

Whoever adds up the ledgers later needs no word of anybody for it: neither a party nor a condition can be left out.
"""

import json
from collections.abc import Sequence
from typing import Any

from fedveil.accounting.ledger import RUN_OF_SITES
from fedveil.engines import Federation
from fedveil.engines.party import SERVER, VALIDATORS
from fedveil.methods import Method
from fedveil.runs.prepare import Setup


def opening_of(setup: Setup, federation: Federation, setting: str) -> dict[str, Any]:
    """What a run in one process binds."""
    config = setup.config
    return {
        **_shared(federation.method, setting, config.privacy.budget.delta, config.engine),
        "read_off": list(config.read_off),
        "clients": len(federation.clients),
        "terms": json.loads(json.dumps(config.privacy.options, default=str)),
        "parties": parties_of(federation),
    }


def opening_of_server(method: Method, delta: float, engine: str, run: str) -> dict[str, Any]:
    """What a deployed run's server binds: its clients' ledgers lie with them, and know the framework's `run`."""
    return {**_shared(method, method.name, delta, engine), "parties": [SERVER], RUN_OF_SITES: run}


def parties_of(federation: Federation) -> Sequence[str]:
    """Names of all whose releases a promise counts: the server, clients that protect themselves, and who validates.

    Under central trust clients may record how often they took part; that promises nothing, and is not bound.
    """
    validators = federation.validators
    apart = federation.method.client.trust != "central"
    clients = [str(p) for p in range(len(federation.clients))] if apart else []
    own = validators is not None and (apart or validators.rule.validation.losses == "public")
    validating = len(validators.clients) if validators is not None and own else 0
    return [SERVER, *clients, *(f"{VALIDATORS}{p}" for p in range(validating))]


def _shared(method: Method, setting: str, delta: float, engine: str) -> dict[str, Any]:
    named = {"setting": setting, "method": method.name, "trust": method.client.trust, "delta": delta}
    return {**named, "engine": engine, "read_off": [], "clients": None, "terms": {}}
