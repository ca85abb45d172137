"""Tables of privacy costs: planned, advised, promised and spent. Nothing here trains or imports PyTorch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedveil.accounting import advise, guarantee_values
from fedveil.tables import Table
from fedveil_lab.report.statement.document import beside, how_strongly, who_is_protected

if TYPE_CHECKING:
    from fedveil_lab.runs.promised import Promise

USEFUL = 8.0  # a total epsilon that still excludes something


def promise_table(method: str, promise: "Promise", delta: float) -> Table:
    """Make the table of a configuration's promise before a run, with conditions and what is not known yet."""
    promised, rows = promise.guarantee, list[tuple[str, str]]()
    rows.append(("method", f"{method}, {promise.planned} rounds"))
    rows.append(("promise", in_words(guarantee_values(promised, delta))))
    rows.append(("in short", promised.describe(delta)))
    if promise.rounds < promise.planned:
        rows.append(("budget", f"ends the run after {promise.rounds} of {promise.planned} rounds"))
    if promise.validation is not None:
        rows.append(("validation clients", promise.validation.describe(delta)))
    rows += [("condition", condition) for condition in promised.conditions]
    rows += [("not known before the run", what) for what in promise.unknown]
    data = {
        "method": method,
        "rounds": promise.rounds,
        "rounds_planned": promise.planned,
        "unknown": promise.unknown,
    }
    data |= {
        "first_hypotheses_apart": promise.first_apart,
        "guarantee": guarantee_values(promised, delta),
    }
    data["validation"] = (
        None if promise.validation is None else guarantee_values(promise.validation, delta)
    )
    return Table.facts(rows, data)


def in_words(guarantee: Mapping[str, Any]) -> str:
    """Describe a guarantee in sentences: who is protected from whom, and how often the best attacker is right."""
    return " ".join(filter(None, (of_whom(guarantee), of_strength(guarantee))))


def of_whom(guarantee: Mapping[str, Any]) -> str:
    """Say who is protected from whom by a guarantee."""
    without = ""
    if guarantee["status"] == "heuristic":
        without = " There is no epsilon."
    return f"{who_is_protected(guarantee)}.{without}"


def of_strength(guarantee: Mapping[str, Any]) -> str:
    """Say how strong a guarantee is, for its unit and for smaller or larger ones; "" without an epsilon."""
    strength = how_strongly(guarantee)
    if not strength:
        return ""
    return " ".join(
        [strength[0].upper() + strength[1:], *(f"For {text}." for text in beside(guarantee))]
    )


def useful(values: Mapping[str, Any]) -> str:
    """Say what would give a run with vacuous epsilon a useful one (`USEFUL`); "" for other runs."""
    worst = next(iter(values["guarantees"].values()))
    if not worst.get("vacuous"):
        return ""
    if "examples" not in values:
        return (
            f"fedveil advise --epsilon {USEFUL:g} --clients ... ranks what would promise something"
        )
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
    parts = "; ".join(
        f"{what}, noise/signal {ratio:.2g}" for what, ratio in ratios if ratio is not None
    )
    return (
        f"epsilon {USEFUL:g} in total: {parts}; fedveil advise CONFIG --epsilon {USEFUL:g} says how"
    )
