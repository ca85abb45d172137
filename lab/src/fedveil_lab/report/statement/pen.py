"""Draw charts as SVG from their numbers alone, with the same bits on every machine: so a page can be made again.

A drawing has no style of its own. Its colours are the page's classes, so it fits light, dark and paper.
"""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, isfinite, log10

from fedveil_lab.report.canvas import COLOURS
from fedveil_lab.report.statement.document import Chart, Series

WIDTH, HEIGHT = 460.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 10.0, 42.0  # of the frame, to the edges
TICKS = 5  # about so many on an axis
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
LOGARITHMIC = ("sigma",)  # charts whose vertical axis is


class Axis:
    """Axis of a frame: places of values between its ends, and ticks.

    Parameters
    ----------
    values : sequence of float
        All values that are drawn along the axis.
    begin, end : float
        Places of the smallest and the largest value.
    logarithmic, whole : bool
        Whether the axis is logarithmic, and whether ticks are whole numbers.
    """

    def __init__(
        self,
        values: Sequence[float],
        begin: float,
        end: float,
        *,
        logarithmic: bool = False,
        whole: bool = False,
    ) -> None:
        positive = [v for v in values if v > 0]
        self.begin, self.end, self.logarithmic = begin, end, logarithmic and bool(positive)
        shown = list(values)
        if self.logarithmic:
            shown = positive
        least, most = min(shown, default=0.0), max(shown, default=1.0)
        if self.logarithmic:
            low, high = floor(log10(least)), ceil(log10(most))
            high = max(high, low + 1)
            powers = range(low, high + 1, max(1, ceil((high - low) / TICKS)))
            self.ticks = [float(f"1e{power}") for power in powers]
            self._low, self._high = float(low), float(high)
        else:
            step = _step((most - least) or abs(most) or 1.0, whole)
            low, high = floor(least / step), ceil(most / step)
            high = max(high, low + 1)
            self.ticks = [float(f"{i * step:.12g}") for i in range(low, high + 1)]
            self._low, self._high = low * step, high * step

    def place(self, value: float) -> float:
        """Return the place of a value in the drawing."""
        if self.logarithmic and value > 0:
            value = log10(value)
        elif self.logarithmic:
            value = self._low
        share = (value - self._low) / (self._high - self._low)
        return self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin)


def _step(span: float, whole: bool) -> float:
    """Return a round distance between ticks."""
    power = 10.0 ** floor(log10(span / TICKS))
    step = 10 * power
    for factor in STEPS:
        if factor * power * TICKS >= span:
            step = factor * power
            break
    if whole:
        return max(1.0, float(ceil(step)))
    return step


def svg_of(chart: Chart) -> str:
    """Draw one chart without a legend; the page's legend hides lines by their classes."""
    across, along, labels = list[float](), list[float](), list[str]()
    for line in chart.series:
        labels.append(line.label)
        across += filter(isfinite, line.x)
        for side in (line.y, line.low, line.high):
            along += filter(isfinite, side)
    logarithmic = chart.logarithmic or chart.name in LOGARITHMIC
    x = Axis(across, LEFT, WIDTH - RIGHT, logarithmic=chart.logarithmic, whole=chart.x == "round")
    y = Axis(along, HEIGHT - BOTTOM, TOP, logarithmic=logarithmic)
    told = f"{chart.title}: {', '.join(labels)}; the table below has the numbers"
    parts = [f'<svg role="img" aria-label="{escape(told)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">']
    parts += _frame(chart, x, y)
    for i, line in enumerate(chart.series):
        parts += _line(i, line, x, y)
    return "\n".join([*parts, "</svg>"])


def _frame(chart: Chart, x: Axis, y: Axis) -> Iterator[str]:
    """Draw lines, numbers and names of the axes."""
    left, right, bottom, top = map(_at, (x.begin, x.end, y.begin, y.end))
    for value in y.ticks:
        at, below = _at(y.place(value)), _at(y.place(value) + 4)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{at}" y2="{at}"/>'
        yield f'<text class="tick" x="{_at(x.begin - 6)}" y="{below}" text-anchor="end">{value:g}</text>'
    for value in x.ticks:
        at = _at(x.place(value))
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{bottom}" y2="{top}"/>'
        yield f'<text class="tick" x="{at}" y="{_at(y.begin + 16)}" text-anchor="middle">{value:g}</text>'
    middle, upright = _at((x.begin + x.end) / 2), _at((y.begin + y.end) / 2)
    yield f'<text class="name" x="{middle}" y="{_at(HEIGHT - 6)}" text-anchor="middle">{escape(chart.x)}</text>'
    turned = f'transform="rotate(-90 12 {upright})"'
    yield f'<text class="name" x="12" y="{upright}" text-anchor="middle" {turned}>{escape(chart.y)}</text>'


def _line(number: int, line: Series, x: Axis, y: Axis) -> Iterator[str]:
    """Draw one line with its range, or a dot for a single value."""
    yield f'<g class="drawn{number} line{line.colour % len(COLOURS)}">'
    if len(line.low):
        there, back = _points(line.x, line.low, x, y), _points(line.x, line.high, x, y)[::-1]
        yield f'<polygon class="band" points="{" ".join([*there, *back])}"/>'
    points = _points(line.x, line.y, x, y)
    if len(points) == 1:
        across, along = points[0].split(",")
        yield f'<circle class="dot" cx="{across}" cy="{along}" r="3"/>'
    elif points:
        yield f'<polyline class="stroke" points="{" ".join(points)}"/>'
    yield "</g>"


def _points(across: Sequence[float], along: Sequence[float], x: Axis, y: Axis) -> list[str]:
    points = []
    for a, b in zip(across, along, strict=True):
        if isfinite(a) and isfinite(b):
            points.append(f"{_at(x.place(a))},{_at(y.place(b))}")
    return points


def _at(place: float) -> str:
    """Write a place in hundredths, which all machines round alike."""
    return f"{round(place, 2) + 0.0:g}"
