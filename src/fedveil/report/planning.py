"""Tables of what privacy costs: planned, advised, promised and spent. Nothing here trains, or imports PyTorch."""

import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from fedveil.accounting import VACUOUS, Choice, Plan, Reading, advise, guarantee_values
from fedveil.gdp import meaning_of_mu, rounded_down, rounded_up
from fedveil.report.statement.document import WORDS, beside
from fedveil.report.table import NOTHING, Table, shown

if TYPE_CHECKING:
    from fedveil.accounting import Ledger, Policy
    from fedveil.runs.promised import Promise

WIDE = 140  # columns from which one table holds all that there is to say of a choice
USEFUL = 8.0  # a total epsilon that still excludes something


def advice_tables(choices: Sequence[Choice], delta: float, width: int) -> list[Table]:
    """What to turn on, the least noise first, with the lines for ``[privacy]``; two tables on a narrow page."""
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
    notes = [f"at that total, {g.meaning().describe()}" for g in proven[:1]]
    for g in [g for g in proven if g.unit == "record" and g.group == 1][:1]:
        many = rounded_up(g.of_group(10).epsilon(delta), 3)
        notes.append(f"a record is not a person: for 10 records of one person together epsilon is {many}")
    whole = Table(header, rows, numbers=("noise/signal",), wraps=("promise", "measured"), notes=notes, data=data)
    return [whole] if width >= WIDE else [whole.only(*header[:4]), whole.only("method", *header[4:])]


def reading_table(reading: Reading) -> Table:
    """What somebody's noise really promises."""
    promises = {name: guarantee_values(getattr(reading, name), reading.delta) for name in ("round", "total")}
    own = {name: getattr(reading, name) for name in ("sigma", "claimed", "least_sigma")}
    return Table.facts([("", line) for line in reading.describe()], {**own, **promises})


def promise_table(method: str, promise: "Promise", delta: float) -> Table:
    """What a configuration promises before it is run, everything that it rests on, and what is not known yet."""
    promised, rows = promise.guarantee, list[tuple[str, str]]()
    rows.append((f"{method}, {promise.planned} rounds", promised.describe(delta)))
    if promise.rounds < promise.planned:
        rows.append(("budget", f"ends the run after {promise.rounds} of {promise.planned} rounds"))
    if promise.validation is not None:
        rows.append(("validation clients", promise.validation.describe(delta)))
    if promised.proven and not promised.by_distance:
        rows.append(("for an attacker", promised.meaning().describe()))
        if promised.epsilon(delta) > VACUOUS:
            rows.append(("vacuous", "it excludes nothing in practice"))
    elif promised.reason:
        rows.append(("why", promised.reason))
    rows += [("holds if", condition) for condition in promised.conditions]
    rows += [("not known before the run", what) for what in promise.unknown]
    data = {"method": method, "rounds": promise.rounds, "rounds_planned": promise.planned, "unknown": promise.unknown}
    data |= {"first_hypotheses_apart": promise.first_apart, "guarantee": guarantee_values(promised, delta)}
    data["validation"] = None if promise.validation is None else guarantee_values(promise.validation, delta)
    return Table.facts(rows, data)


def meaning_of(guarantee: Mapping[str, Any]) -> str:
    """What a proven guarantee means for an attacker; an empty text for others."""
    if not (meaning := guarantee.get("meaning")):
        return ""
    rates = [(k.removeprefix("tpr_at_"), v) for k, v in meaning.items() if k.startswith("tpr_at_")]
    power = ", ".join(f"{rounded_up(v, 3)} at {100 * float(rate):g}% false positives" for rate, v in rates)
    line = f"the best attacker tells whether one {guarantee['unit']} was there with an accuracy of "
    line += f"{rounded_up(meaning['accuracy'], 3)}; its true positives are at most {power}."
    return " ".join([line, *(f"For {text}." for text in beside(guarantee))])


def useful(values: Mapping[str, Any]) -> str:
    """What would reach `USEFUL` for the federation of a run with a vacuous epsilon; an empty text for others."""
    worst = next(iter(values["guarantees"].values()))
    if not worst.get("vacuous"):
        return ""
    if "examples" not in values:
        return f"fedveil advise --epsilon {USEFUL:g} --clients ... ranks what would promise something"
    advised = advise(
        clients=max(1, round(sum(values["replies"].values()) / values["rounds"])),
        examples=max(1, values["examples"]),
        dimension=values["dimension"],
        rounds=values["rounds_planned"],
        epsilon=USEFUL,
        delta=worst["delta"],
        relation=worst["relation"],
    )
    ratios = [(f"{c.method} ({c.unit}, {c.trust}) {c.verdict}", c.noise_to_signal) for c in advised]
    parts = "; ".join(f"{what}, noise/signal {ratio:.2g}" for what, ratio in ratios if ratio is not None)
    return f"epsilon {USEFUL:g} in total: {parts}; fedveil advise CONFIG --epsilon {USEFUL:g} says how"


def plan_table(plan: Plan, conditions: Sequence[str] = ()) -> Table:
    """A plan with everything its numbers mean, and what its promise rests on beside."""
    epsilon = f"{rounded_up(plan.epsilon)} at delta {plan.delta:g}{' (vacuous)' if plan.vacuous else ''}"
    assumed = f"{plan.clients} clients, all in every round, uniform weights, updates clipped to {plan.clip:g}"
    rows = [
        ("epsilon", f"{epsilon}: the total over all {plan.rounds} rounds"),
        ("unit", "client: all data of one client"),
        ("relation", f"{plan.relation}: {WORDS['neighbours'][plan.relation]}"),
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
