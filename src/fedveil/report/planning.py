"""Tables of plans and of advice. Nothing here trains, so nothing here imports PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.accounting import Choice, Plan, advise
from fedveil.accounting.meaning import meaning_of_mu
from fedveil.gdp import rounded_up
from fedveil.report.table import NOTHING, Table

USEFUL = 8.0  # a total epsilon that still excludes something


def advice_table(choices: Sequence[Choice], delta: float) -> Table:
    """What to turn on, the least noise first, with the lines for ``[privacy]``."""
    rows = []
    for c in choices:
        ratio = NOTHING if c.noise_to_signal is None else f"{c.noise_to_signal:.3g}"
        promise = "heuristic: none" if c.guarantee is None else c.guarantee.describe(delta)
        rows.append((c.verdict, c.method, ratio, promise, "\n".join(c.lines), c.evidence))
    header = ("verdict", "method", "noise/signal", "promise", "in [privacy]", "measured")
    proven = [c.guarantee for c in choices if c.guarantee is not None]
    notes = [f"at that total, {g.meaning().describe()}" for g in proven[:1]]
    for g in [g for g in proven if g.unit == "record"][:1]:
        many = rounded_up(g.of_group(10).epsilon(delta), 3)
        notes.append(f"a record is not a person: for 10 records of one person together epsilon is {many}")
    return Table(header, rows, numbers=("noise/signal",), wraps=("promise", "measured"), notes=notes)


def useful(values: Mapping[str, Any]) -> str:
    """What would reach `USEFUL` for the federation of a run with a vacuous epsilon; an empty text for others."""
    worst = next(iter(values["guarantees"].values()))
    if not worst.get("vacuous"):
        return ""
    if "examples" not in values:
        return f"fedveil advise --epsilon {USEFUL:g} --clients ... ranks what would promise something"
    found = advise(
        clients=max(1, round(sum(values["replies"].values()) / values["rounds"])),
        examples=max(1, values["examples"]),
        dimension=values["dimension"],
        rounds=values["rounds_planned"],
        epsilon=USEFUL,
        delta=worst["delta"],
        relation=worst["relation"],
    )
    parts = [
        f"{c.method} ({c.unit}, {c.trust}) {c.verdict}, noise/signal {c.noise_to_signal:.2g}"
        for c in found
        if c.noise_to_signal is not None
    ]
    return f"epsilon {USEFUL:g} in total: {'; '.join(parts)}; fedveil advise CONFIG --epsilon {USEFUL:g} says how"


def plan_table(plan: Plan) -> Table:
    """A plan with everything its numbers mean."""
    rows: list[tuple[str, str]] = []
    flag = " (vacuous)" if plan.vacuous else ""
    rows.append(
        (
            "epsilon",
            f"{rounded_up(plan.epsilon)} at delta {plan.delta:g}{flag}: the total over all {plan.rounds} rounds",
        )
    )
    rows.append(("unit", "client: all data of one client"))
    rows.append(("relation", f"{plan.relation}: {_RELATIONS[plan.relation]}"))
    rows.append(("trust", "central: the server sees the clients' updates and adds the noise"))
    assumed = f"{plan.clients} clients, all in every round, uniform weights, updates clipped to {plan.clip:g}"
    rows.append(("assumes", assumed))
    rows.append(("noise multiplier", f"{rounded_up(plan.noise_multiplier, 6)} (z)"))
    rows.append(("sigma", f"{rounded_up(plan.sigma)} per coordinate of the mean update: z C / n"))
    rows.append(("mu", f"{rounded_up(plan.mu)} (Gaussian DP, total)"))
    rows.append(("for an attacker", meaning_of_mu(plan.mu).describe()))
    if plan.signal_to_noise is not None:
        meaning = f"length of an update over length of the noise, {plan.dimension:,} parameters"
        rows.append(("signal to noise", f"{plan.signal_to_noise:.3g}: {meaning}"))
    rows.append(("advice", plan.advice()))
    for warning in plan.warnings:
        rows.append(("warning", warning))
    return Table.facts(rows)


_RELATIONS: dict[str, str] = {
    "zero-out": "a client's update, or zero in its place",
    "add/remove": "with the client, or without it",
    "replace-one": "a client's data, or any other data in their place",
}
