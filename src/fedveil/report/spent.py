"""What was spent from a data set, kind by kind, and what its policy leaves."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

from fedveil.accounting import Policy
from fedveil.accounting.ledger import Ledger
from fedveil.gdp import rounded_down, rounded_up
from fedveil.report.table import NOTHING, Table, shown


def spent_of(ledger: Ledger, policy: Policy) -> Table:
    """A line a kind of cost; unlike kinds are not added."""
    rows = []
    for kind, (count, spent, limit) in policy.standing(e.spend for e in ledger.all_entries).items():
        at = {"leakage": f" at distance {policy.distance or 0:g}", "record_epsilon": f" at delta {policy.delta:g}"}
        left = NOTHING
        if limit is not None and kind != "record_epsilon":
            rest = math.sqrt(max(0.0, limit**2 - spent**2)) if kind.endswith("mu") else max(0.0, limit - spent)
            left = rounded_down(rest, 0 if kind == "participations" else 4)
        costs = "of unlike promises: no sum" if math.isinf(spent) else rounded_up(spent, 6)
        rows.append([f"{kind}{at.get(kind, '')}", str(count), costs, shown(limit, "g"), left])
    numbers = ("releases", "spent", "allowed", "left")
    notes = ["A release begun and not closed counts like any other. Left of a mu: what one more release may cost."]
    for doubt, count in Counter(entry.doubt for entry in ledger.all_entries if entry.doubt).items():
        notes.append(f"{count} of its releases cost what stands here if {doubt}; else far more.")
    return Table(("cost", *numbers), rows, "spent in all runs", numbers, notes=notes)


def used_of(ledgers: Sequence[Ledger], policy: Policy) -> Table:
    """The share of each total that is used: of the data set that has used most, and of the median one; no names.

    Neither names nor numbers of releases are told, and no more than these two figures of however many data sets.
    """
    shares: dict[str, list[float]] = {}
    for ledger in ledgers:
        for kind, (_, spent, limit) in policy.standing(e.spend for e in ledger.all_entries).items():
            if limit is not None:
                shares.setdefault(kind, []).append(spent / limit)
    rows = [
        (kind, *(f"{100 * float(rounded_up(x, 4)):.3g}%" for x in (max(v), median(v)))) for kind, v in shares.items()
    ]
    notes = [] if rows else ["The policy's [total] limits nothing, mu = 2.0 say, so there is no share to tell."]
    return Table(("total", "used at most", "median"), rows, numbers=("used at most", "median"), notes=notes)
