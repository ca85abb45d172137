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
REACHES = (4.0, 8.0, 14.0, 22.0, 32.0, 44.0)  # points between a mark and its label
WAYS = tuple((x / 2, y / 2) for x in range(-2, 3) for y in range(-2, 3) if 2 in (abs(x), abs(y)))
LONGEST = 1.2  # inches of a label's line
CROWD = 40.0  # points within which marks are in each other's way
COVERED, CROSSED, MISTAKEN = 1.5, 20.0, 8.0  # points of distance that each is as bad as
JOINED = 4  # steps of a line from a mark to its label below which they are close enough without one
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
class Mark:
    """A point, and the words beside it.

    Attributes
    ----------
    place : Place
        In data coordinates.
    text : str
        Beside it; with none it is only kept free of the words of others.
    colour : str
        Of the words.
    """

    place: Place
    text: str
    colour: str


def name_marks(axes: Axes, marks: Sequence[Mark], size: float = 7) -> None:
    """Write words beside marks, joined to them by a line where they are not close.

    They cover no mark and no other words, and as little as can be of the lines. What finds no such place stays unsaid.

    Parameters
    ----------
    axes : Axes
        Drawn: it has to be known where points lie on paper.
    marks : sequence of Mark
        All that are drawn.
    size : float
        Of the letters, in points.
    """
    if not marks:
        return
    unit = 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    points = unit * axes.transData.transform(np.array([mark.place for mark in marks]))
    sheet = _Sheet(
        frame=_Box(*(unit * edge for edge in axes.bbox.extents)),
        marks=points,
        lines=np.concatenate([points, *(_along(unit * line) for line in _drawn(axes))]),
        taken=[_Box(*(unit * edge for edge in text.get_window_extent().extents)) for text in axes.texts],
        leaders=points[:0],
    )
    crowd = [int((np.hypot(*(points - point).T) < CROWD).sum()) for point in points]
    for i in sorted(range(len(marks)), key=lambda i: -crowd[i]):  # who has the least choice chooses first
        text = wrapped(marks[i].text, LONGEST, size)
        best = sheet.place(points[i], text, size) if text else None
        if best is not None:
            _write(axes, marks[i], text, best, points[i], size)


@dataclass(frozen=True)
class _Box:
    """On paper, in points."""

    left: float
    low: float
    right: float
    high: float

    @classmethod
    def beside(cls, point: Points, way: Place, reach: float, half: Place) -> _Box:
        """Around words of twice this width and height that are so far from a point, that way."""
        x, y = (c + w * (reach + h) for c, w, h in zip(point, way, half, strict=True))
        return cls(x - half[0], y - half[1], x + half[0], y + half[1])

    def holds(self, other: _Box) -> bool:
        first = self.left <= other.left and self.low <= other.low
        return first and other.right <= self.right and other.high <= self.high

    def meets(self, other: _Box) -> bool:
        beside = self.right < other.left or other.right < self.left
        return not (beside or self.high < other.low or other.high < self.low)

    def over(self, points: Points, margin: float = 0) -> int:
        """How many points lie in it, or so close."""
        low, high = np.array([self.left, self.low]) - margin, np.array([self.right, self.high]) + margin
        return int(((low < points) & (points < high)).all(axis=1).sum())

    def leader(self, point: Points) -> Points:
        """From a point to the middle, as far as it is outside."""
        way = _along(np.array([point, [(self.left + self.right) / 2, (self.low + self.high) / 2]]), step=2)
        low, high = np.array([self.left, self.low]), np.array([self.right, self.high])
        return way[~((low < way) & (way < high)).all(axis=1)]


@dataclass
class _Sheet:
    """What is on the paper of some axes already."""

    frame: _Box
    marks: Points
    lines: Points
    taken: list[_Box]
    leaders: Points

    def place(self, point: Points, text: str, size: float) -> _Box | None:
        """The best place for words, which is then taken; None if there is no free one."""
        lines = text.split("\n")
        half = size * max(map(ems, lines)) / 2, 0.7 * size * len(lines)
        boxes = [(reach, _Box.beside(point, way, reach, half)) for reach in REACHES for way in WAYS]
        free = [(self._cost(point, reach, box), box) for reach, box in boxes if self._free(box)]
        if not free:
            return None
        _, best = min(free, key=lambda found: found[0])
        self.taken.append(best)
        self.leaders = np.concatenate([self.leaders, best.leader(point)])
        return best

    def _free(self, box: _Box) -> bool:
        return self.frame.holds(box) and not box.over(self.marks, MARK) and not any(map(box.meets, self.taken))

    def _cost(self, point: Points, reach: float, box: _Box) -> float:
        """In points of distance: what words and the line to them cover, and whose they could be taken for."""
        leader = box.leader(point)
        others = self.marks[(self.marks != point).any(axis=1)]
        crossed = _close(leader, others, MARK) + _close(leader, self.leaders, 2) + box.over(self.leaders)
        crossed += sum(words.over(leader) for words in self.taken)
        return reach + COVERED * box.over(self.lines, 1) + CROSSED * crossed + MISTAKEN * box.over(others, reach)


def _close(points: Points, others: Points, distance: float) -> int:
    """How many points are so close to one of the others."""
    apart = np.hypot(*(points[:, None] - others[None]).transpose(2, 0, 1))
    return int((apart < distance).any(axis=1).sum())


def _drawn(axes: Axes) -> list[Points]:
    """Lines and error bars, in pixels."""
    from matplotlib.collections import LineCollection

    lines = [line for line in axes.lines if line.get_linestyle() != "None"]
    found = [line.get_transform().transform(line.get_path().vertices) for line in lines]
    bars = [bars for bars in axes.collections if isinstance(bars, LineCollection)]
    return found + [some.get_transform().transform(bar) for some in bars for bar in some.get_segments()]


def _along(points: Points, step: float = 4.0) -> Points:
    """Points on the line through points [n, 2], in steps of a few points of paper."""
    found = [points[:1]]
    for a, b in itertools.pairwise(points):
        count = max(2, int(np.hypot(*(b - a)) / step))
        found.append(np.linspace(a, b, count))
    return np.concatenate(found)


def _write(axes: Axes, mark: Mark, text: str, box: _Box, point: Points, size: float) -> None:
    away = (box.left + box.right) / 2 - point[0], (box.low + box.high) / 2 - point[1]
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size, "color": mark.colour}
    style["bbox"] = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5}
    if len(box.leader(point)) > JOINED:
        line = {"arrowstyle": "-", "color": mark.colour, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 3}
        style["arrowprops"] = line
    axes.annotate(text, mark.place, xytext=away, textcoords="offset points", **style)
