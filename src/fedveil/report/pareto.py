"""Accuracy against what it cost: against the success of attacks, the noise, and epsilon where one is proven."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedveil.accounting import VACUOUS
from fedveil.report import tables
from fedveil.report.canvas import COLOURS, MARKERS, labelled, legend_below, new_figure, say, wrapped
from fedveil.runs.summary import Summary

PANEL = 4.9  # inches, with its axis
NAMED = 12  # points of a line that are named at most
FRONT, WORTHLESS = "#F0E442", "#ececec"
ATTACKED, NOISE = "attack", "noise"  # panels; one of epsilons is named by their unit, trust and relation


@dataclass(frozen=True)
class Point:
    """A setting.

    Attributes
    ----------
    swept : str
        The values of what is swept.
    quality, spread : float
        Mean and standard deviation over the seeds, or over the last rounds of a single one.
    noisy : bool
        Whether noise was added.
    at : dict of str to float
        Where it lies in each panel in which it does. Epsilons of other units, trusts or relations are not comparable:
        they have panels of their own.
    reach : tuple of float
        From the strongest attack's area down and up to the ends of its interval.
    """

    swept: str
    quality: float
    spread: float
    noisy: bool
    at: dict[str, float]
    reach: tuple[float, float] = (0.0, 0.0)


Points = dict[str, list[Point]]  # of each setting as it was written: those of a swept one belong together


def pareto(summaries: Sequence[Summary]) -> Figure:
    """A panel for attacks (if there was an audit), one for the noise, one for the epsilons of each unit and trust."""
    name, title = tables.quality(summaries)
    points = {base: _points(runs, name) for base, runs in tables.based(summaries).items()}
    kinds = dict.fromkeys(panel for some in points.values() for p in some for panel in p.at)
    proven = [panel for panel in kinds if panel not in (ATTACKED, NOISE)] or ["epsilon"]
    panels = [*([ATTACKED] if ATTACKED in kinds else []), NOISE, *proven]
    widths = [1.0 if panel in proven else 1.2 for panel in panels]
    figure, mosaic = new_figure(PANEL * len(panels), 4.8, [panels], widths)
    better = -1 if name == "rmse" else 1
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
            say(axes, "no setting has a proven epsilon")
    over, spread = tables.covered(summaries, name)
    bars = f"\n(bars: standard deviation over {spread})" * bool(spread)
    mosaic[panels[0]].set_ylabel(f"{title}, {over}{bars}")
    legend_below(figure, labelled(list(mosaic.values())))
    figure.suptitle(wrapped(tables.headline(summaries), PANEL * len(panels), 10), fontsize=10)
    _name(figure, mosaic, points)
    return figure


def _points(runs: Sequence[Summary], name: str) -> list[Point]:
    points = []
    for own in tables.grouped(runs).values():
        values = [v for v in (r.averaged(name) for r in own) if v is not None]
        if not values:
            continue
        first, at, reach = own[0].values, dict[str, float](), (0.0, 0.0)
        for attack in first.get("audits", [])[:1]:
            at[ATTACKED] = float(attack["auc"])
            reach = abs(attack["low"] - attack["auc"]), abs(attack["high"] - attack["auc"])
        if ratios := [v for v in (r.noise("noise_to_clip") for r in own) if v is not None]:
            at[NOISE] = fmean(ratios)
        if proven := list(filter(None, map(_proven, own))):
            at[proven[0][0]] = max(epsilon for _, epsilon in proven)
        spread = stdev(values) if len(values) > 1 else first["last_rounds"][name]["deviation"]
        points.append(Point(tables.swept(own[0]), fmean(values), spread, bool(first["noise"]), at, reach))
    return points


def _proven(summary: Summary) -> tuple[str, float] | None:
    """Unit, trust and neighbours of a run that has an epsilon, and that epsilon; a heuristic has none."""
    guarantee = tables.worst_guarantee(summary)
    if guarantee["status"] not in ("formal", "conditional") or "epsilon" not in guarantee:
        return None
    return f"{guarantee['unit']} {guarantee['trust']} {guarantee['relation']}", float(guarantee["epsilon"])


def _draw(axes: Axes, panel: str, points: Points) -> list[tuple[float, float]]:
    """The points of all settings that lie in a panel, with their bars."""
    every: list[tuple[float, float]] = []
    for number, (base, some) in enumerate(points.items()):
        shown = [p for p in some if panel in p.at]
        if shown:
            x, y = [p.at[panel] for p in shown], [p.quality for p in shown]
            bars: dict[str, Any] = {"yerr": [p.spread for p in shown]}
            if panel == ATTACKED:
                bars["xerr"] = list(zip(*(p.reach for p in shown), strict=True))
            axes.errorbar(x, y, label=base, **bars, **_style(number, len(shown)))
            every += zip(x, y, strict=True)
    return every


def _name(figure: Figure, mosaic: dict[str, Axes], points: Points) -> None:
    """Number the swept values, at the points of all panels and in a key beside them; of many on a line, some."""
    values = dict.fromkeys(p.swept for some in points.values() for p in some if p.swept)
    if not values:
        return
    numbers = {text: str(i) for i, text in enumerate(values, 1)}
    how: dict[str, Any] = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 8}
    for panel, axes in mosaic.items():
        for number, some in enumerate(points.values()):
            shown = [p for p in some if panel in p.at and p.swept]
            named = {round(i * (len(shown) - 1) / (NAMED - 1)) for i in range(NAMED)}
            for p in (p for i, p in enumerate(shown) if i in named):
                axes.annotate(numbers[p.swept], (p.at[panel], p.quality), color=COLOURS[number % 8], **how)
    key = [wrapped(f"{number}: {text}", 1.8, 9) for text, number in numbers.items()]
    handles = [Line2D([], [], linestyle="none")] * len(key)
    place: Any = "outside right upper"
    figure.legend(handles, key, loc=place, frameon=False, fontsize=9, handlelength=0)


def _noise(axes: Axes, points: Points) -> None:
    for number, (base, some) in enumerate(points.items()):
        style: dict[str, Any] = {"color": COLOURS[number % 8], "linestyle": "--", "zorder": 1}
        for p in some:
            if not p.noisy:
                axes.axhline(p.quality, linewidth=1, **style)
        if not any(p.noisy or NOISE in p.at for p in some):
            axes.plot([], [], label=f"{base} (no noise)", **style)
    axes.set_xlabel("noise / clip = sigma sqrt(parameters) / C,\nmean over the rounds")
    axes.set_xlim(0, axes.get_xlim()[1] * 1.05)


def _epsilon(axes: Axes, promise: str, summaries: Sequence[Summary]) -> None:
    here = [s for s in summaries if (proven := _proven(s)) and proven[0] == promise]
    unit = tables.worst_guarantee(here[0])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low, high = min(low, 1.0), max(high, VACUOUS * 3)
    axes.axvspan(VACUOUS, high, color=WORTHLESS, zorder=-1)
    how: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "fontsize": 8, "color": "#555555"}
    axes.text(high / 1.05, 0.02, f"above {VACUOUS:g}: vacuous", ha="right", **how)
    axes.set_xlim(low, high)
    meaning = ", ".join(str(unit[k]) for k in ("relation", "unit", "trust"))
    axes.set_xlabel(f"epsilon at delta = {unit['delta']:g}\n({meaning}, total)")
    statuses = " or ".join(dict.fromkeys(tables.worst_guarantee(s)["status"] for s in here))
    without = {s.setting for s in summaries if tables.worst_guarantee(s)["status"] == "heuristic"}
    title = f"one {unit['unit']}, {unit['trust']}: {statuses}"
    title += f"; without (heuristic): {len(without)} of {len(tables.grouped(summaries))} settings" if without else ""
    axes.set_title(wrapped(title, 0.75 * PANEL, 8), fontsize=8)


def _front(axes: Axes, points: Sequence[tuple[float, float]], better: int) -> None:
    """The points that no other one beats in both: lower on x, better on y."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda p: (p[0], -better * p[1])):
        if not kept or better * y > better * kept[-1][1]:
            kept.append((x, y))
    if len(kept) > 1:
        style: dict[str, Any] = {"color": FRONT, "linewidth": 6, "alpha": 0.9, "zorder": 0}
        axes.step(*zip(*kept, strict=True), where="post", label="Pareto front", **style)


def _style(number: int, count: int) -> dict[str, Any]:
    line = {"linestyle": "-" if count > 1 else "none", "linewidth": 1}
    marker = {"marker": MARKERS[number % 8], "markersize": 6, "capsize": 2, "elinewidth": 0.7}
    return {"color": COLOURS[number % 8], "ecolor": COLOURS[number % 8] + "70", **line, **marker}
