"""Common parts of figures: colours, axes, wrapped text, and legends outside the panels."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

from fedveil.files import write_atomic
from fedveil_lab.report.plotting import Axes, Figure, MaxNLocator, own_style

# Okabe and Ito's palette, which people with colour-blindness can tell apart; each setting has a marker of its own too.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "-", "-", "--", "-.", ":", "--", "-.")
EM = (
    0.66  # width of a letter of matplotlib's font on the average, in multiples of the letters' size
)
HANDLE = 4.5  # of a legend: a line's sample and the gaps beside it, in the same multiples


def look(number: int) -> dict[str, Any]:
    """Return colour and dash pattern of line `number`; they repeat after eight lines."""
    return {"color": COLOURS[number % 8], "linestyle": DASHES[number % 8]}


def keep(figure: Figure, file: Path, dpi: int) -> Path:
    """Write a figure as PNG and PDF, readable by its owner only, since it shows private data or unnoised figures."""
    for kind in ("png", "pdf"):
        drawn = BytesIO()
        with own_style():
            figure.savefig(drawn, dpi=dpi, format=kind)
        write_atomic(file.with_suffix(f".{kind}"), drawn.getvalue())
    return file


def new_figure(
    width: float, height: float, cells: list[list[str]], widths: list[float] | None = None
) -> tuple[Figure, dict[str, Axes]]:
    """Make an empty figure in FedVeil's style, with its axes by name. It does not use pyplot, which has global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    mosaic: dict[str, Axes] = figure.subplot_mosaic(cells, width_ratios=widths)  # type: ignore[arg-type]
    for axes in mosaic.values():
        plain(axes)
    return figure, mosaic


def plain(axes: Axes) -> None:
    """Apply FedVeil's style to one panel."""
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def over_seeds(counts: Sequence[int], x: str) -> str:
    """Say what lines and bands mean for these numbers of seeds; "" if each line has one seed."""
    least, most = min(counts), max(counts)
    if most == 1:
        return ""
    if least == most:
        seeds = f"{most} seeds"
    else:
        seeds = f"{least} to {most} seeds"
    return f"lines: mean of {seeds}; bands: from the lowest to the highest of them at each {x}"


def whole_numbers() -> Any:
    """Make ticks at whole numbers, for an axis of rounds or counts."""
    return MaxNLocator(integer=True, min_n_ticks=1)


def dot(rounds: Sequence[Any]) -> str:
    """Return the marker of a line over rounds; a single round needs one to be visible."""
    if len(rounds) == 1:
        return "o"
    return ""


def say(axes: Axes, text: str) -> None:
    """Write into an empty panel why nothing is drawn; ticks of the vertical axis stay, as panels may share it."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#555555")
    axes.set_xticks([])


def wrapped(text: str, width: float, size: float) -> str:
    """Break text into lines that fit into `width` inches at `size` points."""
    letters = max(8, int(72 * width / (size * EM)))
    return "\n".join(fill(line, letters, break_on_hyphens=False) for line in text.split("\n"))


def labelled(axes: Sequence[Axes]) -> dict[str, Any]:
    """Collect legend handles by label; a label that several panels share is listed once."""
    return {str(h.get_label()): h for one in axes for h in one.get_legend_handles_labels()[0]}


def legend_below(
    figure: Figure, handles: Mapping[str, Any], *, size: float = 9, beside: float = 0
) -> None:
    """Draw a legend below all panels in as many columns as fit; the figure grows with its number of lines.

    Parameters
    ----------
    figure : Figure
        Figure with a constrained layout.
    handles : mapping
        Handles by label.
    size : float
        Size of the letters, in points.
    beside : float
        Width that the legend must leave free, left and right together, in inches.
    """
    if not handles:
        return
    width = figure.get_figwidth() - beside
    labels = [wrapped(label, width - 5 * size / 72, size) for label in handles]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = int(72 * width / (size * (EM * longest + HANDLE)))
    columns = min(max(1, columns), len(labels))
    how: dict[str, Any] = {"frameon": False, "fontsize": size, "ncols": columns}
    legend = figure.legend(list(handles.values()), labels, loc="outside lower center", **how)
    height = legend.get_window_extent().height / figure.dpi
    figure.set_figheight(figure.get_figheight() + max(0.0, height - 1.6 * size / 72))


def legend_beside(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], **options: Any
) -> None:
    """Draw a legend to the right of all panels, with one line per handle."""
    key = [wrapped(label, 1.8, 9) for label in labels]
    figure.legend(handles, key, loc="outside right upper", frameon=False, fontsize=9, **options)
