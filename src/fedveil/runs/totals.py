"""What all releases of a run promise together, party by party, from the ledgers alone."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from fedveil.accounting import Guarantee, Ledger, guarantee_values, unprotected
from fedveil.engines.history import totals_of
from fedveil.engines.party import SERVER
from fedveil.methods import Method

REACH = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)  # mu of the worst client at the distances of its curve, or about


def guarantees_of(
    method: Method, books: Mapping[str, Ledger], delta: float, on: Sequence[str] = ()
) -> tuple[Guarantee, dict[str, Any]]:
    """The guarantee that counts, and the parties': the trusted server's, or the worst and the median client's."""
    totals = totals_of(method.client.trust, books, on)
    clients, worst, validation = totals.clients, totals.worst, totals.validation
    beside = {} if validation is None else {"validation clients": guarantee_values(validation, delta)}
    if method.client.trust == "central":
        leakages = [[e.spend.leakage for e in book.entries if e.spend.leakage is not None] for book in books.values()]
        if most := max(leakages, key=math.fsum, default=[]):  # the indices that a client reported, beside its models
            index = {"participations": len(most), "leakage": math.fsum(most)}
            beside = {"worst client": guarantee_values(replace(unprotected(), scope="total"), delta) | index, **beside}
        return worst, {SERVER: guarantee_values(worst, delta), **beside}
    if not clients:
        return worst, {"worst client": guarantee_values(worst, delta), **beside}
    cost = {p: (not g.proven, g.cost, len(books[p].entries)) for p, g in clients.items()}
    order = sorted(clients, key=lambda p: (cost[p], p))
    values: dict[str, Any] = {}
    composed = all(g.by_distance for g in clients.values()) and find_spec("dp_accounting") is not None
    apart = [length / worst.bound.slope for length in REACH] if composed else []
    middle = order[(len(order) - 1) // 2]
    for name, party, guarantee in (("worst client", order[-1], worst), ("median client", middle, clients[middle])):
        spends = [e.spend for e in books[party].entries]
        leakage = [s.leakage for s in spends if s.leakage is not None]
        extra: dict[str, Any] = {"leakage": math.fsum(leakage)} if leakage else {}
        if composed:
            epsilons = [guarantee.epsilon_at(distance, delta) for distance in apart]
            extra["curve"] = {"distance": apart, "epsilon": epsilons, "delta": delta}
        values[name] = {**guarantee_values(guarantee, delta), "participations": len(spends), **extra}
    if composed:
        alike, one = Counter(g.bound for g in clients.values()), 1 / worst.bound.slope
        each = sorted((bound.epsilon_at(one, delta), n) for bound, n in alike.items())
        values["worst client"]["over clients"] = {
            "distance": one,
            "epsilon": [epsilon for epsilon, _ in each],
            "clients": [n for _, n in each],
            "delta": delta,
        }
    return worst, {**values, **beside}
