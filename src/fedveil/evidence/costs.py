"""Tables of what privacy costs: planned, advised, read and spent. Nothing here trains, or imports PyTorch."""

import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from fedveil.accounting import Choice, Plan, Reading, guarantee_values
from fedveil.gdp import meaning_of_mu, rounded_down, rounded_up
from fedveil.tables import NOTHING, Table, shown

if TYPE_CHECKING:
    from fedveil.accounting import Ledger, Policy

# what each relation compares, of one unit
NEIGHBOURS: Mapping[str, str] = {
    "zero-out": "it contributed, or zero in its place",
    "add/remove": "it took part, or not at all",
    "replace-one": "its data were used, or any other data in their place",
}


def advice_tables(choices: Sequence[Choice], delta: float) -> list[Table]:
    """What to turn on, the least noise first; then, of each, the lines for ``[privacy]`` and what was measured."""
    rows, data = [], []
    for c in choices:
        ratio, text = shown(c.noise_to_signal, ".3g"), "\n".join(c.lines)
        promise = "heuristic: none" if c.guarantee is None else c.guarantee.describe(delta)
        rows.append((c.verdict, c.method, ratio, promise, text, c.evidence))
        guarantee = None if c.guarantee is None else guarantee_values(c.guarantee, delta)
        own = {name: value for name, value in vars(c).items() if name != "lines"}
        data.append({**own, "privacy": tomllib.loads(text), "guarantee": guarantee})
    header = ("verdict", "method", "noise/signal", "promise", "in [privacy]", "measured")
    proven = [c.guarantee for c in choices if c.guarantee is not None]
    notes = [f"At that total {g.meaning().describe()}." for g in proven[:1]]
    for g in [g for g in proven if g.unit == "record" and g.group == 1][:1]:
        many = rounded_up(g.of_group(10).epsilon(delta), 3)
        notes.append(f"A record is not a person: for 10 records of one person together epsilon is {many}.")
    whole = Table(header, rows, numbers=("noise/signal",), wraps=("promise", "measured"), notes=notes, data=data)
    return [whole.only(*header[:4]), whole.only("method", *header[4:])]


def reading_table(reading: Reading) -> Table:
    """What somebody's noise really promises."""
    promises = {name: guarantee_values(getattr(reading, name), reading.delta) for name in ("round", "total")}
    own = {name: getattr(reading, name) for name in ("sigma", "claimed", "least_sigma")}
    return Table.facts([("", line) for line in reading.describe()], {**own, **promises})


def plan_table(plan: Plan, conditions: Sequence[str] = ()) -> Table:
    """A plan with everything its numbers mean, and what its promise rests on beside."""
    epsilon = f"{rounded_up(plan.epsilon)} at delta {plan.delta:g}{' (vacuous)' if plan.vacuous else ''}"
    assumed = f"{plan.clients} clients, all in every round, uniform weights, updates clipped to {plan.clip:g}"
    rows = [
        ("epsilon", f"{epsilon}: the total over all {plan.rounds} rounds"),
        ("unit", "client: all data of one client"),
        ("relation", f"{plan.relation}: {NEIGHBOURS[plan.relation]}"),
        ("trust", "central: the server sees the clients' updates and adds the noise"),
        ("assumes", assumed),
        *(("holds if", condition) for condition in conditions),
        ("noise multiplier", f"{rounded_up(plan.noise_multiplier, 6)} (z)"),
        ("sigma", f"{rounded_up(plan.sigma)} per coordinate of the mean update: z C / n"),
        ("mu", f"{rounded_up(plan.mu)} (Gaussian DP, total)"),
        ("for an attacker", meaning_of_mu(plan.mu).describe()),
    ]
    if plan.signal_to_noise is not None:
        meaning = f"length of an update over length of the noise, {plan.dimension:,} parameters"
        rows.append(("signal to noise", f"{plan.signal_to_noise:.3g}: {meaning}"))
    rows += [("advice", plan.advice()), *(("warning", warning) for warning in plan.warnings)]
    own = ("vacuous", "signal_to_noise", "warnings")
    values = {**vars(plan), **{name: getattr(plan, name) for name in own}, "advice": plan.advice()}
    return Table.facts(rows, {**values, "unit": "client", "trust": "central", "conditions": conditions})


def spent_of(ledger: "Ledger", policy: "Policy") -> Table:
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


def used_of(ledgers: "Sequence[Ledger]", policy: "Policy") -> Table:
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
