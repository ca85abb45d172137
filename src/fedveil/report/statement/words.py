"""Promises in sentences, with the attacker's odds; a heuristic gets the sentence why, and no number."""

from collections.abc import Mapping
from typing import Any

from fedveil.accounting import VACUOUS
from fedveil.gdp import rounded_up
from fedveil.report.statement.document import WORDS

Promise = Mapping[str, Any]


def percent(share: float) -> str:
    """A share in percent, rounded up so that no attacker does better."""
    return f"{float(rounded_up(100 * share, 3)):g}%"


def protected(promise: Promise) -> str:
    """Who is protected from whom, and what the best attacker can still tell."""
    status = promise["status"]
    if status == "none":
        return "Nobody is protected: there was no noise."
    unit, whom = WORDS["units"][promise["unit"]], WORDS["from"][promise["trust"]]
    if status == "heuristic":
        return f"Nobody is promised anything: noise was added, but {promise.get('reason') or 'no definition holds'}."
    held = ", if the conditions below hold" if status == "conditional" else ""
    begun = f"Protected is {unit}, from {whom}{held}"
    if "epsilon" not in promise:
        return f"{begun}, only among vectors near each other: {promise['text']}. There is no epsilon for {unit}."
    meaning, between = promise["meaning"], WORDS["neighbours"][promise["relation"]]
    odds = f"guesses right in at most {percent(meaning['accuracy'])} of the cases (50% is a coin)"
    caught = f"at one false alarm in 100 finds at most {percent(meaning['tpr_at_0.01'])}"
    epsilon = f"epsilon {rounded_up(promise['epsilon'])} at delta {promise['delta']:g}, over the whole run"
    vacuous = f" Above {VACUOUS:g} an epsilon excludes nothing in practice." if promise.get("vacuous") else ""
    return f"{begun}. An attacker who knows all but whether {between}, {odds} and {caught}: {epsilon}.{vacuous}"


def epsilon_of(promise: Promise) -> str | None:
    """The epsilon with its delta, or None where none is proven."""
    return f"{rounded_up(promise['epsilon'])} at delta {promise['delta']:g}" if "epsilon" in promise else None


def beside(promise: Promise) -> list[str]:
    """Promises for more, or less, than the unit."""
    others = {
        "epsilon_of_10_records": "10 records of one person together",
        "epsilon_of_one_record": "one of her records alone",
    }
    return [f"{what}: epsilon {rounded_up(promise[key])}" for key, what in others.items() if key in promise]
