"""Comparison of written statements with ledgers; a condition found by a later version is no contradiction."""

from collections.abc import Mapping
from math import isclose
from pathlib import Path
from typing import Any

from fedveil.accounting.guarantee import DOUBTS
from fedveil.engines.party import SERVER
from fedveil.errors import LedgerError
from fedveil.evidence.carried import CLIENT, VALIDATION, Carried, Promises

MIDWAY = "begins in the middle of a run"  # ends a condition of `fedveil.engines.party.begun_midway`
OF_CONDITIONS = ("conditions", "status", "text")  # fields that another condition changes


def agree(first: Any, second: Any) -> bool:
    """Whether two plain values are equal; numbers are compared to nine digits, as versions round differently."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(
            agree(first[key], second[key]) for key in first
        )
    if _is_number(first) and _is_number(second):
        return isclose(first, second)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(agree, first, second))
    return type(first) is type(second) and bool(first == second)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def promise_agrees(given: Mapping[str, Any], stated: Mapping[str, Any]) -> bool:
    """Whether a stated promise is the given one, except for conditions that later versions found."""
    found = found_since(given, stated)
    known = [condition for condition in given.get("conditions", []) if condition not in found]
    if known != list(stated.get("conditions", [])):
        return False
    if not found:
        return agree(given, stated)
    return agree(_without_conditions(given), _without_conditions(stated))


def _without_conditions(promise: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in promise.items() if name not in OF_CONDITIONS}


def found_since(given: Mapping[str, Any], stated: Mapping[str, Any]) -> list[str]:
    """List conditions on old releases that a later version found and the statement lacks."""
    found = []
    for condition in given.get("conditions", []):
        doubted = condition in DOUBTS or condition.endswith(MIDWAY)
        if doubted and condition not in stated.get("conditions", []):
            found.append(condition)
    return found


def promises_differ(given: Promises, stated: Promises) -> str:
    """Describe the differences between promises by party; "" if there are none."""
    missing = sorted(given.keys() - stated.keys())
    if missing:
        return f"the ledgers have {', '.join(missing)}, of which nothing is said"
    unknown = sorted(stated.keys() - given.keys())
    if unknown:
        return f"no ledger has {', '.join(unknown)}"
    for party, promise in given.items():
        if not promise_agrees(promise, stated[party]):
            return f"the ledgers give {party} {promise['text']}, and {stated[party].get('text')} is said"
    return ""


def require_carried(
    folder: Path,
    found: Carried,
    summary: Mapping[str, Any],
    stated: Promises,
) -> None:
    """Refuse a summary that disagrees with its ledgers.

    Raises
    ------
    LedgerError
        If it disagrees; the text gives the ledgers' values.
    """
    why = (
        "; ".join(found.faults)
        or _facts_differ(found, summary)
        or _stated_differ(found, summary, stated)
    )
    if why:
        raise LedgerError(
            f"{folder}: {why}: summary.json and the ledgers do not agree; restore the folder"
        )


def _stated_differ(found: Carried, summary: Mapping[str, Any], stated: Promises) -> str:
    own = {
        party: found.promises[party]
        for party in found.promises
        if party in (SERVER, CLIENT, VALIDATION)
    }
    if not own:
        return ""
    if found.trust == "central" and stated.get(CLIENT, {}).get("status") == "none":
        # a client that only reported an index is promised nothing, beside the server's promise
        stated = {party: promise for party, promise in stated.items() if party != CLIENT}
    why = promises_differ(own, stated)
    counts = SERVER if SERVER in own else CLIENT
    if not why and counts in own and summary["guarantee"] != stated[counts].get("text"):
        why = f"the ledgers give {own[counts]['text']}, and {summary['guarantee']} is said"
    return why


def _facts_differ(found: Carried, summary: Mapping[str, Any]) -> str:
    known: dict[str, Any] = {"setting": found.setting, "trust": found.trust}
    if found.clients is not None:
        known["clients"] = found.clients
    for name, value in known.items():
        if summary[name] != value:
            return f"the ledgers give {name} {value}, and {summary[name]} is said"
    if found.rounds < summary["rounds"]:
        return f"the server's ledger has {found.rounds} rounds, and {summary['rounds']} are said"
    return ""
