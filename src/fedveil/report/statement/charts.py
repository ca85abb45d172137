"""Charts as SVG that takes its colours from the page, so that light, dark and paper are one drawing."""

import re
from html import escape
from io import StringIO
from typing import Any

from fedveil.report.canvas import COLOURS, DASHES, dot, plain, whole_numbers
from fedveil.report.statement.document import Chart

INK, RULE = "#010203", "#040506"  # stand for the page's own colours, and are none of `COLOURS`
FIRST = "#0a0b"  # begins the stand-in of a line's colour
INKED: tuple[Any, ...] = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedveil",
    "font.family": "sans-serif",
    "font.size": 10,
}


def svg_of(chart: Chart) -> str:
    """One drawing, without a legend: the page has one that switches lines on and off by their ids, chart-0, chart-1."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, **dict.fromkeys(INKED, INK)}):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
        plain(axes)
        axes.grid(color=RULE, linewidth=0.6)
        for number, line in enumerate(chart.series):
            name, place = f"{chart.name}-{number}", line.colour % len(COLOURS)
            colour, dash = f"{FIRST}{place:02x}", DASHES[place]
            axes.plot(line.x, line.y, color=colour, linestyle=dash, lw=1.8, marker=dot(line.x), gid=name)
            if len(line.low):
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0, gid=f"{name}-band")
        axes.set(xlabel=chart.x, ylabel=chart.y)
        if chart.logarithmic:
            axes.set(xscale="log", yscale="log")
        elif chart.name == "sigma":
            axes.set_yscale("log")
        if chart.x == "round":
            axes.xaxis.set_major_locator(whole_numbers())
        written = StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(written.getvalue(), chart)


def _for_page(svg: str, chart: Chart) -> str:
    """The drawing alone, with the page's colours, a size that follows the column, and ids of its own."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :].strip(), flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace(RULE, "var(--rule)")
    svg = re.sub(rf"{FIRST}([0-9a-f]{{2}})", lambda m: f"var(--line{int(m[1], 16)})", svg)
    svg = re.sub(r'(id="|xlink:href="#|url\(#)(?!' + chart.name + ")", rf"\g<1>{chart.name}-", svg)
    said = f"{chart.title}: {', '.join(s.label for s in chart.series)}; the table below has the numbers"
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(said)}"', 1)
