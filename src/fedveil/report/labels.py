"""Words in figures that are neither cut off nor lie on what they explain: titles, legends, labels beside points."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
MARK = 4.0  # points: half of a marker, and some air
REACHES = (4.0, 8.0, 16.0, 28.0)  # points between a mark and its label
WAYS = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
FAR = 24.0  # points from which a label is joined to its mark
Place = tuple[float, float]
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


@dataclass(frozen=True)
class Ends:
    """A line through points, and the words at its two ends.

    Attributes
    ----------
    points : sequence of Place
        In data coordinates.
    first, last : str
        At the ends; a line of one point has none.
    colour : str
        Of the words.
    """

    points: Sequence[Place]
    first: str
    last: str
    colour: str


def name_ends(axes: Axes, lines: Sequence[Ends], bars: Sequence[Sequence[Place]] = (), size: float = 7) -> None:
    """Write the words where they cover no point and no other words, and as little of the lines as can be.

    What finds no such place stays unsaid.

    Parameters
    ----------
    axes : Axes
        Laid out: it has to be known where points lie on paper.
    lines : sequence of Ends
        All that is drawn.
    bars : sequence of two places each
        Error bars.
    size : float
        Of the letters, in points.
    """
    unit = 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    paper = [unit * axes.transData.transform(np.asarray(line.points)) for line in lines]
    between = [_along(points) for points in (*paper, *(unit * axes.transData.transform(np.asarray(b)) for b in bars))]
    frame = _Box(*(unit * edge for edge in axes.bbox.extents))
    taken: list[_Box] = []
    for line, points in zip(lines, paper, strict=True):
        for i, text in ((0, line.first), (-1, line.last)) if len(points) > 1 else ():
            boxes = [_Box.beside(points[i], way, reach, text, size) for reach in REACHES for way in WAYS]
            free = [b for b in boxes if frame.holds(b) and not b.over(paper, MARK) and not any(map(b.meets, taken))]
            if free and text:
                best = min(free, key=lambda b: b.over(between, 1))
                taken.append(best)
                _write(axes, line, i, text, best, points[i], size)


@dataclass(frozen=True)
class _Box:
    """On paper, in points."""

    left: float
    low: float
    right: float
    high: float

    @classmethod
    def beside(cls, point: Points, way: tuple[int, int], reach: float, text: str, size: float) -> _Box:
        """Around words that are so far from a point, that way."""
        half = size * ems(text) / 2, 0.7 * size
        x, y = (c + w * (reach + h) for c, w, h in zip(point, way, half, strict=True))
        return cls(x - half[0], y - half[1], x + half[0], y + half[1])

    def holds(self, other: _Box) -> bool:
        first = self.left <= other.left and self.low <= other.low
        return first and other.right <= self.right and other.high <= self.high

    def meets(self, other: _Box) -> bool:
        beside = self.right < other.left or other.right < self.left
        return not (beside or self.high < other.low or other.high < self.low)

    def over(self, points: Sequence[Points], margin: float) -> int:
        """How many points lie in it, or so close."""
        low, high = np.array([self.left, self.low]) - margin, np.array([self.right, self.high]) + margin
        return sum(int(((low < some) & (some < high)).all(axis=1).sum()) for some in points)


def _along(points: Points, step: float = 4.0) -> Points:
    """Points on the line through points [n, 2], in steps of a few points of paper."""
    found = [points[:1]]
    for a, b in itertools.pairwise(points):
        count = max(2, int(np.hypot(*(b - a)) / step))
        found.append(np.linspace(a, b, count))
    return np.concatenate(found)


def _write(axes: Axes, line: Ends, i: int, text: str, box: _Box, point: Points, size: float) -> None:
    from matplotlib.patheffects import withStroke

    away = (box.left + box.right) / 2 - point[0], (box.low + box.high) / 2 - point[1]
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size, "color": line.colour}
    style["path_effects"] = [withStroke(linewidth=2, foreground="white")]
    if np.hypot(*away) > FAR:
        style["arrowprops"] = {"arrowstyle": "-", "color": line.colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
    axes.annotate(text, line.points[i], xytext=away, textcoords="offset points", **style)
