"""Figures of a reproduction: panels of lines, each with its range over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedveil.report.figures import COLOURS, DASHES, new_figure
from fedveil.reproduce.cells import Outcome
from fedveil.reproduce.study import Curve, Line, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_plot(plot: Plot, finished: Mapping[str, Outcome]) -> Figure:
    """Draw what is finished; a line without a finished cell is named in its panel's legend.

    Parameters
    ----------
    plot : Plot
        What to draw.
    finished : mapping
        Outcomes by key of the cell.
    """
    panels = list(dict.fromkeys(line.panel for line in plot.lines))
    labels = list(dict.fromkeys(line.label for line in plot.lines))
    figure, mosaic = new_figure(4.4 * len(panels), 4.6, [panels], [1.0] * len(panels))
    for panel, axes in mosaic.items():
        if plot.diagonal:
            axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
        for line in (line for line in plot.lines if line.panel == panel):
            _draw(axes, line, labels.index(line.label), finished)
        axes.set(title=panel, xlabel=plot.x, ylabel=plot.y)
        axes.legend(loc="lower right" if plot.diagonal else "best", frameon=False, fontsize=8)
    if not plot.diagonal:
        _share(list(mosaic.values()), same=len(plot.y) > 0)
    figure.suptitle("\n".join(text for text in (plot.title, plot.printed) if text), fontsize=10)
    return figure


def _draw(axes: Axes, line: Line, number: int, finished: Mapping[str, Outcome]) -> None:
    style: dict[str, Any] = {"color": COLOURS[number % 8], "linestyle": DASHES[number % 8]}
    whole = [r for r in line.replicates if all(cell.key in finished for cell in r.cells)]
    curves = [line.curve([finished[cell.key] for cell in r.cells]) for r in whole]
    if line.printed is not None:
        axes.plot([1.0, 1.03], [line.printed] * 2, transform=axes.get_yaxis_transform(), clip_on=False, **style)
    if not curves or not all(c.x for c in curves):
        axes.plot([], [], label=f"{line.label}: not finished", **style)
        return
    length = min(len(c.x) for c in curves)
    columns = [[c.y[i] for c in curves] for i in range(length)]
    x = curves[0].x[:length]
    axes.plot(x, [fmean(c) for c in columns], linewidth=1.5, label=_label(line, curves), **style)
    if len(curves) > 1:
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _label(line: Line, curves: Sequence[Curve]) -> str:
    notes = list(dict.fromkeys(c.note for c in curves if c.note))
    return line.label if not notes else f"{line.label} ({', '.join(notes[:3])}{', ...' if len(notes) > 3 else ''})"


def _share(axes: Sequence[Axes], same: bool) -> None:
    """The same vertical axis where panels show the same quantity, and from 0 where they do not."""
    if same:
        limits = [a.get_ylim() for a in axes]
        low, high = min(l[0] for l in limits), max(l[1] for l in limits)
    for a in axes:
        a.set_ylim(*((low, high) if same else (0, a.get_ylim()[1] * 1.05)))
