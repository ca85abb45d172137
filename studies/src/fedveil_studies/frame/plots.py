"""Panels of lines, each with its range over the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

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
    """Points of one line, and the area under it where it is a ROC curve."""

    x: Sequence[float]
    y: Sequence[float]
    area: float | None = None


@dataclass(frozen=True)
class Line:
    """One line of a figure: a curve a seed, drawn as their mean and range over the same x.

    Attributes
    ----------
    panel, label : str
        Where it is drawn, and its name.
    curves : sequence of Curve
        Of the finished runs.
    printed : float or None
        A level that a paper printed for it.
    """

    panel: str
    label: str
    curves: Sequence[Curve]
    printed: float | None = None


@dataclass(frozen=True)
class Plot:
    """A figure: its lines, panel by panel, and its words; a `heat` map has a row of squares for each line's name."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    diagonal: bool = False
    printed: str = ""
    heat: bool = False


def draw_plot(plot: Plot) -> "Figure | None":
    """Draw what is finished; lines without a curve are named in their panel.

    Returns
    -------
    Figure or None
        None where no line has one: there is nothing to draw.
    """
    curves = [line.curves if all(c.x for c in line.curves) else [] for line in plot.lines]
    if not any(curves):
        return None
    if plot.heat:
        return draw_heat(plot)
    panels = list(dict.fromkeys(line.panel for line in plot.lines))
    labels = list(dict.fromkeys(line.label for line in plot.lines))
    columns, grid = _grid(panels, COLUMNS)
    width = PANEL * columns
    shown = {line.label for line, finished in zip(plot.lines, curves, strict=True) if finished}
    below = 1.7 * SMALL / 72 * len(shown) if plot.diagonal else 0.0
    figure, mosaic = canvas.new_figure(width, (3.9 + below) * len(grid) + 0.9, grid)
    for panel, axes in mosaic.items():
        own = [
            (line, finished)
            for line, finished in zip(plot.lines, curves, strict=True)
            if line.panel == panel
        ]
        _panel(axes, plot, own, labels)
    for row in grid:
        mosaic[row[0]].set_ylabel(plot.y)
    ticks = any(
        finished and line.printed is not None
        for line, finished in zip(plot.lines, curves, strict=True)
    )
    if not plot.diagonal:
        _share(list(mosaic.values()), same=len(plot.y) > 0)
        _legends(figure, list(mosaic.values()), labels, ticks)
    notes = (
        plot.title,
        canvas.over_seeds([len(finished) for finished in curves if finished], plot.x),
        plot.printed if ticks else "",
    )
    figure.suptitle(canvas.wrapped("\n".join(filter(None, notes)), width, 10), fontsize=10)
    return figure


def draw_heat(plot: Plot) -> "Figure":
    """Squares with the mean over the seeds; every panel has the same colours, and an empty square is not finished."""
    panels, labels = (
        list(dict.fromkeys(getattr(line, name) for line in plot.lines))
        for name in ("panel", "label")
    )
    values: dict[tuple[str, str, float], list[float]] = {}
    for line in plot.lines:
        for curve in line.curves:
            for x, y in zip(curve.x, curve.y, strict=True):
                values.setdefault((line.panel, line.label, x), []).append(y)
    places = sorted({x for _, _, x in values})
    means = {place: fmean(each) for place, each in values.items()}
    columns, grid = _grid(panels, 2 if len(panels) == 4 else COLUMNS)
    width = (1.0 + 0.62 * max(len(places), 4)) * columns
    figure, mosaic = canvas.new_figure(width, (0.9 + 0.42 * len(labels)) * len(grid) + 0.6, grid)
    low, high = min(means.values()), max(means.values())
    for panel, axes in mosaic.items():
        shown = [[means.get((panel, label, x), float("nan")) for x in places] for label in labels]
        axes.imshow(shown, cmap="viridis", vmin=low, vmax=high, aspect="auto")
        axes.grid(visible=False)
        for i, squares in enumerate(shown):
            for j, value in enumerate(squares):
                text = f"{value:.2f}" if value == value else ""
                colour = "w" if value < (low + high) / 2 else "k"
                axes.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
        axes.set_xticks(range(len(places)), [f"{x:g}" for x in places])
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set_xlabel(plot.x, fontsize=9)
        axes.set_title(canvas.wrapped(panel, width / columns, 9), fontsize=9)
    for row in grid:
        mosaic[row[0]].set_ylabel(plot.y)
    figure.suptitle(
        canvas.wrapped(f"{plot.title}\nmean of {max(map(len, values.values()))} seeds", width, 10),
        fontsize=10,
    )
    return figure


def _grid(panels: Sequence[str], most: int) -> tuple[int, list[list[str]]]:
    """Columns, and panels row by row."""
    columns = min(most, len(panels))
    padded = [*panels, *["."] * (-len(panels) % columns)]
    return columns, [padded[i : i + columns] for i in range(0, len(padded), columns)]


def _panel(
    axes: "Axes", plot: Plot, lines: Sequence[tuple[Line, Sequence[Curve]]], labels: Sequence[str]
) -> None:
    """Draw the lines of a panel, and say which are not finished."""
    if plot.diagonal:
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
    for line, curves in lines:
        _draw(axes, line, curves, labels.index(line.label))
    axes.set_xlabel(plot.x)
    if plot.x == "round":
        axes.xaxis.set_major_locator(canvas.whole_numbers())
    absent = [line.label for line, curves in lines if not curves]
    if len(absent) == len(lines):
        canvas.say(axes, "nothing finished")
    elif plot.diagonal:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False, fontsize=SMALL)
    title = canvas.wrapped(lines[0][0].panel, 0.9 * PANEL, 10) + _unfinished(absent, len(lines))
    axes.set_title(title, fontsize=9 if absent else 10)


def _unfinished(absent: Sequence[str], lines: int) -> str:
    """Names of the lines that are not finished; of many, their number."""
    named = canvas.wrapped(f"not finished: {', '.join(absent)}", 0.9 * PANEL, 9)
    if named.count("\n") >= MOST:
        named = f"not finished: {len(absent)} of {lines} lines"
    return f"\n{named}" if absent else ""


def _draw(axes: "Axes", line: Line, curves: Sequence[Curve], number: int) -> None:
    """Draw a line and its printed level; without curves, neither: nothing would name the level."""
    if not curves:
        return
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
    x = max((c.x for c in curves), key=len)  # a run that ended earlier keeps its last value
    columns = [[c.y[min(i, len(c.y) - 1)] for c in curves] for i in range(len(x))]
    axes.plot(
        x,
        [fmean(c) for c in columns],
        linewidth=1.5,
        marker=canvas.dot(x),
        label=_label(line, curves),
        **style,
    )
    if len(curves) > 1:
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)


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


def _label(line: Line, curves: Sequence[Curve]) -> str:
    """Its name; of a ROC curve also the area under it, over several seeds their mean and range."""
    areas = [c.area for c in curves if c.area is not None]
    if not areas:
        return line.label
    among = (
        f"; {min(areas):.3f} to {max(areas):.3f} over {len(areas)} seeds" if len(areas) > 1 else ""
    )
    return f"{line.label} (AUC {fmean(areas):.3f}{among})"


def _share(axes: "Sequence[Axes]", same: bool) -> None:
    """The same vertical axis where panels show the same quantity, and from 0 where they do not."""
    if same:
        limits = [a.get_ylim() for a in axes]
        low, high = min(l[0] for l in limits), max(l[1] for l in limits)
    for a in axes:
        a.set_ylim(*((low, high) if same else (0, a.get_ylim()[1] * 1.05)))
