"""Tables of privacy costs: planned, advised, read from a configuration, and spent. Nothing here needs PyTorch."""

import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING, Any

from fedveil.accounting import Choice, Plan, Reading, guarantee_values
from fedveil.accounting.planning import ENOUGH
from fedveil.gdp import meaning_of_mu, rounded_down, rounded_up
from fedveil.tables import NOTHING, Table, shown

if TYPE_CHECKING:
    from fedveil.accounting import Ledger, Policy

# the two inputs that each relation compares, for one unit
NEIGHBOURS: Mapping[str, str] = {
    "zero-out": "it contributed, or a zero stood in its place",
    "add/remove": "it took part, or not at all",
    "replace-one": "its data were used, or any other data in their place",
}


def advice_tables(choices: Sequence[Choice], delta: float) -> list[Table]:
    """Make tables of choices, the least noise first: one of the choices, one with their configuration lines and evidence."""
    rows = []
    for choice in choices:
        promise = (
            "heuristic: none" if choice.guarantee is None else choice.guarantee.describe(delta)
        )
        ratio, lines = shown(choice.noise_to_signal, ".3g"), "\n".join(choice.lines)
        name = _variant(choice)
        rows.append((choice.verdict, name, ratio, promise, lines, choice.evidence))
    header = ("verdict", "method", "noise/signal", "promise", "in [privacy]", "measured")
    whole = Table(
        header,
        rows,
        numbers=("noise/signal",),
        wraps=("promise", "measured"),
        notes=_notes_on(choices, delta),
        data=[_choice_values(choice, delta) for choice in choices],
    )
    settings = header[4:] if any(choice.evidence for choice in choices) else header[4:5]
    return [whole.only(*header[:4]), whole.only("method", *settings)]


def _variant(choice: Choice) -> str:
    """Return a choice's method, with what tells it from other choices of the same method."""
    privacy = tomllib.loads("\n".join(choice.lines))
    if "sum" in privacy:
        return f"{choice.method}, {privacy['sum']} sum"
    if "scores" in privacy:
        return f"{choice.method}, {privacy['scores']} scores"
    return choice.method


def _choice_values(choice: Choice, delta: float) -> dict[str, Any]:
    values = {name: value for name, value in vars(choice).items() if name != "lines"}
    values["privacy"] = tomllib.loads("\n".join(choice.lines))
    values["guarantee"] = (
        None if choice.guarantee is None else guarantee_values(choice.guarantee, delta)
    )
    return values


def _notes_on(choices: Sequence[Choice], delta: float) -> list[str]:
    """Explain the columns, the promise of the first choice, and of the first one for single records."""
    notes = [
        "noise/signal: length of the noise of all rounds over the largest possible length of all their mean updates.",
        f"possible: noise/signal up to 1; hard: up to {1 / ENOUGH:.2g}; hopeless: above (a rule of thumb, too strict for images).",
    ]
    proven = [choice.guarantee for choice in choices if choice.guarantee is not None]
    if proven:
        notes.append(f"At that total {proven[0].meaning().describe()}.")
    of_records = [
        guarantee for guarantee in proven if guarantee.unit == "record" and guarantee.group == 1
    ]
    if of_records:
        many = rounded_up(of_records[0].of_group(10).epsilon(delta))
        notes.append(
            f"A record is not a person: for 10 records of one person together epsilon is {many}."
        )
    return notes


def reading_table(reading: Reading) -> Table:
    """Make a list of what an existing configuration really promises."""
    data = {name: getattr(reading, name) for name in ("sigma", "claimed", "least_sigma")}
    for name in ("round", "total"):
        data[name] = guarantee_values(getattr(reading, name), reading.delta)
    return Table.facts([("", line) for line in reading.describe()], data)


def plan_table(plan: Plan, conditions: Sequence[str] = ()) -> Table:
    """Make a list of a plan's numbers, their meaning, and the conditions of its promise."""
    vacuous = " (vacuous)" if plan.vacuous else ""
    epsilon = f"{rounded_up(plan.epsilon)} at delta {plan.delta:g}{vacuous}"
    assumed = f"{plan.clients} clients, all in every round, uniform weights, updates clipped to {plan.clip:g}"
    rows = [
        ("epsilon", f"{epsilon}: the total over all {plan.rounds} rounds"),
        ("unit", "client: all data of one client"),
        ("relation", f"{plan.relation}: {NEIGHBOURS[plan.relation]}"),
        ("trust", "central: the server sees the clients' updates and adds the noise"),
        ("assumes", assumed),
        *zip(repeat("condition"), conditions, strict=False),
        ("noise multiplier", f"{rounded_up(plan.noise_multiplier, 6)} (z)"),
        ("sigma", f"{rounded_up(plan.sigma)} per coordinate of the mean update: z C / n"),
        ("mu", f"{rounded_up(plan.mu)} (Gaussian DP, total)"),
        ("for an attacker", meaning_of_mu(plan.mu).describe()),
    ]
    if plan.signal_to_noise is not None:
        meaning = (
            f"length of all rounds' noise over that of all updates, {plan.dimension:,} parameters"
        )
        rows.append(("noise/signal", f"{1 / plan.signal_to_noise:.3g}: {meaning}"))
    rows.append(("advice", plan.advice()))
    rows += [("warning", warning) for warning in plan.warnings]
    computed = {name: getattr(plan, name) for name in ("vacuous", "signal_to_noise", "warnings")}
    rest = {"advice": plan.advice(), "unit": "client", "trust": "central", "conditions": conditions}
    return Table.facts(rows, {**vars(plan), **computed, **rest})


def spent_of(ledger: "Ledger", policy: "Policy") -> Table:
    """Make a table of spent costs, with a line for each kind; different kinds are not added."""
    rows = []
    for kind, (count, spent, limit) in policy.standing(e.spend for e in ledger.all_entries).items():
        costs = "of unlike promises: no sum" if math.isinf(spent) else rounded_up(spent, 6)
        name = kind + _counted_at(kind, policy)
        left = _left(kind, spent, limit)
        rows.append([name, str(count), costs, shown(limit, "g"), left])
    numbers = ("releases", "spent", "allowed", "left")
    notes = [
        "A release that was begun and not closed counts, too. For a mu, `left` is the largest mu that one more release may have."
    ]
    if any(row[0] == "unprotected" for row in rows):
        notes.append(
            "unprotected: releases without noise of this party; under local trust the clients' ledgers have the costs."
        )
    doubts = Counter(entry.doubt for entry in ledger.all_entries if entry.doubt)
    for doubt, count in doubts.items():
        notes.append(f"{count} of its releases cost what stands here if {doubt}; else far more.")
    return Table(("cost", *numbers), rows, "spent in all runs", numbers, notes=notes)


def _counted_at(kind: str, policy: "Policy") -> str:
    """Return the distance or delta at which a kind of cost is counted, as a text."""
    if kind == "leakage":
        return f" at distance {policy.distance or 0:g}"
    if kind == "record_epsilon":
        return f" at delta {policy.delta:g}"
    return ""


def _left(kind: str, spent: float, limit: float | None) -> str:
    """Return how much one more release may cost; `NOTHING` if that is not known."""
    if limit is None or kind == "record_epsilon":
        return NOTHING
    if kind.endswith("mu"):
        rest = math.sqrt(max(0.0, limit**2 - spent**2))
    else:
        rest = max(0.0, limit - spent)
    return rounded_down(rest, 0 if kind == "participations" else 4)


def used_of(ledgers: "Sequence[Ledger]", policy: "Policy") -> Table:
    """Make a table of the used share of each limit: of the data set that used most, and of the median one.

    The table has no names and no numbers of releases.
    """
    shares: dict[str, list[float]] = {}
    for ledger in ledgers:
        for kind, (_, spent, limit) in policy.standing(e.spend for e in ledger.all_entries).items():
            if limit is not None:
                shares.setdefault(kind, []).append(spent / limit)
    rows = [(kind, _percent(max(used)), _percent(median(used))) for kind, used in shares.items()]
    notes = (
        []
        if rows
        else ["The policy's [total] limits nothing, mu = 2.0 say, so there is no share to tell."]
    )
    return Table(
        ("total", "used at most", "median"), rows, numbers=("used at most", "median"), notes=notes
    )


def _percent(share: float) -> str:
    return f"{100 * float(rounded_up(share, 4)):.3g}%"
