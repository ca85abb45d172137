"""Two tables that the paper lacks, on its own runs: metric privacy at equal noise, and how smooth the curves are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from fedveil.reproduce.cells import Outcome
from fedveil.reproduce.measure import Entry, Value
from fedveil.reproduce.metric_privacy.accuracy import Printed, last_rounds, tested
from fedveil.reproduce.metric_privacy.plan import EQUAL, SETTINGS, Plan

ROUGHNESS = "change a round"
CLIMB = 4  # the first of so many parts of a run: everything climbs there


def equal_noise(plan: Plan, _printed: Printed, scenario: str) -> list[Entry]:
    """Metric privacy beside global DP whose sigma is, in every round, the average one of metric privacy's own run."""
    measure = last_rounds("accuracy")
    return [
        Entry(plan.label(rule), setting, "accuracy", plan.replicates(scenario, rule, setting), measure)
        for rule in plan.rules
        for setting in ("metric", *EQUAL)
    ]


def area(plan: Plan, _printed: Printed, scenario: str) -> list[Entry]:
    """Area under the ROC curve of the last model, micro average over the classes; the paper prints it in a figure."""
    return [
        Entry(plan.label(rule), setting, "AUC", plan.replicates(scenario, rule, setting), tested("auc"))
        for rule in plan.rules
        for setting in SETTINGS
    ]


def roughness(plan: Plan, _printed: Printed, scenario: str) -> list[Entry]:
    """Mean absolute change of the accuracy from one round to the next."""
    return [
        Entry(plan.label(rule), setting, ROUGHNESS, plan.replicates(scenario, rule, setting), _change)
        for rule in plan.rules
        for setting in SETTINGS
    ]


def _change(outcomes: Sequence[Outcome]) -> Value:
    series = [float(row["metrics"]["accuracy"]) for row in outcomes[0].summary.rows]
    settled = series[len(series) // CLIMB :]
    return Value(fmean(abs(b - a) for a, b in pairwise(settled)) if len(settled) > 1 else float("nan"))
