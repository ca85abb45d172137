"""The cost curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

TITLES = {
    "clients": "clients of a round (178 parameters)",
    "parameters": "parameters (8 clients)",
    "hypotheses": "hypotheses (W1, group privacy)",
}


def draw(curves: Mapping[str, Any], path: Path) -> None:
    """Three panels: milliseconds a round over each size, beside a line of slope 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), constrained_layout=True)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        sizes = [row[name] for row in curves[name]]
        times = [row["minimum_ms"] for row in curves[name]]
        axis.plot(sizes, times, "o-", label="FedVeil, 1 worker (minimum)")
        axis.plot(
            sizes,
            [times[-1] * size / sizes[-1] for size in sizes],
            ":",
            color="grey",
            label="in proportion",
        )
        axis.set(xscale="log", yscale="log", xlabel=title)
        if name == "hypotheses":
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("ms a round")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
