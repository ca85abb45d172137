"""What every figure shares: colours, axes, and how ranges over seeds are named."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.runs.ledgers import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with colour-blindness can tell apart; each setting has a marker of its own too.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "-", "-", "--", "-.", ":", "--", "-.")


def keep(figure: Figure, file: Path, dpi: int) -> Path:
    """Write a figure as PNG, and as PDF beside it, for its owner alone: it shows private data, or no noise."""
    for kind in ("png", "pdf"):
        drawn = BytesIO()
        figure.savefig(drawn, dpi=dpi, format=kind)
        write_atomic(file.with_suffix(f".{kind}"), drawn.getvalue())
    return file


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


def over_seeds(counts: Sequence[int], x: str) -> str:
    """What lines and bands are, over so many seeds each; nothing where no line has several."""
    least, most = min(counts), max(counts)
    if most == 1:
        return ""
    seeds = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    return f"lines: mean of {seeds}; bands: from the lowest to the highest of them at each {x}"


def whole_numbers() -> Any:
    """Ticks for an axis of rounds or counts, be there one or many."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True, min_n_ticks=1)


def dot(rounds: Sequence[Any]) -> str:
    """The marker of a line over rounds: a single one would leave nothing to see."""
    return "o" if len(rounds) == 1 else ""


def say(axes: Axes, text: str, *, keep_y: bool = False) -> None:
    """Say why there is nothing to draw; an axis that is shared keeps its ticks."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#555555")
    axes.set_xticks([])
    if not keep_y:
        axes.set_yticks([])
