"""The figures of a report: accuracy with its interval, curves over the rounds, ROC curves; and charts as SVG.

A drawing takes its colours from the page, so that light, dark and paper are one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import StringIO
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import binomtest

from fedveil.attacks.statistics import roc, student_interval
from fedveil.evidence import Row
from fedveil.report.canvas import COLOURS, DASHES, dot, plain, whole_numbers
from fedveil.report.plotting import Figure, own_style
from fedveil.report.statement.document import Chart, Grid, Series
from fedveil.report.statement.gather import Run

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


def accuracy_rows(runs: Mapping[str, Sequence[Run]]) -> Grid:
    """Accuracy of each setting with a 95% interval, over its seeds or else over the examples it was measured on."""
    rows = []
    for label, own in runs.items():
        first = own[0].summary
        name = "rmse" if first.averaged("accuracy") is None and first.averaged("rmse") is not None else "accuracy"
        means = [value for run in own if (value := run.summary.averaged(name)) is not None]
        clients = [run.summary.rows[-1].get("clients", {}).get(name, {}) for run in own if run.summary.rows]
        tested = [run.summary.values["test_metrics"] for run in own]
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


INK, RULE = "#010203", "#040506"  # stand for the page's own colours, and are none of `COLOURS`
FIRST = "#0a0b"  # begins the stand-in of a line's colour
INKED: tuple[Any, ...] = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedveil",
    "font.family": "sans-serif",
    "font.size": 10,
}


def svg_of(chart: Chart) -> str:
    """One drawing, without a legend: the page has one that switches lines on and off by their ids, chart-0, chart-1."""
    with own_style({**STYLE, **dict.fromkeys(INKED, INK)}):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
        plain(axes)
        axes.grid(color=RULE, linewidth=0.6)
        for number, line in enumerate(chart.series):
            name, place = f"{chart.name}-{number}", line.colour % len(COLOURS)
            colour, dash = f"{FIRST}{place:02x}", DASHES[place]
            axes.plot(line.x, line.y, color=colour, linestyle=dash, lw=1.8, marker=dot(line.x), gid=name)
            if len(line.low):
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0, gid=f"{name}-band")
        axes.set(xlabel=chart.x, ylabel=chart.y)
        if chart.logarithmic:
            axes.set(xscale="log", yscale="log")
        elif chart.name == "sigma":
            axes.set_yscale("log")
        if chart.x == "round":
            axes.xaxis.set_major_locator(whole_numbers())
        written = StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(written.getvalue(), chart)


def _for_page(svg: str, chart: Chart) -> str:
    """The drawing alone, with the page's colours, a size that follows the column, and ids of its own."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :].strip(), flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace(RULE, "var(--rule)")
    svg = re.sub(rf"{FIRST}([0-9a-f]{{2}})", lambda m: f"var(--line{int(m[1], 16)})", svg)
    svg = re.sub(r'(id="|xlink:href="#|url\(#)(?!' + chart.name + ")", rf"\g<1>{chart.name}-", svg)
    said = f"{chart.title}: {', '.join(s.label for s in chart.series)}; the table below has the numbers"
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(said)}"', 1)
