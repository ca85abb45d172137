"""Tables of what privacy costs: planned, advised, promised and spent. Nothing here trains, or imports PyTorch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedveil.accounting import VACUOUS, advise, guarantee_values
from fedveil.gdp import rounded_up
from fedveil.tables import Table
from fedveil_lab.report.statement.document import beside

if TYPE_CHECKING:
    from fedveil_lab.runs.promised import Promise

USEFUL = 8.0  # a total epsilon that still excludes something


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


def for_an_attacker(guarantee: Mapping[str, Any]) -> str:
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
