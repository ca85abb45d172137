"""Draw plots: panels of lines, each with its range over seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.tables import grouped_by
from fedveil_lab.report import canvas

if TYPE_CHECKING:
    from fedveil_lab.report.plotting import Axes, Figure

COLUMNS = 3
PANEL = 4.4  # inches
MOST = 2  # lines of a title that name what is not finished
MARGIN = 1.1  # inches beside the legend, for that of the ticks
SMALL = 8  # points: letters of the legends below single panels


@dataclass(frozen=True)
class Curve:
    """Points of one line, and the area under it if it is a ROC curve."""

    x: Sequence[float]
    y: Sequence[float]
    area: float | None = None


@dataclass(frozen=True)
class Line:
    """One line of a plot: one curve per seed, drawn as mean and range over the same x.

    Attributes
    ----------
    panel, label : str
        Panel and name of the line.
    curves : sequence of Curve
        Curves of the finished runs.
    printed : float or None
        Level that the paper printed for it.
    """

    panel: str
    label: str
    curves: Sequence[Curve]
    printed: float | None = None

    @property
    def finished(self) -> bool:
        """Whether there is anything to draw."""
        return len(self.curves) > 0 and all(curve.x for curve in self.curves)


@dataclass(frozen=True)
class Plot:
    """A figure with its lines by panel, and its texts; a `heat` map has a row of squares for each line."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    diagonal: bool = False
    printed: str = ""
    heat: bool = False

    @property
    def panels(self) -> dict[str, list[Line]]:
        """Lines by panel, in order."""
        return grouped_by(self.lines, attrgetter("panel"))

    @property
    def labels(self) -> list[str]:
        """Names of the lines, in order."""
        return list(grouped_by(self.lines, attrgetter("label")))


def draw_plot(plot: Plot) -> "Figure | None":
    """Draw a plot's finished lines; lines without a curve are named in their panel.

    Returns
    -------
    Figure or None
        None if no line has a curve.
    """
    finished = [line for line in plot.lines if line.finished]
    if not finished:
        return None
    if plot.heat:
        return draw_heat(plot)
    panels, labels = plot.panels, plot.labels
    columns, grid = _grid(list(panels), COLUMNS)
    width, height = PANEL * columns, 3.9
    if plot.diagonal:
        height += 1.7 * SMALL / 72 * len({line.label for line in finished})
    figure, mosaic = canvas.new_figure(width, height * len(grid) + 0.9, grid)
    for panel, axes in mosaic.items():
        _panel(axes, plot, panels[panel], labels)
    for row in grid:
        mosaic[row[0]].set_ylabel(plot.y)
    ticks = any(line.printed is not None for line in finished)
    if not plot.diagonal:
        _share(list(mosaic.values()), same=len(plot.y) > 0)
        _legends(figure, list(mosaic.values()), labels, ticks)
    notes = [plot.title, canvas.over_seeds([len(line.curves) for line in finished], plot.x)]
    if ticks:
        notes.append(plot.printed)
    figure.suptitle(canvas.wrapped("\n".join(filter(None, notes)), width, 10), fontsize=10)
    return figure


def draw_heat(plot: Plot) -> "Figure":
    """Draw a heat map of means over seeds; all panels share the colours, and empty squares are unfinished."""
    panels, labels = list(plot.panels), plot.labels
    values: dict[tuple[str, str, float], list[float]] = {}
    for line in plot.lines:
        for curve in line.curves:
            for x, y in zip(curve.x, curve.y, strict=True):
                values.setdefault((line.panel, line.label, x), []).append(y)
    places = sorted({x for _, _, x in values})
    means = {place: fmean(each) for place, each in values.items()}
    most = COLUMNS
    if len(panels) == 4:
        most = 2
    columns, grid = _grid(panels, most)
    width = (1.0 + 0.62 * max(len(places), 4)) * columns
    figure, mosaic = canvas.new_figure(width, (0.9 + 0.42 * len(labels)) * len(grid) + 0.6, grid)
    low, high = min(means.values()), max(means.values())
    for panel, axes in mosaic.items():
        squares = np.full((len(labels), len(places)), math.nan)
        for i, label in enumerate(labels):
            for j, x in enumerate(places):
                value = squares[i, j] = means.get((panel, label, x), math.nan)
                text, colour = "", "k"
                if not math.isnan(value):
                    text = f"{value:.2f}"
                if value < (low + high) / 2:
                    colour = "w"
                axes.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
        axes.imshow(squares, cmap="viridis", vmin=low, vmax=high, aspect="auto")
        axes.grid(visible=False)
        axes.set_xticks(range(len(places)), [f"{x:g}" for x in places])
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set_xlabel(plot.x, fontsize=9)
        axes.set_title(canvas.wrapped(panel, width / columns, 9), fontsize=9)
    for row in grid:
        mosaic[row[0]].set_ylabel(plot.y)
    seeds = max(map(len, values.values()))
    title = canvas.wrapped(f"{plot.title}\nmean of {seeds} seeds", width, 10)
    figure.suptitle(title, fontsize=10)
    return figure


def _grid(panels: Sequence[str], most: int) -> tuple[int, list[list[str]]]:
    """Columns, and panels row by row."""
    columns = min(most, len(panels))
    padded = [*panels, *["."] * (-len(panels) % columns)]
    return columns, [padded[i : i + columns] for i in range(0, len(padded), columns)]


def _panel(axes: "Axes", plot: Plot, lines: Sequence[Line], labels: Sequence[str]) -> None:
    """Draw the lines of a panel, and say which are not finished."""
    if plot.diagonal:
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
    absent = []
    for line in lines:
        if line.finished:
            _draw(axes, line, labels.index(line.label))
        else:
            absent.append(line.label)
    axes.set_xlabel(plot.x)
    if plot.x == "round":
        axes.xaxis.set_major_locator(canvas.whole_numbers())
    if len(absent) == len(lines):
        canvas.say(axes, "nothing finished")
    elif plot.diagonal:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False, fontsize=SMALL)
    title, size = canvas.wrapped(lines[0].panel, 0.9 * PANEL, 10), 10
    if absent:
        title, size = f"{title}\n{_unfinished(absent, len(lines))}", 9
    axes.set_title(title, fontsize=size)


def _unfinished(absent: Sequence[str], lines: int) -> str:
    """Names of the lines that are not finished; of many, their number."""
    named = canvas.wrapped(f"not finished: {', '.join(absent)}", 0.9 * PANEL, 9)
    if named.count("\n") >= MOST:
        return f"not finished: {len(absent)} of {lines} lines"
    return named


def _draw(axes: "Axes", line: Line, number: int) -> None:
    """Draw a finished line and its printed level."""
    curves = line.curves
    style: dict[str, Any] = {
        "color": canvas.COLOURS[number % 8],
        "linestyle": canvas.DASHES[number % 8],
    }
    if line.printed is not None:
        axes.plot(
            [1.0, 1.03],
            [line.printed] * 2,
            transform=axes.get_yaxis_transform(),
            clip_on=False,
            **style,
        )
    x = max((curve.x for curve in curves), key=len)
    columns = []
    for i in range(len(x)):  # a run that ended earlier keeps its last value
        columns.append([curve.y[min(i, len(curve.y) - 1)] for curve in curves])
    axes.plot(
        x,
        list(map(fmean, columns)),
        linewidth=1.5,
        marker=canvas.dot(x),
        label=_label(line),
        **style,
    )
    if len(curves) > 1:
        low, high = map(min, columns), map(max, columns)
        axes.fill_between(x, list(low), list(high), color=style["color"], alpha=0.12, linewidth=0)


def _legends(
    figure: "Figure", panels: "Sequence[Axes]", labels: Sequence[str], ticks: bool
) -> None:
    """The lines that are drawn, and apart from them what a tick at the right is."""
    from fedveil_lab.report.plotting import Line2D

    handles = canvas.labelled(panels)
    shown = {label: handles[label] for label in labels if label in handles}
    canvas.legend_below(figure, shown, beside=2 * MARGIN * ticks)
    if ticks:
        tick = Line2D([], [], color="#555555", linewidth=1.5)
        figure.legend(
            [tick],
            ["the paper's"],
            loc="outside lower right",
            frameon=False,
            fontsize=9,
            handlelength=0.8,
        )


def _label(line: Line) -> str:
    """Its name; of a ROC curve also the area under it, over several seeds their mean and range."""
    areas = [curve.area for curve in line.curves if curve.area is not None]
    if not areas:
        return line.label
    area = f"AUC {fmean(areas):.3f}"
    if len(areas) > 1:
        area += f"; {min(areas):.3f} to {max(areas):.3f} over {len(areas)} seeds"
    return f"{line.label} ({area})"


def _share(axes: "Sequence[Axes]", same: bool) -> None:
    """The same vertical axis where panels show the same quantity, and from 0 where they do not."""
    lows, highs = zip(*(one.get_ylim() for one in axes), strict=True)
    for one, high in zip(axes, highs, strict=True):
        if same:
            one.set_ylim(min(lows), max(highs))
        else:
            one.set_ylim(0, high * 1.05)
