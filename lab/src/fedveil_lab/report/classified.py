"""Tables and a picture of what a physician asks: sensitivity and specificity of the named class, calibration.

For the experimenter's own eyes: measured without noise on people whom no promise covers, hospitals by their names.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedveil.tables import NOTHING, Table
from fedveil_lab.report import canvas
from fedveil_lab.report.canvas import look, wrapped
from fedveil_lab.report.plotting import Axes, Figure, own_style
from fedveil_lab.report.tables import grouped, headline
from fedveil_lab.runs.summary import Summary

NAMES = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "auc": "ROC AUC",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "brier": "Brier score",
}
WORDS = "measured without noise on people whom no promise covers: for you alone, not to be handed on"
OVER_ROUNDS = ("auc", "balanced_accuracy", "sensitivity", "specificity")
FEWEST = 5  # rows of a bin below which its point is drawn pale


def measured_on(found: Mapping[str, Any]) -> str:
    """How many patients and rows figures are of."""
    rows = f"{found['rows']} held-out rows"
    return f"{found['persons']} patients ({rows})" if found["persons"] else rows


def classified_tables(summary: Summary) -> list[Table]:
    """Of one run: figures with intervals, who was taken for what, calibration, each hospital by its name."""
    found = summary.values.get("classified", {})
    pooled = found.get("pooled") or found.get("test")
    if not pooled:
        return []
    tables = [_figures(found), _confusion(pooled), _calibration(pooled)]
    return [*tables, _hospitals(found["hospitals"], pooled)] if len(found.get("hospitals", ())) > 1 else tables


def compared_table(summaries: Sequence[Summary]) -> list[Table]:
    """Of a comparison: each setting's figures with intervals over its patients."""
    rows = []
    for label, runs in grouped(summaries).items():
        found = [run.values["classified"]["pooled"] for run in runs if run.values.get("classified", {}).get("pooled")]
        if found:
            names = [name for name in NAMES if all(name in one["figures"] for one in found)]
            rows.append({"setting": label, **{NAMES[n]: _mean([one["figures"][n] for one in found]) for n in names}})
    if not rows:
        return []
    some = next(
        run.values["classified"]["pooled"] for run in summaries if run.values.get("classified", {}).get("pooled")
    )
    seeds = max(len(runs) for runs in grouped(summaries).values())
    over = f"; means over {seeds} seeds of figures and of ends" if seeds > 1 else ""
    title = f"last round, {_of_positive(some)}95% over {measured_on(some)}{over}"
    return [Table.of(rows, title=title, notes=[WORDS])]


def _of_positive(found: Mapping[str, Any]) -> str:
    return f"positive: {found['positive']}, " if found["positive"] else ""


def _figures(found: Mapping[str, Any]) -> Table:
    parts = {"held out": found.get("pooled"), "test half": found.get("test")}
    there = {name: part for name, part in parts.items() if part}
    rows = []
    for figure, name in NAMES.items():
        own = {part: _text(values["figures"].get(figure)) for part, values in there.items()}
        if any(text != NOTHING for text in own.values()):
            rows.append({"figure": name, **own})
    first = next(iter(there.values()))
    for label, figures in first["by_class"].items():
        for figure, value in figures.items():
            rows.append({"figure": f"{NAMES[figure]} of {label}", next(iter(there)): _text(value)})
    title = f"last round, {_of_positive(first)}95% over {measured_on(first)}"
    return Table.of(rows, title=title, data=dict(found))


def _confusion(found: Mapping[str, Any]) -> Table:
    classes = found["classes"]
    rows = [
        {"true": name, **{f"named {other}": str(count) for other, count in zip(classes, own, strict=True)}}
        for name, own in zip(classes, found["confusion"], strict=True)
    ]
    numbers = [f"named {name}" for name in classes]
    return Table.of(rows, title=f"who was taken for what, {measured_on(found)}", numbers=numbers)


def _calibration(found: Mapping[str, Any]) -> Table:
    what = f"that it is {found['positive']}" if found["positive"] else "of the class that was named"
    rows = [
        {"said": f"{one['said']:.3f}", "found": _text(one["found"]), "rows": str(one["rows"])}
        for one in found["calibration"]
    ]
    return Table.of(
        rows, title=f"calibration: mean probability {what}, and the share for which it was", numbers=["rows"]
    )


def _hospitals(hospitals: Sequence[Mapping[str, Any]], pooled: Mapping[str, Any]) -> Table:
    names = [name for name in NAMES if name in pooled["figures"]]
    rows = []
    for one in hospitals:
        figures = one.get("figures", {})
        own = {NAMES[name]: _text(figures.get(name)) for name in names}
        rows.append({"hospital": one["name"], "patients": str(one.get("persons") or one.get("rows", 0)), **own})
    return Table.of(rows, title="by hospital", numbers=["patients"], notes=[WORDS])


def _text(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return NOTHING
    if figure["low"] is None:
        return f"{figure['value']:.3f}"
    return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"


def _mean(figures: Sequence[Mapping[str, Any]]) -> str:
    """The mean over seeds of a figure and of the ends of its interval."""
    ends = [[one[end] for one in figures if one[end] is not None] for end in ("value", "low", "high")]
    value, low, high = (fmean(own) if len(own) == len(figures) else None for own in ends)
    return _text({"value": value, "low": low, "high": high})


@own_style()
def classes_figure(summaries: Sequence[Summary]) -> Figure | None:
    """Of two classes: areas and shares over the rounds, and calibration after the last; None where nothing is known."""
    over = [n for n in OVER_ROUNDS if any(n in row["metrics"] for s in summaries for row in s.rows)]
    known = [s for s in summaries if s.values.get("classified", {}).get("pooled")]
    if not known or len(over) < len(OVER_ROUNDS):
        return None
    width = 12.0
    figure, mosaic = canvas.new_figure(
        width,
        7.0,
        [["auc", "sensitivity", "calibration"], ["balanced_accuracy", "specificity", "calibration"]],
        [1, 1, 1.3],
    )
    for number, (label, runs) in enumerate(grouped(summaries).items()):
        style = {**look(number), "label": label}
        for name in over:
            _over_rounds(mosaic[name], runs, name, style)
        _calibrated(mosaic["calibration"], runs, style)
    some = known[0].values["classified"]["pooled"]
    for name in over:
        what = f" of {some['positive']}" if name in ("sensitivity", "specificity") else ""
        mosaic[name].set(xlabel="round", ylabel=f"{NAMES[name]}{what}", ylim=(-0.02, 1.02))
        mosaic[name].xaxis.set_major_locator(canvas.whole_numbers())
        if name in ("auc", "balanced_accuracy"):
            mosaic[name].axhline(0.5, color="#999999", linewidth=0.8, linestyle=":")
    axes = mosaic["calibration"]
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
    axes.set(xlabel=f"probability of {some['positive']} that the model gave", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.set_ylabel(f"share that was {some['positive']} (bars: 95%)")
    axes.set_title(f"after the last round; pale: fewer than {FEWEST} rows", fontsize=9)
    canvas.legend_below(figure, canvas.labelled(list(mosaic.values())), size=10)
    title = f"{headline(summaries)}; {measured_on(some)}; {WORDS}"
    figure.suptitle(wrapped(title, width, 10), fontsize=10)
    return figure


def _over_rounds(axes: Axes, runs: Sequence[Summary], name: str, style: Mapping[str, Any]) -> None:
    series = [{row["round"]: row["metrics"][name] for row in run.rows if name in row["metrics"]} for run in runs]
    rounds = sorted(set.intersection(*(set(own) for own in series)))
    if rounds:
        values = [fmean(own[r] for own in series) for r in rounds]
        axes.plot(rounds, values, linewidth=1.6, marker=canvas.dot(rounds), **style)


def _calibrated(axes: Axes, runs: Sequence[Summary], style: Mapping[str, Any]) -> None:
    """The first seed's curve: bins of several are not the same."""
    found = runs[0].values.get("classified", {}).get("pooled")
    for bins, alpha in ((_bins(found, True), 1.0), (_bins(found, False), 0.25)) if found else ():
        if not bins:
            continue
        shares = [one["found"] for one in bins]
        down = [max(0.0, share["value"] - share["low"]) for share in shares]
        up = [max(0.0, share["high"] - share["value"]) for share in shares]
        how: dict[str, Any] = {"color": style["color"], "marker": "o", "markersize": 4, "elinewidth": 0.8}
        line = style["linestyle"] if alpha == 1 else "none"
        said, values = [one["said"] for one in bins], [share["value"] for share in shares]
        axes.errorbar(said, values, yerr=[down, up], alpha=alpha, linestyle=line, **how)


def _bins(found: Mapping[str, Any], many: bool) -> list[Mapping[str, Any]]:
    return [one for one in found["calibration"] if (one["rows"] >= FEWEST) == many]
