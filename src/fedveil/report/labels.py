"""Words in figures that are not cut off: titles, and legends below the panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPARE = 1.1  # on the pixel grid small letters are wider than by the font's outlines
LEADING = 1.7  # between the lines of a legend, in ems
ENTRY, GAP = 3.6, 2.0  # ems: what a legend's entry takes beside its text, and what is between two columns
FEWEST = 8  # letters of a line, however narrow
Points = npt.NDArray[np.float64]


def wrapped(text: str, width: float, size: float) -> str:
    """Text in lines that fit into `width` inches at `size` points."""
    return "\n".join(_filled(line, 72 * width / size) for line in text.split("\n"))


def _filled(line: str, most: float) -> str:
    letters = max(FEWEST, int(len(line) * most / max(ems(line), 1.0)))
    found = fill(line, letters, break_on_hyphens=False)
    while letters > FEWEST and max(map(ems, found.split("\n"))) > most:
        letters -= 1
        found = fill(line, letters, break_on_hyphens=False)
    return found


def ems(text: str) -> float:
    """Width of a line of text in matplotlib's font, in multiples of the letters' size."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=100), ismath=False)
    return float(SPARE * width / 100)


def labelled(axes: Sequence[Axes]) -> dict[str, Any]:
    """Handles for a legend by label; panels that share one count once."""
    return {str(h.get_label()): h for one in axes for h in one.get_legend_handles_labels()[0]}


def columns_within(labels: Sequence[str], width: float, size: float) -> int:
    """How many columns of a legend fit into `width` inches at `size` points; matplotlib cuts off what does not."""
    widths = [ENTRY + max(ems(line) for line in label.split("\n")) for label in labels]
    for columns in range(len(widths), 1, -1):
        widest = sum(max(part) for part in np.array_split(widths, columns))  # as matplotlib fills them
        if widest + GAP * (columns - 1) <= 72 * width / size:
            return columns
    return 1


def legend_below(figure: Figure, handles: Mapping[str, Any], *, size: float = 9, beside: float = 0) -> None:
    """A legend under all panels, which keep their height if it is long; `beside` inches of the width are not its own.

    Parameters
    ----------
    figure : Figure
        With a constrained layout.
    handles : mapping
        By label.
    size : float
        Of the letters, in points.
    beside : float
        Inches left and right together.
    """
    width = figure.get_figwidth() - beside
    labels = [wrapped(label, width - ENTRY * size / 72, size) for label in handles]
    columns = columns_within(labels, width, size)
    more = -(-len(labels) // columns) * max((label.count("\n") + 1 for label in labels), default=1) - 1
    figure.set_figheight(figure.get_figheight() + more * LEADING * size / 72)
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    figure.legend(list(handles.values()), labels, frameon=False, fontsize=size, **place)
