"""Tables and a picture of a classifier's quality: sensitivity, specificity and calibration.

They are for the experimenter only. Figures are measured without noise on people whom no promise covers, and hospitals
are named.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedveil.evidence import Row
from fedveil.tables import NOTHING, Table
from fedveil_lab.report import canvas
from fedveil_lab.report.canvas import look, wrapped
from fedveil_lab.report.plotting import Axes, Figure, own_style
from fedveil_lab.report.tables import grouped, headline
from fedveil_lab.runs.summary import Summary, over_rounds

NAMES = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "auc": "ROC AUC",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "brier": "Brier score",
}
WORDS = (
    "measured on held-out people without noise; no promise covers them: do not pass the figures on"
)
OVER_ROUNDS = ("auc", "balanced_accuracy", "sensitivity", "specificity")
FEWEST = 5  # rows of a bin below which its point is drawn pale


def measured_on(found: Mapping[str, Any]) -> str:
    """Say on how many patients and rows figures were measured."""
    rows = f"{found['rows']} held-out rows"
    if not found["persons"]:
        return rows
    return f"{found['persons']} patients ({rows})"


def classified_tables(summary: Summary) -> list[Table]:
    """Make the tables of one run: figures with intervals, confusion matrix, calibration, and a line per hospital."""
    found = summary.values.get("classified", {})
    pooled = found.get("pooled") or found.get("test")
    if not pooled:
        return []
    tables = [_figures(found), _confusion(pooled), _calibration(pooled)]
    if len(found.get("hospitals", ())) > 1:
        tables.append(_hospitals(found["hospitals"], pooled))
    return tables


def compared_table(summaries: Sequence[Summary]) -> list[Table]:
    """Make the table of a comparison: figures of each setting, with intervals over its patients."""
    rows: list[dict[str, object]] = []
    measured: Mapping[str, Any] | None = None
    for label, runs in grouped(summaries).items():
        found = list(filter(None, map(_pooled, runs)))
        if not found:
            continue
        measured = measured or found[0]
        row: dict[str, object] = {"setting": label}
        for figure, name in NAMES.items():
            if all(figure in one["figures"] for one in found):
                row[name] = _mean([one["figures"][figure] for one in found])
        rows.append(row)
    if measured is None:
        return []
    title = _title(measured)
    seeds = max(map(len, grouped(summaries).values()))
    if seeds > 1:
        title += f"; means over {seeds} seeds of figures and of ends"
    return [Table.of(rows, title=title, notes=[WORDS])]


def _pooled(summary: Summary) -> Mapping[str, Any]:
    """Return the figures over all clients' held-out rows; empty where nothing was measured."""
    return summary.values.get("classified", {}).get("pooled") or {}


def _title(found: Mapping[str, Any]) -> str:
    """Write round, positive class and rows of figures."""
    over = f"95% intervals over {measured_on(found)}"
    if found["positive"]:
        return f"last round; positive class: {found['positive']}; {over}"
    return f"last round; {over}"


def _figures(found: Mapping[str, Any]) -> Table:
    """Make a line for each figure: on clients' held-out rows, and on the data set's test half."""
    parts = {"held out": found.get("pooled"), "test half": found.get("test")}
    there = {name: part for name, part in parts.items() if part}
    rows: list[dict[str, object]] = []
    for figure, name in NAMES.items():
        own = {part: _text(values["figures"].get(figure)) for part, values in there.items()}
        if set(own.values()) != {NOTHING}:
            rows.append({"figure": name, **own})
    part, first = next(iter(there.items()))
    for label, figures in first["by_class"].items():
        for figure, value in figures.items():
            rows.append({"figure": f"{NAMES[figure]} of {label}", part: _text(value)})
    return Table.of(rows, title=_title(first), data=dict(found))


def _confusion(found: Mapping[str, Any]) -> Table:
    """Make the confusion matrix: a line per true class, a column per predicted class."""
    columns = [f"predicted {name}" for name in found["classes"]]
    rows: list[dict[str, object]] = []
    for name, counts in zip(found["classes"], found["confusion"], strict=True):
        row: dict[str, object] = {"true": name}
        row.update(zip(columns, map(str, counts), strict=True))
        rows.append(row)
    return Table.of(rows, title=f"confusion matrix, {measured_on(found)}", numbers=columns)


def _calibration(found: Mapping[str, Any]) -> Table:
    """Make a line per bin: the predicted probability, and the share of rows that truly belong to the class."""
    what, held = "the predicted class", "where it is true"
    if found["positive"]:
        what, held = found["positive"], "that belong to it"
    rows: list[dict[str, object]] = []
    for one in found["calibration"]:
        rows.append(
            {
                "predicted": f"{one['said']:.3f}",
                "found": _text(one["found"]),
                "rows": str(one["rows"]),
            }
        )
    title = f"calibration: mean predicted probability of {what}, and the share of these rows {held}"
    return Table.of(rows, title=title, numbers=["rows"])


def _hospitals(hospitals: Sequence[Mapping[str, Any]], pooled: Mapping[str, Any]) -> Table:
    names = [name for name in NAMES if name in pooled["figures"]]
    counted = "held-out rows"
    if any(one.get("persons") for one in hospitals):
        counted = "patients"
    rows = []
    for one in hospitals:
        figures = one.get("figures", {})
        own = {NAMES[name]: _text(figures.get(name)) for name in names}
        count = str(one.get("persons") or one.get("rows", 0))
        rows.append({"client": one["name"], counted: count, **own})
    return Table.of(rows, title="by client", numbers=[counted], notes=[WORDS])


def _text(figure: Mapping[str, Any] | None) -> str:
    """Write a figure, with its interval if there is one."""
    if figure is None:
        return NOTHING
    if figure["low"] is None:
        return f"{figure['value']:.3f}"
    return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"


def _mean(figures: Sequence[Mapping[str, Any]]) -> str:
    """Write the mean over seeds of a figure and of its interval's ends."""
    means: dict[str, float | None] = {}
    for end in ("value", "low", "high"):
        known = [one[end] for one in figures if one[end] is not None]
        means[end] = None
        if len(known) == len(figures):
            means[end] = fmean(known)
    return _text(means)


@own_style()
def classes_figure(summaries: Sequence[Summary]) -> Figure | None:
    """Draw area, sensitivity and specificity over rounds, and the final calibration; None without figures."""
    known, measured = list(filter(None, map(_pooled, summaries))), set[str]()
    for summary in summaries:
        for row in summary.rows:
            measured.update(row["metrics"])
    if not known or not measured.issuperset(OVER_ROUNDS):
        return None
    width = 12.0
    figure, mosaic = canvas.new_figure(
        width,
        7.0,
        [
            ["auc", "sensitivity", "calibration"],
            ["balanced_accuracy", "specificity", "calibration"],
        ],
        [1, 1, 1.3],
    )
    for number, (label, runs) in enumerate(grouped(summaries).items()):
        style = {**look(number), "label": label}
        for name in OVER_ROUNDS:
            _over_rounds(mosaic[name], runs, name, style)
        _calibrated(mosaic["calibration"], runs[0], style)
    some = known[0]
    for name in OVER_ROUNDS:
        what = NAMES[name]
        if name in ("sensitivity", "specificity"):
            what += f" of {some['positive']}"
        mosaic[name].set(xlabel="round", ylabel=what, ylim=(-0.02, 1.02))
        mosaic[name].xaxis.set_major_locator(canvas.whole_numbers())
        if name in ("auc", "balanced_accuracy"):
            mosaic[name].axhline(0.5, color="#999999", linewidth=0.8, linestyle=":")
    axes = mosaic["calibration"]
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel=f"probability of {some['positive']} that the model gave",
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
    )
    axes.set_ylabel(f"share that was {some['positive']} (bars: 95%)")
    axes.set_title(f"after the last round; pale: fewer than {FEWEST} rows", fontsize=9)
    canvas.legend_below(figure, canvas.labelled(list(mosaic.values())), size=10)
    title = f"{headline(summaries)}; {measured_on(some)}; {WORDS}"
    figure.suptitle(wrapped(title, width, 10), fontsize=10)
    return figure


def _over_rounds(axes: Axes, runs: Sequence[Summary], name: str, style: Mapping[str, Any]) -> None:
    """Draw a figure's mean over seeds, in rounds where all seeds have it."""

    def figure(row: Row) -> Any:
        return row["metrics"].get(name)

    values = over_rounds(runs, figure)
    if values:
        rounds, means = list(values), list(map(fmean, values.values()))
        axes.plot(rounds, means, linewidth=1.6, marker=canvas.dot(rounds), **style)


def _calibrated(axes: Axes, run: Summary, style: Mapping[str, Any]) -> None:
    """Draw the calibration curve of one seed, as bins differ between seeds; bins with few rows are pale and unconnected."""
    found = _pooled(run)
    if not found:
        return
    many, few = [], []
    for one in found["calibration"]:
        if one["rows"] < FEWEST:
            few.append(one)
        else:
            many.append(one)
    _draw_bins(axes, many, style["color"], alpha=1.0, line=style["linestyle"])
    _draw_bins(axes, few, style["color"], alpha=0.25, line="none")


def _draw_bins(
    axes: Axes, bins: Sequence[Mapping[str, Any]], color: str, *, alpha: float, line: Any
) -> None:
    """Draw bins of a calibration curve with their intervals."""
    if not bins:
        return
    said, values, down, up = [], [], [], []
    for one in bins:
        share = one["found"]
        said.append(one["said"])
        values.append(share["value"])
        down.append(max(0.0, share["value"] - share["low"]))
        up.append(max(0.0, share["high"] - share["value"]))
    axes.errorbar(
        said,
        values,
        yerr=[down, up],
        alpha=alpha,
        linestyle=line,
        color=color,
        marker="o",
        markersize=4,
        elinewidth=0.8,
    )
