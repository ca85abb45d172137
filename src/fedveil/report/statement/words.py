"""Promises in sentences, with the attacker's odds; a heuristic gets the sentence why, and no number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedveil.accounting import VACUOUS
from fedveil.gdp import rounded_up

Promise = Mapping[str, Any]

UNITS = {
    "client": "a client, such as a hospital, with all its data",
    "record": "one record, such as one image or one row of a table",
    "person": "one person, with all her records",
    "parameter vector": "one vector of parameters",
}
FROM = {
    "central": "everyone but the server, which sees the clients' updates in the clear and is trusted to add the noise",
    "local": "everyone, the server included",
    "trusted sum": "everyone but whoever receives the clients' shares, who is trusted to hand on their sum alone",
    "secure sum": "everyone, the server included, which learns the sum of masked shares alone",
}
NEIGHBOURS = {
    "zero-out": "it contributed, or zero in its place",
    "add/remove": "it took part, or not at all",
    "replace-one": "its data were used, or any other data in their place",
}
SEES = {
    "central": ("every client's update in the clear", "the models that the server sends"),
    "local": ("noised updates alone", "the models that the server sends"),
    "trusted sum": ("the sum of noised shares", "the models that the server sends"),
    "secure sum": ("the sum of masked, noised shares", "the models that the server sends"),
}
"""What the server and what each client is sent, by trust."""


def percent(share: float) -> str:
    """A share in percent, rounded up so that no attacker does better."""
    return f"{float(rounded_up(100 * share, 3)):g}%"


def protected(promise: Promise) -> str:
    """Who is protected from whom, and what the best attacker can still tell."""
    status = promise["status"]
    if status == "none":
        return "Nobody is protected: there was no noise."
    unit, whom = UNITS[promise["unit"]], FROM[promise["trust"]]
    if status == "heuristic":
        return f"Nobody is promised anything: noise was added, but {promise.get('reason') or 'no definition holds'}."
    held = ", if the conditions below hold" if status == "conditional" else ""
    begun = f"Protected is {unit}, from {whom}{held}"
    if "epsilon" not in promise:
        return f"{begun}, only among vectors near each other: {promise['text']}. There is no epsilon for {unit}."
    meaning = promise["meaning"]
    odds = f"guesses right in at most {percent(meaning['accuracy'])} of the cases (50% is a coin)"
    caught = f"at one false alarm in 100 finds at most {percent(meaning['tpr_at_0.01'])}"
    epsilon = f"epsilon {rounded_up(promise['epsilon'])} at delta {promise['delta']:g}, over the whole run"
    asked = f"An attacker who knows all but whether {NEIGHBOURS[promise['relation']]}, {odds} and {caught}: {epsilon}."
    return f"{begun}. {asked}{vacuous(promise)}"


def vacuous(promise: Promise) -> str:
    """The warning behind a large epsilon, or nothing."""
    return f" Above {VACUOUS:g} an epsilon excludes nothing in practice." if promise.get("vacuous") else ""


def epsilon_of(promise: Promise) -> str | None:
    """The epsilon with its delta, or None where none is proven."""
    return f"{rounded_up(promise['epsilon'])} at delta {promise['delta']:g}" if "epsilon" in promise else None


def beside(promise: Promise) -> list[str]:
    """Promises for more, or less, than the unit."""
    found = []
    if "epsilon_of_10_records" in promise:
        found.append(f"10 records of one person together: epsilon {rounded_up(promise['epsilon_of_10_records'])}")
    if "epsilon_of_one_record" in promise:
        found.append(f"one of her records alone: epsilon {rounded_up(promise['epsilon_of_one_record'])}")
    return found
