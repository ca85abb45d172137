"""The figure of an audit: ROC curves with a band over runs, scores of both worlds, evidence over the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.attacks import Active, Adaptive, LikelihoodRatio, NoiseSize
from fedveil.attacks.adaptive import boundaries
from fedveil.attacks.statistics import roc, roc_band
from fedveil.experiments.audit import VANILLA, Audit
from fedveil.experiments.audit_results import Verdict
from fedveil.report.audit_tables import by_attack

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IN, OUT, PLAIN = "#D55E00", "#0072B2", "#777777"  # of Okabe and Ito's palette
RATIOS = {kind.name for kind in (LikelihoodRatio, Adaptive, NoiseSize, Active)}


def draw_audit(found: Audit, file: Path) -> Path | None:
    """Write the figure; nothing, and None, where no attack was judged.

    Parameters
    ----------
    found : Audit
        Finished.
    file : Path
        A PNG.
    """
    from matplotlib.figure import Figure

    defended = found.settings[-1]
    shown = {name: by for name, by in by_attack(found).items() if defended in by}
    if not shown:
        return None
    figure = Figure(figsize=(11, 2.5 * len(shown) + 0.5), layout="constrained")
    panels = figure.subplots(len(shown), 3, squeeze=False)
    for (name, by), (left, middle, right) in zip(shown.items(), panels, strict=True):
        for axes in (left, middle, right):
            axes.grid(color="#e5e5e5", linewidth=0.6)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        _curve(left, by, defended)
        left.set_ylabel(f"{name}\ntrue positive rate")
        _scores(middle, by[defended], name)
        _evidence(right, by[defended], name)
    runs = found.values["replicates"]
    figure.suptitle(
        f"{found.values['name']}: {runs} independent runs with and {runs} without the target; defence: {defended}",
        fontsize=10,
    )
    panels[0][2].set_title("median and 90% of the runs", fontsize=8)
    handles, labels = panels[0][1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(file, dpi=110)
    return file


def _curve(axes: Axes, by: dict[str, Verdict], defended: str) -> None:
    grid = np.linspace(0, 1, 101)
    for label, verdict in by.items():
        inside, outside = verdict.inside[:, -1].numpy(), verdict.outside[:, -1].numpy()
        false, true = roc(inside, outside)
        plain = label == VANILLA and label != defended
        style: dict[str, Any] = {"color": PLAIN if plain else IN, "linestyle": "--" if plain else "-"}
        axes.plot(false, true, linewidth=1.6, label=f"{label} {verdict.result.point:.2f}", **style)
        if not plain:
            low, high = roc_band(inside, outside, grid)
            axes.fill_between(grid, low, high, color=IN, alpha=0.15, linewidth=0)
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="false positive rate")
    axes.legend(loc="lower right", frameon=False, fontsize=8, title="AUC", title_fontsize=8)


def _scores(axes: Axes, verdict: Verdict, name: str) -> None:
    inside, outside = verdict.inside[:, -1].numpy(), verdict.outside[:, -1].numpy()
    edges = np.histogram_bin_edges(np.concatenate([inside, outside]), bins=16)
    for values, colour, label in ((outside, OUT, "without the target"), (inside, IN, "with the target")):
        axes.hist(values, bins=list(edges), color=colour, alpha=0.55, label=label)
    if verdict.result.threshold is not None:
        axes.axvline(verdict.result.threshold, color="#000000", linewidth=0.8, linestyle=":", label="threshold")
    axes.set(xlabel="verdict of a run" + (" (log-likelihood ratio)" if name in RATIOS else ""), ylabel="runs")


def _evidence(axes: Axes, verdict: Verdict, name: str) -> None:
    rounds = np.arange(1, verdict.inside.shape[1] + 1)
    for values, colour in ((verdict.outside.numpy(), OUT), (verdict.inside.numpy(), IN)):
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
        axes.plot(rounds, middle, color=colour, linewidth=1.6)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    if name == Adaptive.name:
        for boundary in boundaries():
            axes.axhline(boundary, color="#000000", linewidth=0.8, linestyle=":")
    axes.set(xlabel="round", ylabel="log-likelihood ratio" if name in RATIOS else "mean score so far")
    if name == Adaptive.name:
        axes.set_title("dotted: where the sequential test decides", fontsize=8)
