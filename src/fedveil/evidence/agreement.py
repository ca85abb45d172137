"""Whether what was written down agrees with ledgers; conditions that were found since are no contradiction."""

from collections.abc import Mapping
from math import isclose
from pathlib import Path
from typing import Any

from fedveil.accounting.guarantee import DOUBTS
from fedveil.engines.party import SERVER
from fedveil.errors import LedgerError
from fedveil.evidence.carried import CLIENT, VALIDATION, Carried, Promises

MIDWAY = "begins in the middle of a run"  # ends a condition of `fedveil.engines.party.begun_midway`
OF_CONDITIONS = ("conditions", "status", "text")  # what another condition changes


def agree(first: Any, second: Any) -> bool:
    """Whether two plain values are the same, numbers to nine digits: other versions round otherwise."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(agree(first[k], second[k]) for k in first)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in (first, second)):
        return isclose(first, second)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(agree, first, second))
    return type(first) is type(second) and bool(first == second)


def promise_agrees(given: Mapping[str, Any], stated: Mapping[str, Any]) -> bool:
    """Whether a stated promise is the given one, or lacks no more than conditions that later versions found."""
    found = found_since(given, stated)
    known = [one for one in given.get("conditions", []) if one not in found]
    if known != list(stated.get("conditions", [])):
        return False
    if not found:
        return agree(given, stated)
    rest = [{k: v for k, v in promise.items() if k not in OF_CONDITIONS} for promise in (given, stated)]
    return agree(*rest)


def found_since(given: Mapping[str, Any], stated: Mapping[str, Any]) -> list[str]:
    """Conditions of a promise that are of releases of earlier versions, and that were not stated."""
    new = [one for one in given.get("conditions", []) if one not in stated.get("conditions", [])]
    return [one for one in new if one in DOUBTS or one.endswith(MIDWAY)]


def promises_differ(given: Promises, stated: Promises) -> str:
    """What differs between promises by party; an empty text where nothing does."""
    if missing := sorted(given.keys() - stated.keys()):
        return f"the ledgers have {', '.join(missing)}, of which nothing is said"
    if unknown := sorted(stated.keys() - given.keys()):
        return f"no ledger has {', '.join(unknown)}"
    for party, promise in given.items():
        if not promise_agrees(promise, stated[party]):
            return f"the ledgers give {party} {promise['text']}, and {stated[party].get('text')} is said"
    return ""


def require_carried(folder: Path, found: Carried, summary: Mapping[str, Any], stated: Promises) -> None:
    """Refuse a summary that its ledgers do not carry.

    Raises
    ------
    LedgerError
        Naming what they give.
    """
    why = "; ".join(found.faults) or _facts_differ(found, summary)
    own = {party: promise for party, promise in found.promises.items() if party in (SERVER, CLIENT, VALIDATION)}
    if own and not why:
        if found.trust == "central":  # who only reported an index is promised nothing, beside the server's promise
            stated = {party: p for party, p in stated.items() if (party, p.get("status")) != (CLIENT, "none")}
        why = promises_differ(own, stated)
        counts = SERVER if SERVER in own else CLIENT
        if not why and counts in own and summary["guarantee"] != stated[counts].get("text"):
            why = f"the ledgers give {own[counts]['text']}, and {summary['guarantee']} is said"
    if why:
        raise LedgerError(f"{folder}: {why}: summary.json and the ledgers do not agree; restore the folder")


def _facts_differ(found: Carried, summary: Mapping[str, Any]) -> str:
    known: dict[str, Any] = {"setting": found.setting, "trust": found.trust}
    known |= {} if found.clients is None else {"clients": found.clients}
    for name, value in known.items():
        if summary[name] != value:
            return f"the ledgers give {name} {value}, and {summary[name]} is said"
    if found.rounds < summary["rounds"]:
        return f"the server's ledger has {found.rounds} rounds, and {summary['rounds']} are said"
    return ""
