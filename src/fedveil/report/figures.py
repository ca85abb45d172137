"""Figures of a comparison: accuracy, noise and distance over its rounds, and what accuracy cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedveil.report import canvas
from fedveil.report.pareto import pareto
from fedveil.report.tables import based, grouped, headline, quality, swept
from fedveil.runs.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALEST = 0.3
KEYS = 8  # swept values that a legend lists at most


def draw(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write ``curves.png`` and ``pareto.png``, and the same as PDF.

    Returns
    -------
    list of Path
        The files.
    """
    files = [folder / "curves.png", folder / "pareto.png"]
    for file, figure in zip(files, (curves(summaries), pareto(summaries)), strict=True):
        canvas.keep(figure, file, 150)
    return files


def curves(summaries: Sequence[Summary]) -> "Figure":
    """Accuracy per round; sigma and d per round. Several seeds: their mean, and the range between them."""
    strengths = _strengths(summaries)
    pale = min(strengths.values()) < 1
    width = 11.0 if pale else 10.0
    beside = [kind for kind in ("sigma", "distance") if any(kind in row["noise"] for s in summaries for row in s.rows)]
    cells = [["quality", kind] for kind in beside] or [["quality"]]
    figure, mosaic = canvas.new_figure(width if beside else 0.65 * width, 5.2, cells, [1.6, 1] if beside else [1])
    name, title = quality(summaries)
    for index, (base, own) in enumerate(based(summaries).items()):
        points = list(grouped(own).values())
        for number, runs in enumerate(points):  # a swept setting is one colour, from pale to full
            style = {
                "color": canvas.COLOURS[index % 8],
                "linestyle": canvas.DASHES[index % 8],
                "alpha": strengths[swept(runs[0])],
            }
            style["label"] = base if number == len(points) - 1 else "_"
            _series(mosaic["quality"], runs, "metrics", name, style)
            for kind in beside:
                _series(mosaic[kind], runs, "noise", kind, style)
    mosaic["quality"].set(xlabel="round", ylabel=f"{title} on held-out examples")
    canvas.legend_below(figure, canvas.labelled([mosaic["quality"]]), size=10)
    for kind in beside:
        mosaic[kind].set(ylabel="sigma (per coordinate)" if kind == "sigma" else "distance d")
        mosaic[kind].tick_params(labelbottom=kind == beside[-1])
        mosaic[kind].set_ylim(0, mosaic[kind].get_ylim()[1] * 1.05)
    for kind in beside[-1:]:
        mosaic[kind].set_xlabel("round")
    for axes in mosaic.values():
        axes.xaxis.set_major_locator(canvas.whole_numbers())
    notes = [headline(summaries), canvas.over_seeds([len(runs) for runs in grouped(summaries).values()], "round")]
    if pale:
        names = list(dict.fromkeys(name for s in summaries for name in s.values.get("swept", {})))
        notes.append(f"{', '.join(names)} from pale to full")
        _key(figure, strengths)
    figure.suptitle(canvas.wrapped("; ".join(filter(None, notes)), width, 10), fontsize=10)
    return figure


def _strengths(summaries: Sequence[Summary]) -> dict[str, float]:
    """How strongly the lines of each swept value are drawn; full where nothing is swept."""
    found: dict[str, float] = {}
    for own in based(summaries).values():
        values = list(dict.fromkeys(swept(s) for s in own))
        for i, value in enumerate(values):
            found.setdefault(value, PALEST + (1 - PALEST) * i / (len(values) - 1) if len(values) > 1 else 1.0)
    return found


def _key(figure: "Figure", strengths: Mapping[str, float]) -> None:
    """Which strength is which value; of many, some."""
    from matplotlib.lines import Line2D

    values = [value for value in strengths if value]
    if len(values) > KEYS:
        values = [values[round(i * (len(values) - 1) / (KEYS - 1))] for i in range(KEYS)]
    handles = [
        Line2D([], [], color="#000000", alpha=strengths[value], label=canvas.wrapped(value, 1.8, 9)) for value in values
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)


def _series(axes: "Axes", runs: Sequence[Summary], group: str, name: str, style: dict[str, Any]) -> None:
    series = [{row["round"]: row[group][name] for row in run.rows if name in row[group]} for run in runs]
    rounds = sorted(set.intersection(*(set(s) for s in series)))
    if not rounds:
        return
    columns = [[s[r] for s in series] for r in rounds]
    axes.plot(rounds, [fmean(c) for c in columns], linewidth=1.6, marker=canvas.dot(rounds), **style)
    if len(runs) > 1:
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15 * style["alpha"], linewidth=0)
