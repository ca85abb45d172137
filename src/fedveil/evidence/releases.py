"""Spreadsheet of a ledger, with one line for each release: its cost, the total so far, and what is left."""

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedveil.accounting import total
from fedveil.errors import FieldError

if TYPE_CHECKING:
    from fedveil.accounting import Ledger, Policy, Spend

COLUMNS = (
    "release",
    "round",
    "purpose",
    "unit",
    "relation",
    "trust",
    "status",
    "delta",
    "epsilon",
    "epsilon_so_far",
    "cost",
    "spent",
    "allowed",
    "left",
)


def release_rows(ledger: "Ledger", policy: "Policy", delta: float) -> list[dict[str, Any]]:
    """List a ledger's releases in order, each with its cost and the totals so far.

    Parameters
    ----------
    ledger : Ledger
        Ledger of a data set or of a run.
    policy : Policy
        Policy; its limits determine what is left.
    delta : float
        Delta of the stated epsilon.

    Returns
    -------
    list of dict
        Rows with the keys `COLUMNS`. A missing number is an empty text: a heuristic has no epsilon, and different kinds
        of promises have no total. ``cost`` is the limited kind of cost with the smallest share left.
    """
    rows = []
    counts: Counter[Spend] = Counter()
    together: dict[Spend, Spend] = {}  # equal costs as one
    for number, entry in enumerate(ledger.all_entries, start=1):
        counts[entry.spend] += 1
        together[entry.spend] = _repeated(entry.spend, counts[entry.spend])
        guarantee = entry.spend.guarantee
        kind, spent, allowed, left = _tightest(policy, list(together.values()), number)
        round_, purpose = entry.key
        values = (
            number,
            round_,
            purpose.partition(" ")[0],
            guarantee.unit,
            guarantee.relation,
            guarantee.trust,
            guarantee.status,
            delta,
            _epsilon([entry.spend], delta),
            _epsilon(list(together.values()), delta),
            kind,
            spent,
            allowed,
            left,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def release_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    """Write the rows of `release_rows` as a table of comma-separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _epsilon(spends: "Sequence[Spend]", delta: float) -> float | str:
    """Return the epsilon of some releases together; "" if they have none."""
    try:
        together = total(spend.guarantee for spend in spends)
    except FieldError:
        return ""
    if not together.proven:
        return ""
    return together.epsilon(delta)


def _repeated(spend: "Spend", count: int) -> "Spend":
    """Return the cost of `count` equal releases."""
    guarantee = replace(spend.guarantee, bound=spend.guarantee.bound.repeated(count))
    charge = None if spend.charge is None else spend.charge * math.sqrt(count)
    return replace(spend, guarantee=guarantee, charge=charge)


def _tightest(
    policy: "Policy", spends: "Sequence[Spend]", releases: int
) -> tuple[str, float | str, float | str, float | str]:
    """Return the limited kind of cost with the smallest share left, and its spent, allowed and remaining cost.

    The spends stand for `releases` releases, which count as participations.
    """
    best: tuple[str, float | str, float | str, float | str] = ("", "", "", "")
    least = math.inf
    for kind, (_, spent, limit) in policy.standing(spends).items():
        if limit is None:
            continue
        if kind == "participations":
            spent = releases
        left = max(0.0, limit - spent)
        if kind.endswith("mu"):
            left = math.sqrt(max(0.0, limit**2 - spent**2))
        if left / limit < least:
            least, best = left / limit, (kind, spent, limit, left)
    return best
