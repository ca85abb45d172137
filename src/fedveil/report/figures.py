"""Figures of a comparison: accuracy, noise and distance over its rounds, and what accuracy cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedveil.report import canvas
from fedveil.report.pareto import pareto
from fedveil.report.tables import based, grouped, headline, quality, swept
from fedveil.runs.summary import Summary

PALEST = 0.3


def draw(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write ``curves.png`` and ``pareto.png``, and the same as PDF.

    Returns
    -------
    list of Path
        The files.
    """
    files = [folder / "curves.png", folder / "pareto.png"]
    for file, figure in zip(files, (curves(summaries), pareto(summaries)), strict=True):
        canvas.keep(figure, file, 150)
    return files


def curves(summaries: Sequence[Summary]) -> Figure:
    """Accuracy per round; sigma and d per round. Several seeds: their mean, and the range between them."""
    strengths = _strengths(summaries)
    width = 11.0 if len(strengths) > 1 else 10.0
    name, title = quality(summaries)
    groups = {name: "metrics", "sigma": "noise", "distance": "noise"}
    labels = {name: f"{title} on held-out examples", "sigma": "sigma (per coordinate)", "distance": "distance d"}
    beside = [kind for kind in ("sigma", "distance") if any(kind in row["noise"] for s in summaries for row in s.rows)]
    cells = [[name, kind] for kind in beside] or [[name]]
    figure, mosaic = canvas.new_figure(width if beside else 0.65 * width, 5.2, cells, [1.6, 1] if beside else [1])
    for index, (base, own) in enumerate(based(summaries).items()):
        for label, runs in grouped(own).items():  # a swept setting is one colour, from pale to full
            style = {**canvas.look(index), "alpha": strengths[swept(runs[0])]}
            style["label"] = base if label == own[-1].setting else "_"
            for kind, axes in mosaic.items():
                _series(axes, runs, groups[kind], kind, style)
    for kind, axes in mosaic.items():
        axes.set(xlabel="round", ylabel=labels[kind])
        axes.xaxis.set_major_locator(canvas.whole_numbers())
        if kind != name:
            axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    canvas.legend_below(figure, canvas.labelled([mosaic[name]]), size=10)
    notes = [headline(summaries), canvas.over_seeds([len(runs) for runs in grouped(summaries).values()], "round")]
    if len(strengths) > 1:
        names = dict.fromkeys(name for s in summaries for name in s.values.get("swept", {}))
        notes.append(f"{', '.join(names)} from pale to full")
        _key(figure, strengths)
    figure.suptitle(canvas.wrapped("; ".join(filter(None, notes)), width, 10), fontsize=10)
    return figure


def _strengths(summaries: Sequence[Summary]) -> dict[str, float]:
    """How strongly the lines of each swept value are drawn; full where nothing is swept."""
    by_setting: dict[str, float] = {}
    for own in based(summaries).values():
        values = list(dict.fromkeys(swept(s) for s in own))
        strengths = np.linspace(PALEST, 1, len(values)).tolist() if len(values) > 1 else [1.0]
        by_setting = dict(zip(values, strengths, strict=True)) | by_setting
    return by_setting


def _key(figure: Figure, strengths: Mapping[str, float]) -> None:
    """Which strength is which value."""
    style: dict[str, Any] = {"color": "#000000"}
    handles = {canvas.wrapped(v, 1.8, 9): Line2D([], [], alpha=s, **style) for v, s in strengths.items() if v}
    place: Any = "outside right upper"
    figure.legend(list(handles.values()), list(handles), loc=place, frameon=False, fontsize=9)


def _series(axes: Axes, runs: Sequence[Summary], group: str, name: str, style: dict[str, Any]) -> None:
    series = [{row["round"]: row[group][name] for row in run.rows if name in row[group]} for run in runs]
    rounds = sorted(set.intersection(*(set(s) for s in series)))
    if not rounds:
        return
    columns = [[s[r] for s in series] for r in rounds]
    axes.plot(rounds, [fmean(c) for c in columns], linewidth=1.6, marker=canvas.dot(rounds), **style)
    if len(runs) > 1:
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15 * style["alpha"], linewidth=0)
