"""Who holds what: the table and the picture of a partition."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedveil.data import DataSet, Holding
from fedveil.files import make_folder, write_atomic
from fedveil.tables import Table, shown
from fedveil_lab.report.canvas import keep
from fedveil_lab.report.plotting import Axes, Figure, own_style

MANY = 60  # clients: beyond, table and picture show the whole instead of each

_COLUMNS = 12  # classes with a column of their own
_LONGEST = 24  # letters of a client's name in the picture
_ENDS = 5  # largest and smallest clients that the short table lists
_TRAIN, _KEPT, _WARN = "#0072B2", "#9ecae1", "#D55E00"
FILES = ("partition.png", "partition.pdf", "partition.csv")
VIEW = "The experimenter's view: in a deployment these figures are the clients' own, and no release covers them."


def tables(holdings: Sequence[Holding], dataset: DataSet) -> list[Table]:
    """One row a client; with many clients, the whole and the largest and smallest ones."""
    form = ".1%" if dataset.task == "segmentation" else ""
    if len(holdings) <= MANY:
        return [_rows(holdings, dataset, _COLUMNS, form=form)]
    ranked = sorted(holdings, key=lambda h: -(h.examples + h.held_out))
    title = f"the {_ENDS} largest and the {_ENDS} smallest"
    return [_whole(holdings, dataset), _rows([*ranked[:_ENDS], *ranked[-_ENDS:]], dataset, _COLUMNS, title, form)]


def write(holdings: Sequence[Holding], dataset: DataSet, folder: Path) -> list[Path]:
    """Write ``partition.png`` and ``partition.csv``, which has a row for every client.

    Returns
    -------
    list of Path
        The files.
    """
    make_folder(folder)
    picture, table = folder / "partition.png", folder / "partition.csv"
    keep(draw(holdings, dataset), picture, 150)
    write_atomic(table, _rows(holdings, dataset, dataset.classes).csv().encode())
    return [picture, table]


@own_style()
def draw(holdings: Sequence[Holding], dataset: DataSet) -> Figure:
    """Examples of each client, and below the shares of its classes or its targets; many clients by size, unnamed."""
    many, classes = len(holdings) > MANY, dataset.classes
    placed = sorted(holdings, key=lambda h: -(h.examples + h.held_out)) if many else holdings
    # a wide picture where every client has a place of its own
    width = 10.0 if many else min(16.0, max(6.5, 0.26 * len(holdings) + 2.5))
    lower = min(9.0, max(1.8, 0.32 * classes + 0.9)) if classes else 3.0
    figure = Figure(figsize=(width, 2.4 + lower), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.9, lower])
    _sizes(top, placed)
    (_shares if classes else _targets)(bottom, placed, dataset)
    bottom.set_xlim(-0.5, len(holdings) - 0.5)
    bottom.set_xlabel("clients, the largest first" if many else "client")
    if not many:
        names = [h.name if len(h.name) <= _LONGEST else f"{h.name[: _LONGEST - 1]}…" for h in placed]
        bottom.set_xticks(range(len(placed)), names, rotation=90 if len("".join(names)) > 90 else 0)
        bottom.tick_params(axis="x", labelsize=8)
    figure.suptitle(headline(holdings, dataset), fontsize=10)
    return figure


def headline(holdings: Sequence[Holding], dataset: DataSet) -> str:
    """How much there is, and where it went."""
    train, kept = sum(h.examples for h in holdings), sum(h.held_out for h in holdings)
    dealt = train + kept
    undealt = len(dataset.x) - dealt
    rest = f", {undealt:,} dealt to nobody" if undealt else ""
    test = f", {len(dataset.test_x):,} with the server" if dataset.test_x is not None else ""
    return f"{dataset.name}: {len(holdings):,} clients, {train:,} examples to train on, {kept:,} held out{rest}{test}"


def _rows(holdings: Sequence[Holding], dataset: DataSet, most: int, title: str = "", form: str = "") -> Table:
    """A row a client, with a column for each of at most so many classes; in a format, the class's share."""
    named = dataset.names() if dataset.classes <= most else ()
    rows = []
    for h in holdings:
        row: dict[str, object] = {"client": h.name, "examples": h.examples, "held out": h.held_out}
        if dataset.classes:
            counts = [format(count / max(1, sum(h.counts)), form) for count in h.counts] if form else h.counts
            row |= {"classes": h.present, **dict(zip(named, counts, strict=False))}
        else:
            row |= {"mean": shown(h.mean, ".7g"), "deviation": shown(h.deviation, ".7g")}
        rows.append(row | {"notes": "; ".join(h.notes)})
    header = list(rows[0])
    return Table.of(rows, title=title, numbers=header[1:-1], wraps=header[1:])


def _whole(holdings: Sequence[Holding], dataset: DataSet) -> Table:
    spans: dict[str, list[float]] = {
        "examples to train on": [h.examples for h in holdings],
        "held out": [h.held_out for h in holdings],
    }
    if dataset.classes:
        spans["classes present"] = [h.present for h in holdings]
        spans |= {f"class {name}": [h.counts[c] for h in holdings] for c, name in enumerate(dataset.names()[:_COLUMNS])}
    else:
        spans["mean of the target"] = [h.mean for h in holdings if h.mean is not None]
    rows = [[name, *(f"{of(values):.4g}" for of in (min, median, max))] for name, values in spans.items()]
    numbers = ("least", "median", "most")
    return Table(("per client", *numbers), rows, numbers=numbers)


def _sizes(axes: Axes, placed: Sequence[Holding]) -> None:
    places = np.arange(len(placed) + 1) - 0.5
    both = [h.examples + h.held_out for h in placed]
    axes.stairs(both, places, fill=True, color=_KEPT, label="held out")
    axes.stairs([h.examples for h in placed], places, fill=True, color=_TRAIN, label="to train on")
    if few := [i for i, h in enumerate(placed) if h.examples < 2]:
        style: dict[str, Any] = {"s": 14, "marker": "x", "color": _WARN, "linewidths": 0.8, "zorder": 3}
        axes.scatter(few, [both[i] for i in few], label="at most one to train on", **style)
    axes.set_ylim(0, max(1, max(both)) * 1.3)
    axes.set_ylabel("examples")
    axes.legend(loc="upper right", ncols=3, frameon=False, fontsize=8)


def _shares(axes: Axes, placed: Sequence[Holding], dataset: DataSet) -> None:
    counts = np.array([h.counts for h in placed], dtype=np.float64).T
    shares = counts / np.maximum(counts.sum(0), 1e-12)
    image = axes.imshow(shares, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0)
    if len(shares) <= 30:
        axes.set_yticks(range(len(shares)), dataset.names())
    axes.set_ylabel("class")
    figure: Any = axes.figure
    unit = "pixels" if dataset.task == "segmentation" else "examples"
    figure.colorbar(image, ax=axes, label=f"share of the client's {unit}", pad=0.01)


def _targets(axes: Axes, placed: Sequence[Holding], _dataset: DataSet) -> None:
    means, spread = np.array([[h.mean, h.deviation] for h in placed], dtype=np.float64).T  # None is NaN: not drawn
    axes.errorbar(range(len(placed)), means, yerr=spread, fmt=".", color=_TRAIN, ecolor=_KEPT, elinewidth=1)
    axes.set_ylabel("target: mean and\nstandard deviation")
