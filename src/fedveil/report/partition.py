"""Who holds what: the table and the picture of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.data import DataSet, Holding
from fedveil.report.table import NOTHING, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY = 60  # clients: beyond, table and picture show the whole instead of each

_COLUMNS = 12  # classes with a column of their own
_LONGEST = 24  # letters of a client's name in the picture
_ENDS = 5  # largest and smallest clients that the short table lists
_TRAIN, _KEPT, _WARN = "#0072B2", "#9ecae1", "#D55E00"
VIEW = "The experimenter's view: in a deployment these figures are the clients' own, and no release covers them."


def tables(found: Sequence[Holding], dataset: DataSet) -> list[Table]:
    """One row a client; with many clients, the whole and the largest and smallest ones."""
    if len(found) <= MANY:
        return [_rows(found, dataset)]
    ranked = sorted(found, key=lambda h: -(h.examples + h.held_out))
    ends = [*ranked[:_ENDS], *ranked[-_ENDS:]]
    return [_whole(found, dataset), _rows(ends, dataset, f"the {_ENDS} largest and the {_ENDS} smallest")]


def write(found: Sequence[Holding], dataset: DataSet, folder: Path) -> list[Path]:
    """Write ``partition.png`` and ``partition.csv``, which has a row for every client.

    Returns
    -------
    list of Path
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture, table = folder / "partition.png", folder / "partition.csv"
    draw(found, dataset).savefig(picture, dpi=150)
    values = list(dataset.names()) if dataset.classes else ["mean", "deviation"]
    rows = []
    for h in found:
        own = h.counts if dataset.classes else (h.mean, h.deviation)
        rows.append([h.name, h.examples, h.held_out, h.present, *own, "; ".join(h.notes)])
    table.write_text(
        Table(["client", "examples", "held out", "classes", *values, "notes"], rows).csv(), encoding="utf-8"
    )
    return [picture, table]


def draw(found: Sequence[Holding], dataset: DataSet) -> Figure:
    """A picture of the partition: a bubble for each client and class, or the whole where there are many clients."""
    from matplotlib.figure import Figure

    many, classes = len(found) > MANY, dataset.classes
    # a wide picture where every client has a place of its own
    width = 10.0 if many else min(16.0, max(6.5, 0.26 * len(found) + 2.5))
    lower = 3.0 if many or not classes else min(9.0, max(1.8, 0.32 * classes + 0.9))
    figure = Figure(figsize=(width, 2.4 + lower), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=not many, height_ratios=[1.9, lower])
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    if many:
        ranked = sorted(found, key=lambda h: -(h.examples + h.held_out))
        _ranked_sizes(top, ranked)
        if classes:
            _shares(bottom, ranked, dataset)
        else:
            top.set_xlabel("clients, the largest first")
            _means(bottom, ranked)
    else:
        _bars(top, found)
        if classes:
            _bubbles(bottom, found, dataset)
        else:
            _targets(bottom, found)
        names = [h.name if len(h.name) <= _LONGEST else f"{h.name[: _LONGEST - 1]}…" for h in found]
        bottom.set_xticks(range(len(found)), names, rotation=90 if len("".join(names)) > 90 else 0)
        bottom.tick_params(axis="x", labelsize=8)
    figure.suptitle(headline(found, dataset), fontsize=10)
    return figure


def headline(found: Sequence[Holding], dataset: DataSet) -> str:
    """How much there is, and where it went."""
    train, kept = sum(h.examples for h in found), sum(h.held_out for h in found)
    dealt = train + kept
    left = len(dataset.x) - dealt
    rest = f", {left:,} dealt to nobody" if left else ""
    test = f", {len(dataset.test_x):,} with the server" if dataset.test_x is not None else ""
    return f"{dataset.name}: {len(found):,} clients, {train:,} examples to train on, {kept:,} held out{rest}{test}"


def _rows(found: Sequence[Holding], dataset: DataSet, title: str = "") -> Table:
    named = dataset.classes if dataset.classes <= _COLUMNS else 0
    numbers = ["examples", "held out", *(["classes"] if dataset.classes else ["mean", "deviation"])]
    numbers += dataset.names()[:named]
    rows = []
    for h in found:
        if not dataset.classes:
            own = [_number(h.mean), _number(h.deviation)]
        else:
            total = sum(h.counts)
            pixels = dataset.task == "segmentation" and total
            counts = [f"{count / total:.1%}" if pixels else str(count) for count in h.counts[:named]]
            own = [f"{h.present}/{dataset.classes}", *counts]
        rows.append([h.name, str(h.examples), str(h.held_out), *own, ", ".join(h.notes)])
    return Table(["client", *numbers, "notes"], rows, title, numbers, [*numbers, "notes"])


def _whole(found: Sequence[Holding], dataset: DataSet) -> Table:
    spans: list[tuple[str, list[float]]] = [
        ("examples to train on", [h.examples for h in found]),
        ("held out", [h.held_out for h in found]),
    ]
    if dataset.classes:
        spans.append(("classes present", [h.present for h in found]))
        for c, name in enumerate(dataset.names()[:_COLUMNS]):
            spans.append((f"class {name}", [h.counts[c] for h in found]))
    else:
        spans.append(("mean of the target", [h.mean for h in found if h.mean is not None]))
    rows = [[name, *map(_number, (min(values), median(values), max(values)))] for name, values in spans]
    numbers = ("least", "median", "most")
    return Table(("per client", *numbers), rows, numbers=numbers)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


def _bars(axes: Axes, found: Sequence[Holding]) -> None:
    places, sizes = range(len(found)), [h.examples for h in found]
    axes.bar(places, sizes, color=_TRAIN, label="to train on")
    axes.bar(places, [h.held_out for h in found], bottom=sizes, color=_KEPT, label="held out")
    for place, h in enumerate(found):
        if h.examples < 2:
            label = "empty" if not h.examples else "one"
            axes.annotate(
                label,
                (place, h.examples + h.held_out),
                xytext=(0, 3),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=8,
                color=_WARN,
            )
    axes.set_ylabel("examples")
    axes.set_ylim(0, max(1, max(h.examples + h.held_out for h in found)) * 1.3)
    axes.legend(loc="upper right", ncols=2, frameon=False, fontsize=8)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)


def _bubbles(axes: Axes, found: Sequence[Holding], dataset: DataSet) -> None:
    """Area follows the number of examples (of a segmentation: the share of pixels); a cross where there is none."""
    grid = _grid(found, dataset)
    largest = float(grid.max()) or 1.0
    place, level = np.meshgrid(np.arange(grid.shape[1]), np.arange(grid.shape[0]))
    there = grid > 0
    axes.scatter(place[there], level[there], s=4 + 150 * grid[there] / largest, color=_TRAIN, linewidths=0)
    axes.scatter(place[~there], level[~there], s=12, marker="x", color=_WARN, linewidths=0.8)
    axes.set_yticks(range(len(grid)), dataset.names())
    axes.set_ylim(len(grid) - 0.4, -0.6)
    axes.set_xlim(-0.7, grid.shape[1] - 0.3)
    unit = "of the pixels" if dataset.task == "segmentation" else "examples"
    most = f"{largest:.0%}" if dataset.task == "segmentation" else f"{largest:,.0f}"
    axes.set_ylabel("class")
    axes.set_xlabel(f"client (the largest bubble is {most} {unit}; a cross: none)")
    axes.grid(color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)


def _targets(axes: Axes, found: Sequence[Holding]) -> None:
    there = [(i, h.mean, h.deviation or 0.0) for i, h in enumerate(found) if h.mean is not None]
    places, means, spread = (np.array(column) for column in zip(*there, strict=True))
    axes.errorbar(places, means, yerr=spread, fmt="o", color=_TRAIN, markersize=4, capsize=2, elinewidth=1)
    axes.set_ylabel("target: mean and\nstandard deviation")
    axes.set_xlabel("client")
    axes.set_xlim(-0.7, len(found) - 0.3)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)


def _ranked_sizes(axes: Axes, ranked: Sequence[Holding]) -> None:
    places = np.arange(len(ranked) + 1)
    train = [h.examples for h in ranked]
    both = [h.examples + h.held_out for h in ranked]
    axes.stairs(both, places, fill=True, color=_KEPT, label="held out")
    axes.stairs(train, places, fill=True, color=_TRAIN, label="to train on")
    axes.set_xlim(0, len(ranked))
    axes.set_ylim(0, max(1, max(both)) * 1.1)
    axes.set_ylabel("examples")
    axes.legend(loc="upper right", frameon=False, fontsize=8)


def _shares(axes: Axes, ranked: Sequence[Holding], dataset: DataSet) -> None:
    grid = _grid(ranked, dataset)
    shares = grid / np.maximum(grid.sum(0), 1e-12)
    image = axes.imshow(shares, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0)
    image.set_extent((0, shares.shape[1], len(shares) - 0.5, -0.5))
    if len(shares) <= 30:
        axes.set_yticks(range(len(shares)), dataset.names())
    axes.set(ylabel="class", xlabel="clients, the largest first")
    figure: Any = axes.figure
    figure.colorbar(image, ax=axes, label="share of the client's " + _unit(dataset), pad=0.01)


def _means(axes: Axes, ranked: Sequence[Holding]) -> None:
    values = [h.mean for h in ranked if h.mean is not None]
    axes.hist(values, bins=40, color=_TRAIN)
    axes.set(ylabel="clients", xlabel="mean of the client's targets")


def _grid(found: Sequence[Holding], dataset: DataSet) -> np.ndarray[Any, Any]:
    """[classes, clients]: examples, or shares of the pixels."""
    grid = np.array([h.counts for h in found], dtype=np.float64).T
    return grid / np.maximum(grid.sum(0), 1) if dataset.task == "segmentation" else grid


def _unit(dataset: DataSet) -> str:
    return "pixels" if dataset.task == "segmentation" else "examples"
