"""Accuracy against what it cost: against the success of attacks, the noise, and epsilon where one is proven."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedveil.accounting import VACUOUS
from fedveil.report import tables
from fedveil.report.canvas import COLOURS, MARKERS, labelled, legend_below, new_figure, say, wrapped
from fedveil.runs.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PANEL = 4.9  # inches, with its axis
NAMED = 12  # points of a line that are named at most
FRONT, WORTHLESS = "#F0E442", "#ececec"


@dataclass(frozen=True)
class Point:
    """A setting.

    Attributes
    ----------
    label, swept : str
        Of the setting, and the values of what is swept.
    quality, spread : float
        Mean and standard deviation over the seeds, or over the last rounds of a single one.
    noisy : bool
        Whether noise was added.
    ratio, epsilon : float or None
        Noise-to-clip, and the proven epsilon.
    promise : tuple of str
        Unit, trust and relation of that epsilon; epsilons of two such are not comparable. Empty without one.
    attack : mapping or None
        The strongest attack: attack, auc, low, high, runs; None without an audit, and where no attack counts.
    """

    label: str
    swept: str
    quality: float
    spread: float
    noisy: bool
    ratio: float | None
    epsilon: float | None
    promise: tuple[str, ...]
    attack: dict[str, Any] | None


def place(panel: str, point: Point) -> float | None:
    """Where a point lies in a panel, if it does; a panel of epsilons is named by their promise."""
    if panel == "attack":
        return float(point.attack["auc"]) if point.attack else None
    return point.ratio if panel == "noise" else point.epsilon if panel == " ".join(point.promise) else None


def pareto(summaries: Sequence[Summary]) -> "Figure":
    """A panel for attacks (if there was an audit), one for the noise, one for the epsilons of each unit and trust."""
    name, title = tables.quality(summaries)
    points = {base: _points(runs, name) for base, runs in tables.based(summaries).items()}
    attacked = any(p.attack for some in points.values() for p in some)
    promises = list(dict.fromkeys(p.promise for some in points.values() for p in some if p.promise))
    proven = [" ".join(promise) for promise in promises] or ["epsilon"]
    panels = [*(["attack"] if attacked else []), "noise", *proven]
    widths = [1.2] * (len(panels) - len(proven)) + [1.0] * len(proven)
    figure, mosaic = new_figure(PANEL * len(panels), 4.8, [panels], widths)
    for axes in list(mosaic.values())[1:]:
        axes.sharey(mosaic[panels[0]])
    better = -1 if name == "rmse" else 1
    if attacked:
        _attack(mosaic["attack"], points, better)
    _noise(mosaic["noise"], points)
    for panel in proven:
        _epsilon(mosaic[panel], panel, points, summaries, better)
    mosaic[panels[0]].set_ylabel(_averaged(summaries, name, title))
    legend_below(figure, labelled(list(mosaic.values())))
    figure.suptitle(wrapped(tables.headline(summaries), PANEL * len(panels), 10), fontsize=10)
    _name(figure, mosaic, points)
    return figure


def _averaged(summaries: Sequence[Summary], name: str, title: str) -> str:
    """What is measured, over how many rounds and seeds."""
    counts = [s.values["last_rounds"].get(name, {}).get("rounds", 0) for s in summaries]
    least, most = min(filter(None, counts), default=0), max(counts)
    seeds = max(len(runs) for runs in tables.grouped(summaries).values())
    over = f"mean of the last {most if least == most else f'{least} to {most}'} rounds"
    text = f"{title}, {'last round' if most == 1 else over}"
    bars = f"{seeds} seeds" if seeds > 1 else "these rounds"
    return text if seeds == most == 1 else f"{text}\n(bars: standard deviation over {bars})"


def _points(runs: Sequence[Summary], name: str) -> list[Point]:
    found = []
    for label, own in tables.grouped(runs).items():
        values = [v for v in (r.averaged(name) for r in own) if v is not None]
        if not values:
            continue
        first = own[0].values
        ratios = [v for v in (r.noise("noise_to_clip") for r in own) if v is not None]
        epsilons = [e for e in (tables.proven_epsilon(r) for r in own) if e is not None]
        found.append(
            Point(
                label=label,
                swept=tables.swept(own[0]),
                quality=fmean(values),
                spread=stdev(values) if len(values) > 1 else first["last_rounds"][name]["deviation"],
                noisy=bool(first["noise"]),
                ratio=fmean(ratios) if ratios else None,
                epsilon=max(epsilons) if epsilons else None,
                promise=tables.promise_of(own[0]) if epsilons else (),
                attack=next(iter(first.get("audits", [])), None),
            )
        )
    return found


def _draw(axes: "Axes", panel: str, points: dict[str, list[Point]]) -> list[tuple[float, float]]:
    """The points of all settings that lie in a panel, with their bars."""
    every: list[tuple[float, float]] = []
    for number, (base, some) in enumerate(points.items()):
        shown = [(x, p) for p in some if (x := place(panel, p)) is not None]
        if not shown:
            continue
        spans = [[abs(p.attack[k] - x) for x, p in shown if p.attack] for k in ("low", "high")]
        every += (own := [(x, p.quality) for x, p in shown])
        bars: dict[str, Any] = {"xerr": spans if panel == "attack" else None, "yerr": [p.spread for _, p in shown]}
        axes.errorbar([x for x, _ in own], [y for _, y in own], label=base, **bars, **_style(number, len(own)))
    return every


def _attack(axes: "Axes", points: dict[str, list[Point]], better: int) -> None:
    _front(axes, _draw(axes, "attack", points), better)
    axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xlabel("AUC of the strongest attack on a client's participation\n(bars: 95% over runs; .5 is guessing)")
    every = [p for some in points.values() for p in some]
    axes.set_title(f"attacks with a point: {sum(bool(p.attack) for p in every)} of {len(every)} settings", fontsize=9)


def _name(figure: "Figure", mosaic: "dict[str, Axes]", points: dict[str, list[Point]]) -> None:
    """Number the swept values, at the points of all panels and in a key beside them; of many on a line, some."""
    from matplotlib.lines import Line2D

    swept_values = dict.fromkeys(p.swept for some in points.values() for p in some if p.swept)
    numbers = {text: str(i) for i, text in enumerate(swept_values, 1)}
    for panel, axes in mosaic.items():
        for number, some in enumerate(points.values()):
            shown = [(x, p) for p in some if (x := place(panel, p)) is not None and p.swept]
            named = {round(i * (len(shown) - 1) / (NAMED - 1)) for i in range(NAMED)}
            for i, (x, p) in enumerate(shown):
                if i in named:
                    how: dict[str, Any] = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 8}
                    axes.annotate(numbers[p.swept], (x, p.quality), color=COLOURS[number % 8], **how)
    if numbers:
        key = [wrapped(f"{number}: {text}", 1.8, 9) for text, number in numbers.items()]
        handles = [Line2D([], [], linestyle="none")] * len(key)
        figure.legend(handles, key, loc="outside right upper", frameon=False, fontsize=9, handlelength=0)


def _noise(axes: "Axes", points: dict[str, list[Point]]) -> None:
    for number, (base, some) in enumerate(points.items()):
        for p in some:
            if not p.noisy:
                axes.axhline(p.quality, color=COLOURS[number % 8], linestyle="--", linewidth=1, zorder=1)
        if not any(p.noisy or p.ratio is not None for p in some):
            axes.plot([], [], color=COLOURS[number % 8], linestyle="--", label=f"{base} (no noise)")
    axes.set_xlabel("noise / clip = sigma sqrt(parameters) / C,\nmean over the rounds")
    if _draw(axes, "noise", points):
        axes.set_xlim(0, axes.get_xlim()[1] * 1.05)
    else:
        axes.set_xticks([])


def _epsilon(
    axes: "Axes", panel: str, points: dict[str, list[Point]], summaries: Sequence[Summary], better: int
) -> None:
    every = _draw(axes, panel, points)
    if not every:
        say(axes, "no setting has a proven epsilon", keep_y=True)
        return
    _front(axes, every, better)
    here = [s for s in summaries if tables.proven_epsilon(s) is not None and " ".join(tables.promise_of(s)) == panel]
    unit = tables.worst_guarantee(here[0])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low, high = min(low, 1.0), max(high, VACUOUS * 3)
    axes.axvspan(VACUOUS, high, color=WORTHLESS, zorder=-1)
    how = {"transform": axes.get_xaxis_transform(), "fontsize": 8, "color": "#555555"}
    axes.text(high / 1.05, 0.02, f"above {VACUOUS:g}: vacuous", ha="right", **how)  # type: ignore[arg-type]
    axes.set_xlim(low, high)
    meaning = ", ".join(str(unit[k]) for k in ("relation", "unit", "trust"))
    axes.set_xlabel(f"epsilon at delta = {unit['delta']:g}\n({meaning}, total)")
    statuses = " or ".join(dict.fromkeys(tables.worst_guarantee(s)["status"] for s in here))
    without = {s.setting for s in summaries if tables.worst_guarantee(s)["status"] == "heuristic"}
    title = f"one {unit['unit']}, {unit['trust']}: {statuses}"
    title += f"; without (heuristic): {len(without)} of {len(tables.grouped(summaries))} settings" if without else ""
    axes.set_title(wrapped(title, 0.75 * PANEL, 8), fontsize=8)


def _front(axes: "Axes", points: Sequence[tuple[float, float]], better: int) -> None:
    """The points that no other one beats in both: lower on x, better on y."""
    best, kept = float("-inf"), list[tuple[float, float]]()
    for x, y in sorted(points, key=lambda p: (p[0], -better * p[1])):
        if better * y > best:
            best = better * y
            kept.append((x, y))
    if len(kept) > 1:
        style: dict[str, Any] = {"color": FRONT, "linewidth": 6, "alpha": 0.9, "zorder": 0}
        axes.step([x for x, _ in kept], [y for _, y in kept], where="post", label="Pareto front", **style)


def _style(number: int, count: int) -> dict[str, Any]:
    line = {"linestyle": "-" if count > 1 else "none", "linewidth": 1}
    marker = {"marker": MARKERS[number % 8], "markersize": 6, "capsize": 2, "elinewidth": 0.7}
    return {"color": COLOURS[number % 8], "ecolor": COLOURS[number % 8] + "70", **line, **marker}
