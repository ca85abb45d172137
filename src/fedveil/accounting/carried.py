"""Costs that a ledger carries over without their lines: each cost with the number of times it was paid."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fedveil.accounting.ledger import Entry

Carried = tuple[tuple[int, Entry], ...]
GATHERED = "gathered"  # digest in an entry that stands for several releases


def gathered(entries: Iterable[Entry], carried: Carried = ()) -> Carried:
    """Count equal costs of entries, and add costs that were counted before.

    Parameters
    ----------
    entries : iterable of Entry
        One entry for each release. Its round, digest and question are dropped; the values for budgets, policies and
        reports are kept.
    carried : tuple of (int, Entry)
        Costs that were counted before.

    Returns
    -------
    tuple of (int, Entry)
        Each cost with its count, in the order in which costs were first paid.
    """
    counts: Counter[Entry] = Counter()
    for times, entry in carried:
        counts[entry] += times
    for entry in entries:
        counts[_cost_of(entry)] += 1
    return tuple((times, entry) for entry, times in counts.items())


def without(carried: Carried, entries: Iterable[Entry]) -> Carried:
    """Subtract the costs of some entries from carried costs.

    Raises
    ------
    ValueError
        If one of the entries is not among the carried costs.
    """
    counts = Counter({entry: times for times, entry in carried})
    counts.subtract(_cost_of(entry) for entry in entries)
    if any(times < 0 for times in counts.values()):
        raise ValueError("an entry is not among the costs that are carried")
    return tuple((times, entry) for entry, times in counts.items() if times)


def carried_values(carried: Carried) -> list[dict[str, Any]]:
    """Return carried costs as plain values for JSON; `fedveil.accounting.ledger.read_carried` reads them."""
    return [{"times": times, **_values_of(entry)} for times, entry in carried]


def _cost_of(entry: Entry) -> Entry:
    purpose = entry.key[1].partition(" ")[0]
    return replace(entry, key=(0, purpose), attempt=min(entry.attempt, 1), digest=GATHERED)


def _values_of(entry: Entry) -> dict[str, Any]:
    return {
        "round": entry.key[0],
        "purpose": entry.key[1],
        "attempt": entry.attempt,
        "digest": entry.digest,
        "spend": {**entry.spend.values(), "guarantee": json.loads(entry.spend.guarantee.text)},
        "source": entry.source,
        "rounds": entry.rounds,
        "format": entry.format,
    }
