"""Reports that earlier versions wrote: what they say of each run, in today's form; their pages are not compared."""

import re
from collections.abc import Mapping
from typing import Any

from fedveil.accounting.ledger import RUN_OF_SITES
from fedveil.tables import NOTHING

FORMAT = "fedveil report 1"
QUOTE = "a client of every round, by its quotes"  # of a deployed run, whose server's ledger does not hold it
OF_SITES = r"^(worst of \d+) of \d+ clients"  # whose ledgers were given, and how many there are
SPENT = ("cost", "releases", "spent", "allowed", "left")


def as_today(values: Mapping[str, Any]) -> dict[str, Any]:
    """Evidence and author's words of a report of that format, as far as they are compared."""
    evidence = values["evidence"]
    sets = {one["ledger"]["party"]: _set(one) for one in evidence["sets"]}
    pairs = [_run(run, sets) for run in evidence["runs"]]
    return {
        "evidence": {"runs": [held for held, _ in pairs], "sets": list(sets.values())},
        "said": {"runs": [said for _, said in pairs], "policy": evidence["policy"]},
        "form": values["made"]["form"],
        "files": values["files"],
    }


def _set(one: Mapping[str, Any]) -> dict[str, Any]:
    rows = [["" if cell == NOTHING else cell for cell in row] for row in one["spent"]]
    return {"ledger": one["ledger"], "header": list(SPENT), "spent": rows}


def _run(run: Mapping[str, Any], sets: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    held = {name: run[name] for name in ("run", "setting", "trust", "delta", "ledgers")}
    own = {party: promise for party, promise in run["promises"].items() if party != QUOTE}
    held["promises"] = {re.sub(OF_SITES, r"\1 clients", party): promise for party, promise in own.items()}
    held["sites"] = [sets[name]["ledger"] for name in run["sites"]["names"]]
    quoted = {party: promise for party, promise in run["promises"].items() if party == QUOTE}
    said = {name: run[name] for name in ("seed", "setting", "trust", "delta")}
    said |= {"method": "", "engine": "", "conditions": run.get("beside", []), "promises": quoted}
    return held, {**said, "clients": run["sites"]["clients"], RUN_OF_SITES: run["sites"]["run"]}
