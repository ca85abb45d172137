"""Make the first line of a run's ledgers, which binds them to the run."""

import json
from typing import Any

from fedveil.accounting import read_off
from fedveil.engines import Federation
from fedveil.evidence import parties_of, terms_of
from fedveil_lab.runs.prepare import Setup


def opening_of(setup: Setup, federation: Federation, setting: str) -> dict[str, Any]:
    """Return the facts of an in-process run to which its ledgers are bound."""
    config = setup.config
    return {
        **terms_of(federation.method, setting, config.privacy.budget.delta, config.engine),
        "conditions": list(read_off(config.read_off)),
        "clients": len(federation.clients),
        "terms": json.loads(json.dumps(config.privacy.options, default=str)),
        "parties": parties_of(federation),
    }
