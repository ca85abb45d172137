"""The figures of a report, measured by its author: accuracy with its interval, curves over the rounds, ROC curves."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import binomtest

from fedveil.evidence import Row
from fedveil_lab.attacks.statistics import roc, student_interval
from fedveil_lab.report.statement.document import Chart, Fact, Grid, ReportSection, Series
from fedveil_lab.runs.summary import Summary

MOST = 120  # points of a line
CURVES: Mapping[str, tuple[str, str, Callable[[Row], float | None]]] = {
    "accuracy": ("accuracy on held-out examples", "accuracy", lambda row: row["metrics"].get("accuracy")),
    "rmse": ("RMSE on held-out examples", "RMSE", lambda row: row["metrics"].get("rmse")),
    "worst": (
        "accuracy of the worst client",
        "accuracy",
        lambda row: row.get("clients", {}).get("accuracy", {}).get("worst"),
    ),
    "sigma": ("sigma of the noise, per coordinate", "sigma", lambda row: row["noise"].get("sigma")),
    "clipped": ("updates that were clipped", "share", lambda row: row["server"].get("clipped_fraction")),
}


def accuracy_of(runs: Mapping[str, Sequence[Summary]], statuses: Mapping[str, str]) -> ReportSection:
    """How accurate the model is: settings' runs, and the status of each setting's promise."""
    every = [summary for own in runs.values() for summary in own]
    bare = [label for label, status in statuses.items() if status == "none"]
    public = [summary.values.get("public_model", {}).get("metrics", {}) for summary in every]
    rivals = {f"{name} {metrics[name]:.3f}" for metrics in public for name in ("accuracy", "rmse") if name in metrics}
    majority = {f"{summary.values['majority']:.3f}" for summary in every if "majority" in summary.values}
    lines = [
        Fact.of("the same without noise", *(f"{label!r} below" for label in bare)),
        Fact.of("a model of public data alone", *sorted(rivals)),
        Fact.of("naming the most frequent class", *sorted(majority)),
    ]
    return ReportSection("accuracy", lines, [accuracy_rows(runs)] * bool(runs), curves(runs), said=True)


def accuracy_rows(runs: Mapping[str, Sequence[Summary]]) -> Grid:
    """Accuracy of each setting with a 95% interval, over its seeds or else over the examples it was measured on."""
    rows = []
    for label, own in runs.items():
        first = own[0]
        name = "rmse" if first.averaged("accuracy") is None and first.averaged("rmse") is not None else "accuracy"
        means = [value for summary in own if (value := summary.averaged(name)) is not None]
        clients = [summary.rows[-1].get("clients", {}).get(name, {}) for summary in own if summary.rows]
        tested = [summary.values["test_metrics"] for summary in own]
        examples = first.values["metrics"].get("examples") if name == "accuracy" else None
        wanted = ((clients, "median"), (clients, "worst"), (tested, name))
        rest = [[c[key] for c in curves if key in c] for curves, key in wanted]
        shown = [f"{name} {fmean(means):.3f}" if means else "", *_interval(means, examples)]
        rows.append([label, *shown, *(f"{fmean(each):.3f}" if each else "" for each in rest)])
    header = ("setting", "mean of the last rounds", "95%", "over", "median client", "worst client", "test set")
    return Grid("", header, rows)


def _interval(means: Sequence[float], examples: float | None) -> tuple[str, str]:
    """Student's interval over seeds; of one seed Wilson's over examples, which says nothing of other seeds."""
    if len(means) > 1:
        interval = student_interval(means)
        return f"{interval.low:.3f} to {interval.high:.3f}" if interval else "", f"{len(means)} seeds"
    if not means or not examples:
        return "", ""
    low, high = binomtest(round(means[0] * examples), round(examples)).proportion_ci(method="wilson")
    return f"{low:.3f} to {high:.3f}", f"{examples:.0f} held-out examples of one seed"


def curves(runs: Mapping[str, Sequence[Summary]]) -> list[Chart]:
    """Each figure over the rounds, a line a setting: the mean over its seeds, and their range."""
    charts = []
    for name, (title, unit, figure) in CURVES.items():
        series = []
        for colour, (label, own) in enumerate(runs.items()):
            values = [{row["round"]: v for row in summary.rows if (v := figure(row)) is not None} for summary in own]
            rounds = sorted(set.intersection(*(set(v) for v in values)))
            if rounds:
                at = [rounds[i] for i in sorted({round(i * (len(rounds) - 1) / (MOST - 1)) for i in range(MOST)})]
                columns = [[v[r] for v in values] for r in at]
                mean, low, high = ([_short(f(c)) for c in columns] for f in (fmean, min, max))
                series.append(Series(label, colour, at, mean, *((low, high) if len(own) > 1 else ())))
        if series:
            charts.append(Chart(name, title, "round", unit, series))
    return charts


def roc_charts(audits: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> list[Chart]:
    """ROC curves of the attack that reached most against each setting, for audits that keep scores or curves."""
    charts = []
    for number, audit in enumerate(audits):
        known = list(dict.fromkeys([*settings, *(result["setting"] for result in audit.get("results", ()))]))
        best: dict[str, tuple[float, Series]] = {}
        for result in audit.get("results", ()):
            setting, attack = result["setting"], result["attack"]
            drawn = audit.get("roc", {}).get(setting, {}).get(attack)
            if drawn is None and "scores" in result:
                drawn = roc(np.array(result["scores"]["in"]), np.array(result["scores"]["out"]))
            reached = result.get("auc", result)["point"]
            if drawn is not None and not result.get("supposed") and reached > best.get(setting, (-1.0,))[0]:
                false, true = ([_short(float(v)) for v in side] for side in drawn)
                best[setting] = reached, Series(f"{setting}: {attack}", known.index(setting), false, true)
        if best:
            title, series = f"{audit['game']}: the strongest attack on each setting", [one for _, one in best.values()]
            sides = ("false positive rate", "true positive rate")
            charts.append(Chart(f"roc{number}", title, *sides, series, bool(audit.get("roc"))))
    return charts


def _short(value: float) -> float:
    return float(f"{value:.4g}")
