"""The figures of an audit: what each attack reached in each setting; scores and evidence against one defence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedveil.attacks import ATTACKS, Weighing
from fedveil.attacks.adaptive import boundaries
from fedveil.attacks.statistics import roc
from fedveil.experiments.audit import Audit
from fedveil.experiments.audit_results import Verdict
from fedveil.report.audit_tables import SUPPOSED, by_attack

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of Okabe and Ito's palette.
IN, OUT = "#D55E00", "#0072B2"
SETTINGS = ("#777777", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COLUMNS = 4  # of ROC panels
WIDTH = 11.0  # inches


def draw_audit(found: Audit, file: Path) -> Path | None:
    """Areas under the ROC curve with their intervals, and the curves; nothing, and None, where no attack was judged.

    Parameters
    ----------
    found : Audit
        Finished.
    file : Path
        A PNG.
    """
    from matplotlib.figure import Figure

    rows = by_attack(found)
    if not rows:
        return None
    lines = -(-len(rows) // COLUMNS)
    heights = [0.22 * len(rows) * max(1.0, 0.5 * len(found.settings)) + 0.9, 2.3 * lines]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)
    above, below = parts[0, 0], parts[1, 0]
    _forest(above.subplots(), found, rows)
    panels = below.subplots(lines, COLUMNS, squeeze=False, sharex=True, sharey=True)
    for axes, (name, by) in zip(panels.flat, rows.items(), strict=False):
        _curves(axes, found, name, by)
    for axes in panels.flat[len(rows) :]:
        axes.set_visible(False)
    for axes in panels.flat[max(0, len(rows) - COLUMNS) : len(rows)]:
        axes.set_xlabel("false positive rate", fontsize=8)
        axes.tick_params(labelbottom=True)
    for axes in panels[:, 0]:
        axes.set_ylabel("true positive rate", fontsize=8)
    runs = found.values["replicates"]
    figure.suptitle(
        f"{found.values['name']}: {runs} independent runs with and {runs} without client {found.values['target']}",
        fontsize=10,
    )
    figure.savefig(file, dpi=110)
    return file


def draw_evidence(found: Audit, file: Path) -> Path | None:
    """Verdicts of both worlds and evidence over the rounds, against the last defence; None where none was judged.

    Parameters
    ----------
    found : Audit
        Finished.
    file : Path
        A PNG.
    """
    from matplotlib.figure import Figure

    defended = found.settings[-1]
    shown = {name: by[defended] for name, by in by_attack(found).items() if defended in by}
    if not shown:
        return None
    lines = -(-len(shown) // 2)
    figure = Figure(figsize=(WIDTH, 2.1 * lines + 0.7), layout="constrained")
    panels = figure.subplots(lines, 4, squeeze=False)
    for axes in panels.flat[2 * len(shown) :]:
        axes.set_visible(False)
    for i, (name, verdict) in enumerate(shown.items()):
        scores, evidence = panels[i // 2, 2 * (i % 2)], panels[i // 2, 2 * (i % 2) + 1]
        _scores(scores, verdict, name)
        _evidence(evidence, verdict, name)
    _legend(figure, panels[0][0])
    figure.suptitle(
        f"{found.values['name']}, {defended}: verdicts of all runs; evidence over the rounds (median, 90% of the runs)",
        fontsize=10,
    )
    figure.savefig(file, dpi=110)
    return file


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)


def _plain(axes: Axes) -> None:
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)


def _colours(found: Audit) -> dict[str, str]:
    return {label: SETTINGS[i % len(SETTINGS)] for i, label in enumerate(found.settings)}


def _forest(axes: Axes, found: Audit, rows: dict[str, dict[str, Verdict]]) -> None:
    """One line an attack, one mark a setting."""
    _plain(axes)
    count = len(found.settings)
    for j, (label, colour) in enumerate(_colours(found).items()):
        shift = 0.7 * ((j + 0.5) / count - 0.5)
        some = [(i, by[label].result.auc) for i, by in enumerate(rows.values()) if label in by]
        if not some:
            continue
        at, found_ = np.array([i + shift for i, _ in some]), [e for _, e in some]
        points = np.array([e.point for e in found_])
        reach = np.array([[e.point - e.low for e in found_], [e.high - e.point for e in found_]])
        name = f"{label} (no defence)" if j == 0 else label
        axes.errorbar(points, at, xerr=reach, fmt="o", color=colour, markersize=3.5, linewidth=1.4, label=name)
    axes.axvline(0.5, color="#000000", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [_named(name, by) for name, by in rows.items()], fontsize=8)
    least = min(v.result.auc.low for by in rows.values() for v in by.values())
    axes.set(xlim=(max(0.0, min(0.45, least - 0.02)), 1.01), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlabel(
        "area under the ROC curve, 95% over runs (dotted: guessing; * supposes published metrics)", fontsize=8
    )
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(found.settings), frameon=False, fontsize=8)


def _curves(axes: Axes, found: Audit, name: str, by: dict[str, Verdict]) -> None:
    _plain(axes)
    colours = _colours(found)
    for label, verdict in by.items():
        false, true = roc(verdict.inside[:, -1].numpy(), verdict.outside[:, -1].numpy())
        style = "--" if label == found.settings[0] else "-"
        point = f"{verdict.result.point:.2f}"
        axes.plot(false, true, color=colours[label], linestyle=style, linewidth=1.4, label=point)
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
    axes.set(xlim=(-0.01, 1), ylim=(0, 1.02))
    axes.set_title(_named(name, by), fontsize=8)
    axes.legend(loc="lower right", frameon=False, fontsize=7, handlelength=1.2)


def _named(name: str, by: dict[str, Verdict]) -> str:
    return name + SUPPOSED if any(v.supposed for v in by.values()) else name


def _scores(axes: Axes, verdict: Verdict, name: str) -> None:
    _plain(axes)
    inside, outside = verdict.inside[:, -1].numpy(), verdict.outside[:, -1].numpy()
    edges = np.histogram_bin_edges(np.concatenate([inside, outside]), bins=16)
    for values, colour, label in ((outside, OUT, "without the target"), (inside, IN, "with the target")):
        axes.hist(values, bins=list(edges), color=colour, alpha=0.55, label=label)
    if verdict.result.threshold is not None:
        axes.axvline(verdict.result.threshold, color="#000000", linewidth=0.8, linestyle=":", label="threshold")
    axes.set_title(_named(name, {"": verdict}), fontsize=8)
    axes.set_xlabel("log-likelihood ratio" if _weighs(name) else "verdict of a run", fontsize=7)
    axes.set_ylabel("runs", fontsize=7)


def _evidence(axes: Axes, verdict: Verdict, name: str) -> None:
    _plain(axes)
    rounds = np.arange(1, verdict.inside.shape[1] + 1)
    for values, colour in ((verdict.outside.numpy(), OUT), (verdict.inside.numpy(), IN)):
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
        axes.plot(rounds, middle, color=colour, linewidth=1.4)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    if verdict.sequential is not None:
        for boundary in boundaries():
            axes.axhline(boundary, color="#000000", linewidth=0.8, linestyle=":")
        axes.set_title("dotted: where it decides", fontsize=7)
    axes.set_xlabel("round", fontsize=7)
    axes.set_ylabel("log-likelihood ratio" if _weighs(name) else "mean score so far", fontsize=7)


def _weighs(row: str) -> bool:
    """Whether the attack of a row reports log-likelihood ratios."""
    return issubclass(ATTACKS[row.split(" ")[0]], Weighing)
