"""Figures of a reproduction: panels of lines, each with its range over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedveil.report.figures import COLOURS, DASHES, new_figure, whole_numbers
from fedveil.reproduce.cells import Outcome
from fedveil.reproduce.study import Curve, Line, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3


def draw_plot(plot: Plot, finished: Mapping[str, Outcome]) -> Figure:
    """Draw what is finished; lines without a finished cell are named in their panel.

    Parameters
    ----------
    plot : Plot
        What to draw.
    finished : mapping
        Outcomes by key of the cell.
    """
    panels = list(dict.fromkeys(line.panel for line in plot.lines))
    labels = list(dict.fromkeys(line.label for line in plot.lines))
    columns = min(COLUMNS, len(panels))
    padded = panels + ["."] * (-len(panels) % columns)
    grid = [padded[i : i + columns] for i in range(0, len(padded), columns)]
    figure, mosaic = new_figure(4.4 * columns, 3.9 * len(grid) + 0.9, grid, [1.0] * columns)
    for panel, axes in mosaic.items():
        if plot.diagonal:
            axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
        absent = _panel(axes, [line for line in plot.lines if line.panel == panel], labels, finished)
        if plot.diagonal and axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right", frameon=False, fontsize=8)
        axes.set_title(panel + (f"\nnot finished: {', '.join(absent)}" if absent else ""), fontsize=9 if absent else 10)
        axes.set_xlabel(plot.x)
        if plot.x == "round":
            axes.xaxis.set_major_locator(whole_numbers())
    for row in grid:
        mosaic[row[0]].set_ylabel(plot.y)
    if not plot.diagonal:
        _share(list(mosaic.values()), same=len(plot.y) > 0)
        handles = {h.get_label(): h for axes in mosaic.values() for h in axes.get_legend_handles_labels()[0]}
        entries = [handles[label] for label in labels if label in handles]
        figure.legend(handles=entries, loc="outside lower center", ncols=min(8, len(labels)), frameon=False, fontsize=9)
    figure.suptitle("\n".join(text for text in (plot.title, plot.printed) if text), fontsize=10)
    return figure


def _panel(axes: Axes, lines: Sequence[Line], labels: Sequence[str], finished: Mapping[str, Outcome]) -> list[str]:
    """Draw the lines; the labels of those without a finished cell."""
    return [line.label for line in lines if not _draw(axes, line, labels.index(line.label), finished)]


def _draw(axes: Axes, line: Line, number: int, finished: Mapping[str, Outcome]) -> bool:
    """Draw a line and its printed level; False if there was nothing to draw but the level."""
    style: dict[str, Any] = {"color": COLOURS[number % 8], "linestyle": DASHES[number % 8]}
    if line.printed is not None:
        axes.plot([1.0, 1.03], [line.printed] * 2, transform=axes.get_yaxis_transform(), clip_on=False, **style)
    whole = [r for r in line.replicates if all(cell.key in finished for cell in r.cells)]
    curves = [line.curve([finished[cell.key] for cell in r.cells]) for r in whole]
    if not curves or not all(c.x for c in curves):
        return False
    length = min(len(c.x) for c in curves)
    columns = [[c.y[i] for c in curves] for i in range(length)]
    x = curves[0].x[:length]
    axes.plot(x, [fmean(c) for c in columns], linewidth=1.5, label=_label(line, curves), **style)
    if len(curves) > 1:
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)
    return True


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
