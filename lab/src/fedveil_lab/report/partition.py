"""Table and picture of a partition: how many examples of which classes each client holds."""

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
    """Make a table with a row per client; with many clients, of the totals, and of the largest and smallest clients."""
    form = ""
    if dataset.task == "segmentation":
        form = ".1%"
    if len(holdings) <= MANY:
        return [_rows(holdings, dataset, _COLUMNS, form=form)]
    ranked = _largest_first(holdings)
    title = f"the {_ENDS} largest and the {_ENDS} smallest"
    return [
        _whole(holdings, dataset),
        _rows([*ranked[:_ENDS], *ranked[-_ENDS:]], dataset, _COLUMNS, title, form),
    ]


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


def _largest_first(holdings: Sequence[Holding]) -> list[Holding]:
    """Sort clients by their number of examples, the largest first."""
    return sorted(holdings, key=lambda holding: -(holding.examples + holding.held_out))


@own_style()
def draw(holdings: Sequence[Holding], dataset: DataSet) -> Figure:
    """Draw each client's number of examples, and its shares of classes or its targets; many clients are sorted by size."""
    many, classes = len(holdings) > MANY, dataset.classes
    placed, width, lower = holdings, 10.0, 3.0
    if many:
        placed = _largest_first(holdings)
    else:  # a wide picture where every client has a place of its own
        width = min(16.0, max(6.5, 0.26 * len(holdings) + 2.5))
    if classes:
        lower = min(9.0, max(1.8, 0.32 * classes + 0.9))
    figure = Figure(figsize=(width, 2.4 + lower), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.9, lower])
    _sizes(top, placed)
    if classes:
        _shares(bottom, placed, dataset)
    else:
        _targets(bottom, placed)
    bottom.set_xlim(-0.5, len(holdings) - 0.5)
    if many:
        bottom.set_xlabel("clients, the largest first")
    else:
        bottom.set_xlabel("client")
        names, turned = [_shortened(holding.name) for holding in placed], 0
        if sum(map(len, names)) > 90:
            turned = 90
        bottom.set_xticks(range(len(placed)), names, rotation=turned)
        bottom.tick_params(axis="x", labelsize=8)
    figure.suptitle(headline(holdings, dataset), fontsize=10)
    return figure


def _shortened(name: str) -> str:
    """Return a client's name, cut where it is too long for the picture."""
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 1]}…"


def headline(holdings: Sequence[Holding], dataset: DataSet) -> str:
    """Write how many examples there are, and how they are divided."""
    train = kept = 0
    for holding in holdings:
        train += holding.examples
        kept += holding.held_out
    text = f"{dataset.name}: {len(holdings):,} clients, {train:,} examples to train on, {kept:,} held out"
    undealt = len(dataset.x) - train - kept
    if undealt:
        text += f", {undealt:,} dealt to nobody"
    if dataset.test_x is not None:
        text += f", {len(dataset.test_x):,} with the server"
    return text


def _rows(
    holdings: Sequence[Holding], dataset: DataSet, most: int, title: str = "", form: str = ""
) -> Table:
    """Make a row per client with columns for at most `most` classes; with `form`, as shares instead of counts."""
    if dataset.classes <= most:
        named = dataset.names()
    else:
        named = ()
    rows = []
    for holding in holdings:
        row: dict[str, object] = {
            "client": holding.name,
            "examples": holding.examples,
            "held out": holding.held_out,
        }
        if dataset.classes:
            row["classes"] = holding.present
            row.update(zip(named, _counts(holding, form), strict=False))
        else:
            row["mean"] = shown(holding.mean, ".7g")
            row["deviation"] = shown(holding.deviation, ".7g")
        row["notes"] = "; ".join(holding.notes)
        rows.append(row)
    header = list(rows[0])
    return Table.of(rows, title=title, numbers=header[1:-1], wraps=header[1:])


def _counts(holding: Holding, form: str) -> Sequence[object]:
    """Return the examples of each class, or their shares in format `form`."""
    if not form:
        return holding.counts
    whole = max(1, sum(holding.counts))
    return [format(count / whole, form) for count in holding.counts]


def _whole(holdings: Sequence[Holding], dataset: DataSet) -> Table:
    """Make the minimum, median and maximum of each figure over clients."""
    spans: dict[str, list[float]] = {
        "examples to train on": [holding.examples for holding in holdings],
        "held out": [holding.held_out for holding in holdings],
    }
    if dataset.classes:
        spans["classes present"] = [holding.present for holding in holdings]
        for number, name in enumerate(dataset.names()[:_COLUMNS]):
            spans[f"class {name}"] = [holding.counts[number] for holding in holdings]
    else:
        spans["mean of the target"] = [
            holding.mean for holding in holdings if holding.mean is not None
        ]
    rows = []
    for name, values in spans.items():
        rows.append([name, f"{min(values):.4g}", f"{median(values):.4g}", f"{max(values):.4g}"])
    numbers = ("least", "median", "most")
    return Table(("per client", *numbers), rows, numbers=numbers)


def _sizes(axes: Axes, placed: Sequence[Holding]) -> None:
    """Draw each client's number of examples; a cross marks clients with at most one training example."""
    places = np.arange(len(placed) + 1) - 0.5
    train, both = [], []
    for holding in placed:
        train.append(holding.examples)
        both.append(holding.examples + holding.held_out)
    axes.stairs(both, places, fill=True, color=_KEPT, label="held out")
    axes.stairs(train, places, fill=True, color=_TRAIN, label="to train on")
    few = [place for place, count in enumerate(train) if count < 2]
    if few:
        style: dict[str, Any] = {
            "s": 14,
            "marker": "x",
            "color": _WARN,
            "linewidths": 0.8,
            "zorder": 3,
        }
        axes.scatter(few, [both[place] for place in few], label="at most one to train on", **style)
    axes.set_ylim(0, max(1, max(both)) * 1.3)
    axes.set_ylabel("examples")
    axes.legend(loc="upper right", ncols=3, frameon=False, fontsize=8)


def _shares(axes: Axes, placed: Sequence[Holding], dataset: DataSet) -> None:
    """Draw the shares of each client's classes."""
    counts = np.array([holding.counts for holding in placed], dtype=np.float64).T
    shares = counts / np.maximum(counts.sum(0), 1e-12)
    image = axes.imshow(shares, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0)
    if len(shares) <= 30:
        axes.set_yticks(range(len(shares)), dataset.names())
    axes.set_ylabel("class")
    figure: Any = axes.figure
    unit = "examples"
    if dataset.task == "segmentation":
        unit = "pixels"
    figure.colorbar(image, ax=axes, label=f"share of the client's {unit}", pad=0.01)


def _targets(axes: Axes, placed: Sequence[Holding]) -> None:
    """Draw the mean and standard deviation of each client's targets."""
    pairs = [[holding.mean, holding.deviation] for holding in placed]
    means, spread = np.array(pairs, dtype=np.float64).T  # None is NaN: not drawn
    axes.errorbar(
        range(len(placed)), means, yerr=spread, fmt=".", color=_TRAIN, ecolor=_KEPT, elinewidth=1
    )
    axes.set_ylabel("target: mean and\nstandard deviation")
