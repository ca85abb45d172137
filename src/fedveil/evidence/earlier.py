"""Conversion of reports of earlier versions to today's form; their pages are not compared."""

import re
from collections.abc import Mapping
from typing import Any

from fedveil.accounting.ledger import RUN_OF_SITES
from fedveil.tables import NOTHING

FORMAT = "fedveil report 1"
QUOTE = "a client of every round, by its quotes"  # party of a deployed run that the server's ledger does not hold
OF_SITES = r"^(worst of \d+) of \d+ clients"  # number of ledgers that were given, and of clients
SPENT = ("cost", "releases", "spent", "allowed", "left")


def as_today(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the parts of an earlier report that a check compares: evidence, and the author's statements."""
    evidence = values["evidence"]
    sets = {one["ledger"]["party"]: _set(one) for one in evidence["sets"]}
    held, said = [], []
    for run in evidence["runs"]:
        held.append(_held(run, sets))
        said.append(_said(run))
    return {
        "evidence": {"runs": held, "sets": list(sets.values())},
        "said": {"runs": said, "policy": evidence["policy"]},
        "form": values["made"]["form"],
        "files": values["files"],
    }


def _set(one: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for row in one["spent"]:
        rows.append(["" if cell == NOTHING else cell for cell in row])
    return {"ledger": one["ledger"], "header": list(SPENT), "spent": rows}


def _held(run: Mapping[str, Any], sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values about a run that its ledgers also have."""
    held = _picked(run, "run", "setting", "trust", "delta", "ledgers")
    promises = {}
    for party, promise in run["promises"].items():
        if party != QUOTE:
            promises[re.sub(OF_SITES, r"\1 clients", party)] = promise
    held["promises"] = promises
    held["sites"] = [sets[name]["ledger"] for name in run["sites"]["names"]]
    return held


def _said(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the author's own statements about a run."""
    promises = run["promises"]
    return {
        **_picked(run, "seed", "setting", "trust", "delta"),
        "method": "",
        "engine": "",
        "conditions": run.get("beside", []),
        "promises": _picked(promises, QUOTE) if QUOTE in promises else {},
        "clients": run["sites"]["clients"],
        RUN_OF_SITES: run["sites"]["run"],
    }


def _picked(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names}
