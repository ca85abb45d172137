"""The figures of an audit: what each attack reached in each setting; scores and evidence against one defence."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.attacks import ATTACKS, Weighing
from fedveil.attacks.participation.weighing import boundaries
from fedveil.attacks.statistics import roc
from fedveil.games import Audit
from fedveil.games.scoring import Scored, attack_of
from fedveil.report.audit_tables import SUPPOSED, by_attack
from fedveil.report.canvas import MARKERS, keep, labelled, legend_below, plain, whole_numbers, wrapped
from fedveil.report.roc import in_turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of Okabe and Ito's palette.
IN, OUT = "#D55E00", "#0072B2"
PLAIN = "#777777"  # the federation without its defence
DEFENDED = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#0072B2", "#D55E00")
DASHES = ("-", "-.", ":")  # the next one where the colours begin again
PANELS = 6  # of a figure, at most: the areas and five curves, or three pairs
COLUMNS = 3  # of ROC panels, at most
WIDTH = 11.0  # inches: of the evidence
PANEL = 2.75  # inches: the width of a ROC panel among many
NARROWEST = 7.0  # inches, for the areas above the ROC panels
ASPECT = 0.72  # of a ROC panel
LINE = 0.19  # inches of a line of words
STEP = 0.105  # inches between two settings of an attack
AREAS = 5  # in a column of a curve's legend
Rows = dict[str, dict[str, Scored]]


def draw_audit(found: Audit, file: Path) -> Path | None:
    """Write `audit_figure` as a PNG; nothing, and None, where no attack was judged."""
    return _saved(audit_figure(found), file)


def draw_evidence(found: Audit, file: Path) -> Path | None:
    """Write `evidence_figure` as a PNG; nothing, and None, where no attack was judged."""
    return _saved(evidence_figure(found), file)


def _saved(figure: "Figure | None", file: Path) -> Path | None:
    return None if figure is None else keep(figure, file, 110)


def audit_figure(found: Audit) -> "Figure | None":
    """Areas under the ROC curve with their intervals, and the curves; None where no attack was judged."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows = by_attack(found)
    if not rows:
        return None
    looks, curved = _looks(found, rows), strongest(rows, found.settings[-1], PANELS - 1)
    lines = -(-len(curved) // COLUMNS)
    columns = -(-len(curved) // lines)
    width = max(NARROWEST, PANEL * columns)
    keys = {k.name: Line2D([], [], color=k.colour, marker=k.marker, markersize=3.5) for k in looks.values()}
    legend = legend_below(Figure(figsize=(width, 1)), keys, size=8)
    panel = min(width / columns, 1.3 * PANEL) * ASPECT + 0.3
    heights = [len(rows) * max(0.3, STEP * (len(looks) + 1.5)) + legend + 0.7, panel * lines + 0.2]
    figure = Figure(figsize=(width, sum(heights) + 2 * LINE), layout="constrained")
    figure.suptitle(wrapped(_about(found), width, 10), fontsize=10)
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)
    above, below = parts[0, 0], parts[1, 0]
    _forest(above.subplots(), rows, looks)
    legend_below(above, keys, size=8, loc="outside upper center")
    panels = below.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes, (name, by) in zip(panels.flat, curved.items(), strict=False):
        _curves(axes, name, by, looks)
    for axes in panels.flat[len(curved) :]:
        axes.set_visible(False)
    for axes in panels.flat[max(0, len(curved) - columns) : len(curved)]:
        axes.set_xlabel("false positive rate", fontsize=8)
        axes.tick_params(labelbottom=True)
    for axes in panels[:, 0]:
        axes.set_ylabel("true positive rate", fontsize=8)
    return figure


def evidence_figure(found: Audit) -> "Figure | None":
    """Verdicts of both worlds and evidence over the rounds, against the last defence; None where none was judged."""
    from matplotlib.figure import Figure

    defended = found.settings[-1]
    judged = {name: by for name, by in by_attack(found).items() if defended in by}
    shown = {name: by[defended] for name, by in strongest(judged, defended, PANELS // 2).items()}
    if not shown:
        return None
    lines, abreast = -(-len(shown) // 2), min(2, len(shown))
    figure = Figure(figsize=(WIDTH, 2.6 * lines + 3 * LINE), layout="constrained")
    panels = figure.subplots(lines, 2 * abreast, squeeze=False)
    for axes in panels.flat[2 * len(shown) :]:
        axes.set_visible(False)
    for i, (name, verdict) in enumerate(shown.items()):
        scores, evidence = panels.flat[2 * i], panels.flat[2 * i + 1]
        _scores(scores, verdict, name, 0.92 * WIDTH / (2 * abreast))
        _evidence(evidence, verdict, name)
    legend_below(figure, labelled(list(panels.flat)))
    figure.suptitle(wrapped(f"{_about(found)}: {defended}", WIDTH, 10), fontsize=10)
    return figure


def _about(found: Audit) -> str:
    runs, target = found.values["replicates"], found.values["target"]
    return f"{found.values['name']}: {runs} independent runs with and {runs} without client {target}"


def strongest(rows: Rows, label: str, most: int) -> Rows:
    """The attacks that reach most against a setting, in their own order; those on unpublished metrics last."""

    def rank(name: str) -> tuple[bool, float]:
        verdict = rows[name].get(label)
        return (True, 0.0) if verdict is None else (verdict.supposed, -verdict.point)

    ranked = sorted(rows, key=rank)
    return {name: by for name, by in rows.items() if name in ranked[:most]}


def _plain(axes: "Axes") -> None:
    plain(axes)
    axes.tick_params(labelsize=7)


@dataclass(frozen=True)
class _Look:
    """How a setting is drawn, in every panel."""

    name: str
    colour: str
    marker: str
    dash: str


def _looks(found: Audit, rows: Rows) -> dict[str, _Look]:
    """Of the settings in which an attack was judged."""
    looks = {}
    for i, label in enumerate(found.settings):
        again, colour = divmod(max(0, i - 1), len(DEFENDED))
        marker = MARKERS[i % len(MARKERS)]
        if any(label in by for by in rows.values()):
            looks[label] = _Look(label, DEFENDED[colour], marker, DASHES[again % len(DASHES)])
    first = found.settings[0]
    return looks | ({first: _Look(f"{first} (no defence)", PLAIN, MARKERS[0], "-")} if first in looks else {})


def _forest(axes: "Axes", rows: Rows, looks: dict[str, _Look]) -> None:
    """One line an attack, one mark a setting."""
    _plain(axes)
    count = len(looks) + 0.5
    for j, (label, look) in enumerate(looks.items()):
        shift = (j + 0.75) / count - 0.5
        some = [(i + shift, by[label].auc) for i, by in enumerate(rows.values()) if label in by]
        points = np.array([e.point for _, e in some])
        reach = np.array([[e.point - e.low for _, e in some], [e.high - e.point for _, e in some]])
        style: dict[str, Any] = {"color": look.colour, "markersize": 3.5, "linewidth": 1.4, "label": look.name}
        axes.errorbar(points, [at for at, _ in some], xerr=reach, fmt=look.marker, **style)
    for i in range(1, len(rows)):
        axes.axhline(i - 0.5, color="#cccccc", linewidth=0.6)
    axes.grid(visible=False, axis="y")
    axes.axvline(0.5, color="#000000", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [_named(name, by) for name, by in rows.items()], fontsize=8)
    least = min(v.auc.low for by in rows.values() for v in by.values())
    axes.set(xlim=(max(0.0, min(0.45, least - 0.02)), 1.01), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlabel("area under the ROC curve, 95% over runs", fontsize=8)


def _curves(axes: "Axes", name: str, by: dict[str, Scored], looks: dict[str, _Look]) -> None:
    _plain(axes)
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
    curves = in_turn([roc(v.inside[:, -1].numpy(), v.outside[:, -1].numpy()) for v in by.values()])
    for (label, verdict), (false, true) in zip(by.items(), curves, strict=True):
        style: dict[str, Any] = {"color": looks[label].colour, "linestyle": looks[label].dash, "linewidth": 1.4}
        axes.plot(false, true, label=f"{verdict.point:.2f}", **style)
    axes.set(xlim=(-0.03, 1.01), ylim=(0, 1.03))
    axes.set_box_aspect(ASPECT)
    axes.set_title(_named(name, by), fontsize=8)
    backed: dict[str, Any] = {"framealpha": 0.75, "edgecolor": "none", "borderpad": 0.2, "columnspacing": 0.8}
    axes.legend(loc="lower right", fontsize=7, handlelength=1.2, ncols=-(-len(by) // AREAS), **backed)


def _named(name: str, by: dict[str, Scored]) -> str:
    return name + SUPPOSED if any(v.supposed for v in by.values()) else name


def _scores(axes: "Axes", verdict: Scored, name: str, width: float) -> None:
    """What an attack says of every run of both worlds, in a panel of so many inches."""
    _plain(axes)
    inside, outside = verdict.inside[:, -1].numpy(), verdict.outside[:, -1].numpy()
    edges = np.histogram_bin_edges(np.concatenate([inside, outside]), bins=16)
    for values, colour, label in ((outside, OUT, "without the target"), (inside, IN, "with the target")):
        axes.hist(values, bins=list(edges), color=colour, alpha=0.55, label=label)
    threshold = verdict.threshold
    if threshold is not None:
        axes.axvline(threshold, color="#000000", linewidth=0.8, linestyle=":", label="threshold")
    axes.yaxis.set_major_locator(whole_numbers())
    axes.set_title(wrapped(f"{_named(name, {'': verdict})}: at the end of every run", width, 7), fontsize=7)
    what = "log-likelihood ratio after the last round" if _weighs(name) else "mean of its scores over all rounds"
    axes.set_xlabel(what, fontsize=7)
    axes.set_ylabel("number of runs", fontsize=7)


def _evidence(axes: "Axes", verdict: Scored, name: str) -> None:
    """What an attack would say after each round."""
    _plain(axes)
    rounds = list(range(1, verdict.inside.shape[1] + 1))
    for values, colour, aside in ((verdict.outside.numpy(), OUT, -0.02), (verdict.inside.numpy(), IN, 0.02)):
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
        if len(rounds) == 1:
            reach = [middle - low, high - middle]
            axes.errorbar([1 + aside], middle, yerr=reach, color=colour, fmt="o", linewidth=1.4)
            continue
        axes.plot(rounds, middle, color=colour, linewidth=1.4)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.margins(x=0.1 if len(rounds) > 1 else 5)
    for boundary in boundaries() if verdict.sequential is not None else ():
        axes.axhline(boundary, color="#000000", linewidth=0.8, linestyle=":")
    axes.set_title("after each round: median and 90%", fontsize=7)
    axes.xaxis.set_major_locator(whole_numbers())
    axes.set_xlabel("round", fontsize=7)
    axes.set_ylabel("log-likelihood ratio" if _weighs(name) else "mean score so far", fontsize=7)


def _weighs(row: str) -> bool:
    """Whether the attack of a row reports log-likelihood ratios."""
    return issubclass(ATTACKS[attack_of(row)], Weighing)
