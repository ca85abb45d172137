"""Figures of a comparison, as PNG files; matplotlib is imported when the first one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedveil.accounting import VACUOUS
from fedveil.experiments.summary import LAST, Summary
from fedveil.report.tables import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with colour-blindness can tell apart; each setting has a marker of its own too.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "-", "-", "--", "-.", ":", "--", "-.")


def draw(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write ``curves.png`` and ``pareto.png``.

    Returns
    -------
    list of Path
        The files.
    """
    files = [folder / "curves.png", folder / "pareto.png"]
    for file, figure in zip(files, (curves(summaries), pareto(summaries)), strict=True):
        figure.savefig(file, dpi=150)
    return files


def curves(summaries: Sequence[Summary]) -> Figure:
    """Accuracy per round; sigma and d per round. Several seeds: their mean, and the range between them."""
    figure, mosaic = new_figure(10, 4.8, [["quality", "sigma"], ["quality", "distance"]], [1.6, 1])
    name, title = _quality(summaries)
    for index, (label, runs) in enumerate(grouped(summaries).items()):
        style = {"color": COLOURS[index % 8], "linestyle": DASHES[index % 8], "label": label}
        _series(mosaic["quality"], runs, "metrics", name, style)
        _series(mosaic["sigma"], runs, "noise", "sigma", style)
        _series(mosaic["distance"], runs, "noise", "distance", style)
    seeds = max(len(runs) for runs in grouped(summaries).values())
    mosaic["quality"].set(xlabel="round", ylabel=f"{title} on held-out examples")
    mosaic["quality"].legend(loc="best", frameon=False)
    mosaic["sigma"].set(ylabel="sigma (per coordinate)")
    mosaic["sigma"].tick_params(labelbottom=False)
    mosaic["distance"].set(xlabel="round", ylabel="distance d")
    for key in ("sigma", "distance"):
        if not mosaic[key].lines:
            _say(mosaic[key], "no noise on the server" if key == "sigma" else "no setting measures a distance")
        else:
            mosaic[key].set_ylim(0, mosaic[key].get_ylim()[1] * 1.05)
    for axes in mosaic.values():
        axes.xaxis.set_major_locator(_whole_numbers())
    note = f", mean and range of {seeds} seeds" if seeds > 1 else ""
    figure.suptitle(f"{_headline(summaries)}{note}", fontsize=10)
    return figure


def pareto(summaries: Sequence[Summary]) -> Figure:
    """Accuracy against the noise, and against epsilon where one is proven."""
    figure, mosaic = new_figure(10, 4.4, [["noise", "epsilon"]], [1.2, 1])
    name, title = _quality(summaries)
    left, right = mosaic["noise"], mosaic["epsilon"]
    proven = False
    for index, (label, runs) in enumerate(grouped(summaries).items()):
        found = [v for v in (r.averaged(name) for r in runs) if v is not None]
        if not found:
            continue
        y, spread = fmean(found), (stdev(found) if len(found) > 1 else runs[0].values["last_rounds"][name]["deviation"])
        style: dict[str, Any] = {"color": COLOURS[index % 8], "marker": MARKERS[index % 8], "linestyle": "none"}
        style |= {"markersize": 7, "capsize": 3, "elinewidth": 1}
        ratios = [v for v in (r.noise("noise_to_clip") for r in runs) if v is not None]
        if ratios:
            left.errorbar(fmean(ratios), y, yerr=spread, label=label, **style)
        elif not runs[0].values["noise"]:
            for axes in (left, right):
                axes.axhline(y, color=style["color"], linestyle="--", linewidth=1, label=f"{label} (no noise)")
        epsilons = [e for e in (_epsilon(r) for r in runs) if e is not None]
        if epsilons:
            proven = True
            status = _worst(runs[0])["status"]
            right.errorbar(max(epsilons), y, yerr=spread, label=f"{label} ({status})", **style)
    seeds = max(len(runs) for runs in grouped(summaries).values())
    bars = f"{seeds} seeds" if seeds > 1 else "these rounds"
    left.set_xlabel("noise / clip = sigma sqrt(parameters) / C, mean over the rounds")
    left.set_ylabel(f"{title}, mean of the last {LAST} rounds\n(bars: standard deviation over {bars})")
    left.set_xlim(0, left.get_xlim()[1] * 1.1)
    left.legend(loc="best", frameon=False)
    if proven:
        delta = next(_worst(s)["delta"] for s in summaries if "delta" in _worst(s))
        unit = next(_worst(s) for s in summaries if "delta" in _worst(s))
        right.set_xscale("log")
        low, high = right.get_xlim()
        low, high = min(low, 1.0), max(high, VACUOUS * 3)
        right.axvspan(VACUOUS, high, color="#dddddd", zorder=0)
        text = f"above {VACUOUS:g}: vacuous"
        right.text(VACUOUS * 1.08, 0.02, text, transform=right.get_xaxis_transform(), fontsize=8, color="#555555")
        right.set_xlim(low, high)
        right.set(xlabel=f"epsilon at delta = {delta:g} ({unit['relation']}, {unit['unit']}, {unit['trust']}, total)")
        right.legend(loc="best", frameon=False)
        right.sharey(left)
        heuristics = [label for label, runs in grouped(summaries).items() if _worst(runs[0])["status"] == "heuristic"]
        if heuristics:
            right.set_title(f"no epsilon (heuristic): {', '.join(heuristics)}", fontsize=8)
    else:
        _say(right, "no setting has a proven epsilon")
    figure.suptitle(_headline(summaries), fontsize=10)
    return figure


def new_figure(
    width: float, height: float, cells: list[list[str]], widths: list[float]
) -> tuple[Figure, dict[str, Axes]]:
    """An empty figure in the house's style, with axes by name."""
    from matplotlib.figure import Figure  # never pyplot: no global state, no window

    figure = Figure(figsize=(width, height), layout="constrained")
    mosaic: dict[str, Axes] = figure.subplot_mosaic(cells, width_ratios=widths)  # type: ignore[arg-type]
    for axes in mosaic.values():
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, mosaic


def _series(axes: Axes, runs: Sequence[Summary], group: str, name: str, style: dict[str, Any]) -> None:
    series = [{row["round"]: row[group][name] for row in run.rows if name in row[group]} for run in runs]
    rounds = sorted(set.intersection(*(set(s) for s in series)))
    if not rounds:
        return
    columns = [[s[r] for s in series] for r in rounds]
    axes.plot(rounds, [fmean(c) for c in columns], linewidth=1.6, **style)
    if len(runs) > 1:
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _quality(summaries: Sequence[Summary]) -> tuple[str, str]:
    return ("accuracy", "accuracy") if summaries[0].values["task"] == "classification" else ("rmse", "RMSE")


def _headline(summaries: Sequence[Summary]) -> str:
    first = summaries[0].values
    rule = f", {first['aggregator']}" if first["aggregator"] else ""
    return f"{first['data']['name']}, {first['clients']} clients, {first['dimension']:,} parameters{rule}"


def _worst(summary: Summary) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(summary.values["guarantees"].values()))
    return found


def _epsilon(summary: Summary) -> float | None:
    found = _worst(summary)
    return float(found["epsilon"]) if found["status"] in ("formal", "conditional") and "epsilon" in found else None


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#555555")
    axes.set_xticks([])
    axes.set_yticks([])
