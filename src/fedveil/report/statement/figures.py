"""The figures of a report: accuracy with its interval, curves over the rounds, ROC curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from fedveil.attacks.statistics import roc
from fedveil.report.statement.document import Chart, Grid, Series
from fedveil.report.statement.gather import Run
from fedveil.runs.summary import Row

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


def largest_epsilon(runs: Sequence[Run]) -> Run:
    """Of the repetitions of a setting, the run whose promise is the weakest."""
    return max(runs, key=lambda run: run.worst.get("epsilon", inf))


def accuracy_rows(runs: Mapping[str, Sequence[Run]]) -> Grid:
    """Accuracy of each setting with a 95% interval, over its seeds or else over the examples it was measured on."""
    rows = []
    for label, own in runs.items():
        name = "accuracy" if own[0].summary.averaged("accuracy") is not None else "rmse"
        means = [value for run in own if (value := run.summary.averaged(name)) is not None]
        clients = [run.summary.rows[-1].get("clients", {}).get(name, {}) for run in own if run.summary.rows]
        tested = [run.summary.values["test_metrics"] for run in own]
        interval, over = _interval(
            means, own[0].summary.values["metrics"].get("examples") if name == "accuracy" else None
        )
        rest = [
            [c[key] for c in found if key in c]
            for found, key in ((clients, "median"), (clients, "worst"), (tested, name))
        ]
        shown = [f"{name} {fmean(means):.3f}" if means else "", interval, over]
        rows.append([label, *shown, *(f"{fmean(each):.3f}" if each else "" for each in rest)])
    header = ("setting", "mean of the last rounds", "95%", "over", "median client", "worst client", "test set")
    return Grid("", header, rows)


def _interval(means: Sequence[float], examples: float | None) -> tuple[str, str]:
    """Student's interval over seeds; of one seed Wilson's over examples, which says nothing of other seeds."""
    if len(means) > 1:
        half = float(stdtrit(len(means) - 1, 0.975)) * stdev(means) / sqrt(len(means))
        return f"{fmean(means) - half:.3f} to {fmean(means) + half:.3f}", f"{len(means)} seeds"
    if not means or not examples:
        return "", ""
    z, p = float(ndtri(0.975)), means[0]
    centre, spread = p + z * z / (2 * examples), z * sqrt(p * (1 - p) / examples + (z / (2 * examples)) ** 2)
    low, high = ((centre + sign * spread) / (1 + z * z / examples) for sign in (-1, 1))
    return f"{low:.3f} to {high:.3f}", f"{examples:.0f} held-out examples of one seed"


def curves(runs: Mapping[str, Sequence[Run]]) -> list[Chart]:
    """Each figure over the rounds, a line a setting: the mean over its seeds, and their range."""
    charts = []
    for name, (title, unit, figure) in CURVES.items():
        series = []
        for colour, (label, own) in enumerate(runs.items()):
            values = [{row["round"]: v for row in run.summary.rows if (v := figure(row)) is not None} for run in own]
            rounds = sorted(set.intersection(*(set(v) for v in values)))
            if rounds:
                at = [rounds[i] for i in sorted({round(i * (len(rounds) - 1) / (MOST - 1)) for i in range(MOST)})]
                columns = [[v[r] for v in values] for r in at]
                mean, low, high = ([_short(f(c)) for c in columns] for f in (fmean, min, max))
                series.append(Series(label, colour, at, mean, *((low, high) if len(own) > 1 else ())))
        if series:
            charts.append(Chart(name, title, "round", unit, series))
    return charts


def roc_charts(audits: Sequence[Mapping[str, Any]], settings: list[str]) -> list[Chart]:
    """ROC curves of the attack that reached most against each setting, for audits that keep scores or curves."""
    charts = []
    for number, audit in enumerate(audits):
        best: dict[str, tuple[float, Series]] = {}
        settings += dict.fromkeys(r["setting"] for r in audit.get("results", ()) if r["setting"] not in settings)
        for result in audit.get("results", ()):
            setting, attack = result["setting"], result["attack"]
            drawn = audit.get("roc", {}).get(setting, {}).get(attack)
            if drawn is None and "scores" in result:
                drawn = roc(np.array(result["scores"]["in"]), np.array(result["scores"]["out"]))
            if drawn is None or result.get("supposed"):
                continue
            reached = result.get("auc", result)["point"]
            if reached > best.get(setting, (-1.0,))[0]:
                false, true = ([_short(float(v)) for v in side] for side in drawn)
                best[setting] = reached, Series(f"{setting}: {attack}", settings.index(setting), false, true)
        if best:
            title = f"{audit['game']}: the strongest attack on each setting"
            series = [one for _, one in best.values()]
            log = "roc" in audit and bool(audit["roc"])
            charts.append(Chart(f"roc{number}", title, "false positive rate", "true positive rate", series, log))
    return charts


def _short(value: float) -> float:
    return float(f"{value:.4g}")
