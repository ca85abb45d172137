"""Figures of a report, measured by its author: accuracy with its interval, curves over the rounds, ROC curves."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import binomtest

from fedveil.evidence import Row
from fedveil_lab.attacks.statistics import roc, student_interval
from fedveil_lab.report.learned import chance_level, price_unreadable
from fedveil_lab.report.statement.document import Chart, Fact, Grid, ReportSection, Series
from fedveil_lab.runs.summary import Summary, over_rounds

MOST = 120  # points of a line


def _metric(name: str) -> Callable[[Row], Any]:
    """Return a function that reads a metric of a round."""

    def read(row: Row) -> Any:
        return row["metrics"].get(name)

    return read


def _worst_client(row: Row) -> Any:
    return row.get("clients", {}).get("accuracy", {}).get("worst")


def _sigma(row: Row) -> Any:
    return row["noise"].get("sigma")


def _clipped(row: Row) -> Any:
    return row["server"].get("clipped_fraction")


CURVES: Mapping[str, tuple[str, str, Callable[[Row], Any]]] = {
    "accuracy": ("accuracy on held-out examples", "accuracy", _metric("accuracy")),
    "rmse": ("RMSE on held-out examples", "RMSE", _metric("rmse")),
    "worst": ("accuracy of the worst client", "accuracy", _worst_client),
    "sigma": ("sigma of the noise, per coordinate", "sigma", _sigma),
    "clipped": ("updates that were clipped", "share", _clipped),
}


def accuracy_of(
    runs: Mapping[str, Sequence[Summary]], statuses: Mapping[str, str]
) -> ReportSection:
    """Make the section on accuracy from each setting's runs and the status of its promise."""
    rivals: set[str] = set()
    majority: set[str] = set()
    for own in runs.values():
        for summary in own:
            public = summary.values.get("public_model", {}).get("metrics", {})
            for name in ("accuracy", "rmse"):
                if name in public:
                    rivals.add(f"{name} {public[name]:.3f}")
            if "majority" in summary.values:
                majority.add(f"{summary.values['majority']:.3f}")
    bare = [f"{label!r} below" for label, status in statuses.items() if status == "none"]
    unlearned = []
    for label, own in runs.items():
        text = chance_level(own)
        if text:
            unlearned.append(f"{label!r}: {text}")
    lines = [
        Fact.of("the same without noise", *bare),
        Fact.of("a model of public data alone", *sorted(rivals)),
        Fact.of("naming the most frequent class", *sorted(majority)),
        Fact.of("learned nothing", *unlearned),
        Fact.of("the price of privacy", *price_unreadable(runs)),
    ]
    tables = []
    if runs:
        tables.append(accuracy_rows(runs))
    return ReportSection("accuracy", lines, tables, curves(runs), said=True)


def accuracy_rows(runs: Mapping[str, Sequence[Summary]]) -> Grid:
    """Make the table of accuracies with 95% intervals: over seeds, or with one seed over its examples."""
    rows = [[label, *_accuracies(own)] for label, own in runs.items()]
    header = (
        "setting",
        "mean of the last rounds",
        "95%",
        "over",
        "median client",
        "worst client",
        "test set",
    )
    return Grid("", header, rows)


def _accuracies(runs: Sequence[Summary]) -> list[str]:
    """Write the cells of one setting: mean and interval of its seeds, clients, and the set's own test half."""
    first = runs[0]
    name = "accuracy"
    if first.averaged("accuracy") is None and first.averaged("rmse") is not None:
        name = "rmse"
    means, clients, tested = [], [], []
    for summary in runs:
        value = summary.averaged(name)
        if value is not None:
            means.append(value)
        tested.append(summary.values["test_metrics"])
        if summary.rows:
            clients.append(summary.rows[-1].get("clients", {}).get(name, {}))
    examples, mean = None, ""
    if name == "accuracy":
        examples = first.values["metrics"].get("examples")
    if means:
        mean = f"{name} {fmean(means):.3f}"
    others = [_mean_of(clients, "median"), _mean_of(clients, "worst"), _mean_of(tested, name)]
    return [mean, *_interval(means, examples), *others]


def _mean_of(figures: Sequence[Mapping[str, float]], name: str) -> str:
    """Write the mean of a figure over the seeds that have it; an empty text if none has."""
    known = [own[name] for own in figures if name in own]
    if not known:
        return ""
    return f"{fmean(known):.3f}"


def _interval(means: Sequence[float], examples: float | None) -> tuple[str, str]:
    """Compute Student's interval over seeds; for one seed Wilson's over examples, which says nothing about other seeds."""
    if len(means) > 1:
        interval, ends = student_interval(means), ""
        if interval:
            ends = f"{interval.low:.3f} to {interval.high:.3f}"
        return ends, f"{len(means)} seeds"
    if not means or not examples:
        return "", ""
    low, high = binomtest(round(means[0] * examples), round(examples)).proportion_ci(
        method="wilson"
    )
    return f"{low:.3f} to {high:.3f}", f"{examples:.0f} held-out examples of one seed"


def curves(runs: Mapping[str, Sequence[Summary]]) -> list[Chart]:
    """Draw each figure over the rounds, with one line for each setting: mean and range of its seeds."""
    charts = []
    for name, (title, unit, figure) in CURVES.items():
        series = []
        for colour, (label, own) in enumerate(runs.items()):
            line = _line(label, colour, own, figure)
            if line is not None:
                series.append(line)
        if series:
            charts.append(Chart(name, title, "round", unit, series))
    return charts


def _line(
    label: str, colour: int, runs: Sequence[Summary], figure: Callable[[Row], Any]
) -> Series | None:
    """Make a setting's line from at most `MOST` of the rounds that all its seeds have; None without such rounds."""
    values = over_rounds(runs, figure)
    if not values:
        return None
    rounds = list(values)
    places = {round(i * (len(rounds) - 1) / (MOST - 1)) for i in range(MOST)}
    at, mean, low, high = [], [], [], []
    for place in sorted(places):
        round_ = rounds[place]
        at.append(round_)
        mean.append(_short(fmean(values[round_])))
        low.append(_short(min(values[round_])))
        high.append(_short(max(values[round_])))
    if len(runs) == 1:
        return Series(label, colour, at, mean)
    return Series(label, colour, at, mean, low, high)


def roc_charts(audits: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> list[Chart]:
    """Draw the ROC curve of the strongest attack on each setting, for audits that keep scores or curves."""
    charts = []
    for number, audit in enumerate(audits):
        best = _strongest(audit, settings)
        if best:
            title = f"{audit['game']}: the strongest attack on each setting"
            sides = ("false positive rate", "true positive rate")
            charts.append(Chart(f"roc{number}", title, *sides, best, bool(audit.get("roc"))))
    return charts


def _strongest(audit: Mapping[str, Any], settings: Sequence[str]) -> list[Series]:
    """Find the ROC curve of the strongest attack on each setting of an audit."""
    results = audit.get("results", ())
    known = list(settings)
    for result in results:
        if result["setting"] not in known:
            known.append(result["setting"])
    reached: dict[str, float] = {}
    curves: dict[str, Series] = {}
    for result in results:
        setting, attack = result["setting"], result["attack"]
        drawn = _roc(audit, result)
        point = result.get("auc", result)["point"]
        if drawn is None or result.get("supposed") or point <= reached.get(setting, -1.0):
            continue
        false, true = ([_short(float(value)) for value in side] for side in drawn)
        reached[setting] = point
        curves[setting] = Series(f"{setting}: {attack}", known.index(setting), false, true)
    return list(curves.values())


def _roc(audit: Mapping[str, Any], result: Mapping[str, Any]) -> Any:
    """Return a result's ROC curve, kept or computed from its scores; None without both."""
    drawn = audit.get("roc", {}).get(result["setting"], {}).get(result["attack"])
    if drawn is None and "scores" in result:
        return roc(np.array(result["scores"]["in"]), np.array(result["scores"]["out"]))
    return drawn


def _short(value: float) -> float:
    return float(f"{value:.4g}")
