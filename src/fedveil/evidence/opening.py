"""What the first line of a run's ledgers binds: who may release, and what every epsilon of the run rests on.

Whoever adds up the ledgers later needs no word of anybody for it: neither a party nor a condition can be left out.
"""

from collections.abc import Sequence
from typing import Any

from fedveil.accounting.ledger import RUN_OF_SITES
from fedveil.engines import Federation
from fedveil.engines.party import VALIDATORS
from fedveil.files import SERVER
from fedveil.methods import Method


def opening_of_server(method: Method, delta: float, engine: str, run: str) -> dict[str, Any]:
    """What a deployed run's server binds: its clients' ledgers lie with them, and know the framework's `run`."""
    return {**terms_of(method, method.name, delta, engine), "parties": [SERVER], RUN_OF_SITES: run}


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


def terms_of(method: Method, setting: str, delta: float, engine: str) -> dict[str, Any]:
    """What every opening says, whoever runs the rounds."""
    named = {"setting": setting, "method": method.name, "trust": method.client.trust, "delta": delta}
    return {**named, "engine": engine, "conditions": [], "clients": None, "terms": {}}
