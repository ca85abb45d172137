"""Figures C.2, C.3, D.4 and D.5, and two of our own: the distance and the noise over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from sklearn.metrics import roc_curve

from fedveil.reproduce.cells import Outcome
from fedveil.reproduce.measure import Published
from fedveil.reproduce.metric_privacy.plan import SETTINGS, Plan
from fedveil.reproduce.models import outputs, test_half
from fedveil.reproduce.study import Curve, Line, Plot

Printed = dict[tuple[str, str, str, str], Published]
GRID = np.linspace(0, 1, 201)  # false positive rates


def accuracy_plot(plan: Plan, printed: Printed, scenario: str, table: str, title: str) -> Plot:
    """Figures D.4 and D.5: a panel a setting, a line a rule."""
    lines = []
    for setting, panel in SETTINGS.items():
        for rule in plan.rules:
            place = (table, plan.label(rule), setting, "accuracy")
            level = printed[place].value if place in printed else None
            lines.append(
                Line(
                    panel,
                    plan.label(rule),
                    plan.replicates(scenario, rule, setting),
                    _rounds("metrics", "accuracy"),
                    level,
                )
            )
    said = f"ticks at the right: the paper's mean of the last five rounds (table {table})"
    return Plot(title, "round", "accuracy on the clients' held-out fifths", lines, printed=said)


def roc_plot(plan: Plan, _printed: Printed, scenario: str, title: str) -> Plot:
    """Figures C.2 and C.3: one class against the rest, micro average, on the server's test half."""
    lines = [
        Line(panel, plan.label(rule), plan.replicates(scenario, rule, setting), _roc)
        for setting, panel in SETTINGS.items()
        for rule in plan.rules
    ]
    return Plot(title, "false positive rate", "true positive rate", lines, diagonal=True)


def noise_plot(plan: Plan, _printed: Printed, scenario: str, title: str) -> Plot:
    """Distance d and sigma of metric privacy over the rounds, a line a rule; global DP's sigma as a level."""
    lines = []
    for rule in plan.rules:
        replicates = plan.replicates(scenario, rule, "metric")
        for panel, name in (("distance d", "distance"), ("sigma, metric privacy", "sigma")):
            lines.append(Line(panel, plan.label(rule), replicates, _rounds("noise", name)))
    if plan.rules:
        fixed = plan.replicates(scenario, plan.rules[0], "global")
        lines.append(Line("sigma, metric privacy", "global DP", fixed, _rounds("noise", "sigma")))
    return Plot(title, "round", "", sorted(lines, key=lambda line: line.panel))


def _rounds(group: str, name: str) -> Callable[[Sequence[Outcome]], Curve]:
    def curve(outcomes: Sequence[Outcome]) -> Curve:
        rows = [row for row in outcomes[0].summary.rows if name in row[group]]
        return Curve([float(row["round"]) for row in rows], [float(row[group][name]) for row in rows])

    return curve


def _roc(outcomes: Sequence[Outcome]) -> Curve:
    [outcome] = outcomes
    examples = test_half(outcome.cell.config)
    scores = outputs(outcome, examples).softmax(1).numpy()
    truth = np.eye(examples.classes, dtype=bool)[examples.y.numpy()]
    false, true, _ = roc_curve(truth.ravel(), scores.ravel())
    area = outcome.summary.values["test_metrics"]["auc"]
    return Curve(GRID.tolist(), np.interp(GRID, false, true).tolist(), float(area))
