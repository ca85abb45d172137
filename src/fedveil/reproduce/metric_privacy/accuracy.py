"""Tables 5 to 8, A.14 and B.15: how accurate the models are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedveil.reproduce.cells import Outcome
from fedveil.reproduce.measure import Entry, Published, Value
from fedveil.reproduce.metric_privacy.plan import SETTINGS, Plan

Printed = dict[tuple[str, str, str, str], Published]

SMALL_NOISE, LARGE_NOISE = 0.003, (0.05, 0.1)  # of appendix B


def last_rounds(figure: str) -> Callable[[Sequence[Outcome]], Value]:
    """Mean and deviation over the last five rounds, on the clients' pooled held-out fifths."""

    def measure(outcomes: Sequence[Outcome]) -> Value:
        found = outcomes[0].summary.values["last_rounds"][figure]
        return Value(float(found["mean"]), float(found["deviation"]))

    return measure


def tested(figure: str) -> Callable[[Sequence[Outcome]], Value]:
    """The last model on the server's test half."""

    def measure(outcomes: Sequence[Outcome]) -> Value:
        return Value(float(outcomes[0].summary.values["test_metrics"].get(figure, math.nan)))

    return measure


def over_rounds(plan: Plan, printed: Printed, table: str, scenario: str) -> list[Entry]:
    """Tables 5 and 7."""
    measure = last_rounds("accuracy")
    return [
        Entry(
            plan.label(rule),
            setting,
            "accuracy",
            plan.replicates(scenario, rule, setting),
            measure,
            printed.get((table, plan.label(rule), setting, "accuracy")),
        )
        for rule in plan.rules
        for setting in SETTINGS
    ]


def on_test_half(
    plan: Plan, printed: Printed, table: str, scenario: str, figures: Sequence[str] = ("accuracy", "f1", "precision")
) -> list[Entry]:
    """Tables 6 and 8, and A.14 for the accuracy alone."""
    return [
        Entry(
            plan.label(rule),
            setting,
            figure,
            plan.replicates(scenario, rule, setting),
            tested(figure),
            printed.get((table, plan.label(rule), setting, figure)),
        )
        for rule in plan.rules
        for setting in SETTINGS
        for figure in figures
    ]


def other_noise(plan: Plan, printed: Printed) -> list[Entry]:
    """Table B.15, and the two larger multipliers of its text."""
    cases = [(rule, s, SMALL_NOISE, plan.label(rule)) for rule in plan.rules for s in ("global", "metric")]
    if "fedavg" in plan.rules:
        cases += [("fedavg", "global", z, f"{plan.label('fedavg')}, z = {z:g}") for z in LARGE_NOISE]
    measure = last_rounds("accuracy")
    return [
        Entry(
            row,
            setting,
            "accuracy",
            plan.replicates("homogeneous", rule, setting, multiplier=z),
            measure,
            printed.get(("B15", row, setting, "accuracy")),
        )
        for rule, setting, z, row in cases
    ]
