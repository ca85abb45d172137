"""Figures of a comparison: accuracy, noise and distance over rounds, and accuracy against privacy cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedveil.accounting import VACUOUS
from fedveil.evidence import Row
from fedveil_lab.report import canvas
from fedveil_lab.report.canvas import COLOURS, MARKERS, wrapped
from fedveil_lab.report.classified import classes_figure
from fedveil_lab.report.plotting import Axes, Figure, Line2D, own_style
from fedveil_lab.report.tables import (
    OF_TWO,
    based,
    covered,
    figures_of,
    grouped,
    headline,
    quality,
    swept,
    worst_guarantee,
)
from fedveil_lab.runs.summary import Summary, over_rounds

PALEST = 0.3  # strength of the palest line of a swept setting
PANEL = 4.9  # inches, with its axis
NAMED = 12  # points of a line that are named at most
FRONT, WORTHLESS = "#F0E442", "#ececec"
ATTACKED, NOISE = (
    "attack",
    "noise",
)  # panels; one of epsilons is named by their unit, trust and relation


def draw(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write the figures of a comparison as PNG and PDF, and return their files.

    Returns
    -------
    list of Path
        ``curves.png``; for several noisy settings ``pareto.png``; for two classes ``classes.png``.
    """
    drawn = {"curves.png": curves(summaries)}
    if several(summaries):
        drawn["pareto.png"] = pareto(summaries)
    measured = classes_figure(summaries)
    if measured is not None:
        drawn["classes.png"] = measured
    return [canvas.keep(figure, folder / name, 150) for name, figure in drawn.items()]


def several(summaries: Sequence[Summary]) -> bool:
    """Whether there is something to compare: two settings with noise, or attacks."""
    noisy = set[str]()
    for summary in summaries:
        if summary.values.get("audits"):
            return True
        if summary.values["noise"] or worst_guarantee(summary)["status"] != "none":
            noisy.add(summary.setting)
    return len(noisy) > 1


def judged_by(summaries: Sequence[Summary]) -> tuple[str, str]:
    """Name the compared figure: the area under the ROC curve for two classes, as accuracy hides a class never predicted."""
    if figures_of(summaries) == OF_TWO:
        return "auc", "ROC AUC"
    return quality(summaries)


def _varies(summaries: Sequence[Summary], kind: str) -> bool:
    """Whether a figure of the noise changes between rounds; a constant one is given in the table instead."""
    for summary in summaries:
        series = [row["noise"][kind] for row in summary.rows if kind in row["noise"]]
        if len(series) == 1:
            return True
        if series and max(series) - min(series) > 1e-9 * max(map(abs, series)):
            return True
    return False


@own_style()
def curves(summaries: Sequence[Summary]) -> Figure:
    """Draw accuracy per round, and noise and distance if they vary; several seeds give a mean and a range."""
    strengths = _strengths(summaries)
    if len(strengths) > 1:
        width = 11.0
    else:
        width = 10.0
    name, title = judged_by(summaries)
    groups = {name: "metrics", "sigma": "noise", "distance": "noise"}
    labels = {
        name: f"{title} on held-out examples",
        "sigma": "sigma (per coordinate)",
        "distance": "distance d",
    }
    cells, ratios, across = [[name]], [1.0], 0.65 * width
    beside = [kind for kind in ("sigma", "distance") if _varies(summaries, kind)]
    if beside:
        cells, ratios, across = [[name, kind] for kind in beside], [1.6, 1.0], width
    figure, mosaic = canvas.new_figure(across, 5.2, cells, ratios)
    for index, (base, own) in enumerate(based(summaries).items()):
        for label, runs in grouped(own).items():  # a swept setting is one colour, from pale to full
            style = {**canvas.look(index), "alpha": strengths[swept(runs[0])], "label": "_"}
            if label == own[-1].setting:
                style["label"] = base
            for kind, axes in mosaic.items():
                _series(axes, runs, groups[kind], kind, style)
    for kind, axes in mosaic.items():
        axes.set(xlabel="round", ylabel=labels[kind])
        axes.xaxis.set_major_locator(canvas.whole_numbers())
        if kind != name:
            axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    canvas.legend_below(figure, canvas.labelled([mosaic[name]]), size=10)
    seeds = list(map(len, grouped(summaries).values()))
    notes = [headline(summaries), canvas.over_seeds(seeds, "round")]
    if len(strengths) > 1:
        names: dict[str, Any] = {}
        for summary in summaries:
            names |= summary.values.get("swept", {})
        notes.append(f"{', '.join(names)} from pale to full")
        strengths.pop("", None)  # nothing is swept there
        handles = [
            Line2D([], [], color="#000000", alpha=strength) for strength in strengths.values()
        ]
        canvas.legend_beside(figure, handles, list(strengths))
    figure.suptitle(wrapped("; ".join(filter(None, notes)), width, 10), fontsize=10)
    return figure


def _strengths(summaries: Sequence[Summary]) -> dict[str, float]:
    """Choose the opacity of lines for each swept value; full without a sweep."""
    by_setting: dict[str, float] = {}
    for own in based(summaries).values():
        values, strengths = list(dict.fromkeys(map(swept, own))), [1.0]
        if len(values) > 1:
            strengths = np.linspace(PALEST, 1, len(values)).tolist()
        by_setting = dict(zip(values, strengths, strict=True)) | by_setting
    return by_setting


def _series(
    axes: Axes, runs: Sequence[Summary], group: str, name: str, style: dict[str, Any]
) -> None:
    """Draw a figure over rounds that all seeds have: its mean and its range."""

    def figure(row: Row) -> Any:
        return row[group].get(name)

    values = over_rounds(runs, figure)
    if not values:
        return
    rounds = list(values)
    means = list(map(fmean, values.values()))
    axes.plot(rounds, means, linewidth=1.6, marker=canvas.dot(rounds), **style)
    if len(runs) > 1:
        low, high = list(map(min, values.values())), list(map(max, values.values()))
        axes.fill_between(
            rounds, low, high, color=style["color"], alpha=0.15 * style["alpha"], linewidth=0
        )


@dataclass(frozen=True)
class Point:
    """One setting as a point in the figure of quality against cost.

    Attributes
    ----------
    swept : str
        Values of the swept parameters.
    quality, spread : float
        Mean and standard deviation of the quality, over seeds, or over the last rounds of a single seed.
    noisy : bool
        Whether noise was added.
    at : dict of str to float
        Horizontal position of the setting, by panel. Epsilons of different units, trusts or relations are not
        comparable, so they have different panels.
    reach : tuple of float
        Distances from the strongest attack's area to the lower and upper end of its interval.
    """

    swept: str
    quality: float
    spread: float
    noisy: bool
    at: dict[str, float]
    reach: tuple[float, float] = (0.0, 0.0)


Points = dict[
    str, list[Point]
]  # of each setting as it was written: those of a swept one belong together


@own_style()
def pareto(summaries: Sequence[Summary]) -> Figure:
    """Draw quality against cost: panels for attacks, for noise, and for epsilons of each unit and trust."""
    name, title = judged_by(summaries)
    points = {base: _points(runs, name) for base, runs in based(summaries).items()}
    panels, widths = _panels(points)
    figure, mosaic = canvas.new_figure(PANEL * len(panels), 4.8, [panels], widths)
    better = 1
    if name == "rmse":
        better = -1
    for panel, axes in mosaic.items():
        axes.sharey(mosaic[panels[0]])
        every = _draw(axes, panel, points)
        if panel == NOISE:
            _noise(axes, points)
            continue
        _front(axes, every, better)
        if panel == ATTACKED:
            axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=":")
            axes.set_xlabel(
                "AUC of the strongest attack on a client's participation\n(bars: 95% over runs; .5 is guessing)"
            )
            settings = sum(map(len, points.values()))
            axes.set_title(f"attacks with a point: {len(every)} of {settings} settings", fontsize=9)
        elif every:
            _epsilon(axes, panel, summaries)
        else:
            canvas.say(axes, "no setting has a proven epsilon")
    over, spread = covered(summaries, name)
    bars = f"\n(bars: standard deviation over {spread})" * bool(spread)
    mosaic[panels[0]].set_ylabel(f"{title}, {over}{bars}")
    canvas.legend_below(figure, canvas.labelled(list(mosaic.values())))
    figure.suptitle(wrapped(headline(summaries), PANEL * len(panels), 10), fontsize=10)
    _name(figure, mosaic, points)
    return figure


def _panels(points: Points) -> tuple[list[str], list[float]]:
    """List the panels with points from left to right, and their widths."""
    kinds: dict[str, None] = {}
    for some in points.values():
        for point in some:
            kinds |= dict.fromkeys(point.at)
    proven = [panel for panel in kinds if panel not in (ATTACKED, NOISE)] or ["epsilon"]
    panels, widths = [NOISE, *proven], [1.2, *[1.0] * len(proven)]
    if ATTACKED in kinds:
        return [ATTACKED, *panels], [1.2, *widths]
    return panels, widths


def _points(runs: Sequence[Summary], name: str) -> list[Point]:
    """Make a point for each setting that has the named figure."""
    points = []
    for own in grouped(runs).values():
        values = _known(run.averaged(name) for run in own)
        if not values:
            continue
        first = own[0].values
        at: dict[str, float] = {}
        reach = (0.0, 0.0)
        for attack in first.get("audits", [])[:1]:
            at[ATTACKED] = float(attack["auc"])
            reach = abs(attack["low"] - attack["auc"]), abs(attack["high"] - attack["auc"])
        ratios = _known(run.noise("noise_to_clip") for run in own)
        if ratios:
            at[NOISE] = fmean(ratios)
        proven = [one for one in map(_proven, own) if one is not None]
        if proven:
            at[proven[0][0]] = max(epsilon for _, epsilon in proven)
        spread = first["last_rounds"][name]["deviation"]
        if len(values) > 1:
            spread = stdev(values)
        points.append(Point(swept(own[0]), fmean(values), spread, bool(first["noise"]), at, reach))
    return points


def _known(values: Iterable[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def _proven(summary: Summary) -> tuple[str, float] | None:
    """Return unit, trust and relation of a run's epsilon, and the epsilon; None for a heuristic."""
    guarantee = worst_guarantee(summary)
    if guarantee["status"] not in ("formal", "conditional") or "epsilon" not in guarantee:
        return None
    panel = f"{guarantee['unit']} {guarantee['trust']} {guarantee['relation']}"
    return panel, float(guarantee["epsilon"])


def _draw(axes: Axes, panel: str, points: Points) -> list[tuple[float, float]]:
    """Draw the points of all settings in one panel, with error bars."""
    every: list[tuple[float, float]] = []
    for number, (base, some) in enumerate(points.items()):
        shown = [point for point in some if panel in point.at]
        if not shown:
            continue
        x = [point.at[panel] for point in shown]
        y = [point.quality for point in shown]
        bars: dict[str, Any] = {"yerr": [point.spread for point in shown]}
        if panel == ATTACKED:
            down, up = zip(*(point.reach for point in shown), strict=True)
            bars["xerr"] = [down, up]
        axes.errorbar(x, y, label=base, **bars, **_style(number, len(shown)))
        every += zip(x, y, strict=True)
    return every


def _name(figure: Figure, mosaic: dict[str, Axes], points: Points) -> None:
    """Number the swept values at their points, with a legend; of many on one line only some are numbered."""
    numbers: dict[str, str] = {}
    for some in points.values():
        for point in some:
            if point.swept:
                numbers.setdefault(point.swept, str(len(numbers) + 1))
    if not numbers:
        return
    for panel, axes in mosaic.items():
        for colour, some in enumerate(points.values()):
            shown = [point for point in some if panel in point.at and point.swept]
            named = {round(i * (len(shown) - 1) / (NAMED - 1)) for i in range(NAMED)}
            for place, point in enumerate(shown):
                if place in named:
                    axes.annotate(
                        numbers[point.swept],
                        (point.at[panel], point.quality),
                        color=COLOURS[colour % 8],
                        xytext=(4, 4),
                        textcoords="offset points",
                        fontsize=8,
                    )
    handles = [Line2D([], [], linestyle="none")] * len(numbers)
    key = [f"{number}: {text}" for text, number in numbers.items()]
    canvas.legend_beside(figure, handles, key, handlelength=0)


def _noise(axes: Axes, points: Points) -> None:
    """Draw settings without noise as horizontal lines, since they have no position on this axis."""
    for number, (base, some) in enumerate(points.items()):
        style: dict[str, Any] = {"color": COLOURS[number % 8], "linestyle": "--", "zorder": 1}
        for point in some:
            if not point.noisy:
                axes.axhline(point.quality, linewidth=1, **style)
        if not any(point.noisy or NOISE in point.at for point in some):
            axes.plot([], [], label=f"{base} (no noise)", **style)
    axes.set_xlabel("noise / clip = sigma sqrt(parameters) / C,\nmean over the rounds")
    axes.set_xlim(0, axes.get_xlim()[1] * 1.05)


def _epsilon(axes: Axes, promise: str, summaries: Sequence[Summary]) -> None:
    """Label a panel of epsilons with unit, trust and relation, and mark from where they are vacuous."""
    here = []
    for summary in summaries:
        proven = _proven(summary)
        if proven is not None and proven[0] == promise:
            here.append(summary)
    unit = worst_guarantee(here[0])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low, high = min(low, 1.0), max(high, VACUOUS * 3)
    axes.axvspan(VACUOUS, high, color=WORTHLESS, zorder=-1)
    how: dict[str, Any] = {
        "transform": axes.get_xaxis_transform(),
        "fontsize": 8,
        "color": "#555555",
    }
    axes.text(high / 1.05, 0.02, f"above {VACUOUS:g}: vacuous", ha="right", **how)
    axes.set_xlim(low, high)
    meaning = ", ".join(str(unit[k]) for k in ("relation", "unit", "trust"))
    axes.set_xlabel(f"epsilon at delta = {unit['delta']:g}\n({meaning}, total)")
    statuses = " or ".join(dict.fromkeys(worst_guarantee(s)["status"] for s in here))
    without = {s.setting for s in summaries if worst_guarantee(s)["status"] == "heuristic"}
    title = f"one {unit['unit']}, {unit['trust']}: {statuses}"
    if without:
        title += f"; without (heuristic): {len(without)} of {len(grouped(summaries))} settings"
    axes.set_title(wrapped(title, 0.75 * PANEL, 8), fontsize=8)


def _front(axes: Axes, points: Sequence[tuple[float, float]], better: int) -> None:
    """Draw the Pareto front: points that no other one beats in both lower x and better y."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda p: (p[0], -better * p[1])):
        if not kept or better * y > better * kept[-1][1]:
            kept.append((x, y))
    if len(kept) > 1:
        style: dict[str, Any] = {"color": FRONT, "linewidth": 6, "alpha": 0.9, "zorder": 0}
        axes.step(*zip(*kept, strict=True), where="post", label="Pareto front", **style)


def _style(number: int, count: int) -> dict[str, Any]:
    """Return colour, marker and line of setting `number` with `count` points."""
    line = {"linestyle": "none", "linewidth": 1}
    if count > 1:
        line["linestyle"] = "-"
    marker = {"marker": MARKERS[number % 8], "markersize": 6, "capsize": 2, "elinewidth": 0.7}
    return {"color": COLOURS[number % 8], "ecolor": COLOURS[number % 8] + "70", **line, **marker}
