"""Figures of an audit: results of each attack in each setting, and its scores and evidence against one defence."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil_lab.attacks import ATTACKS, Weighing
from fedveil_lab.attacks.participation.weighing import boundaries
from fedveil_lab.attacks.statistics import roc
from fedveil_lab.games import Audit
from fedveil_lab.games.scoring import Scored, attack_of
from fedveil_lab.report.audit_tables import SUPPOSED, by_attack
from fedveil_lab.report.canvas import (
    COLOURS,
    MARKERS,
    labelled,
    legend_below,
    new_figure,
    plain,
    whole_numbers,
    wrapped,
)
from fedveil_lab.report.plotting import Axes, Figure, own_style

# Of Okabe and Ito's palette.
IN, OUT = "#D55E00", "#0072B2"
PLAIN = "#777777"  # the federation without its defence
DEFENDED = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#0072B2", "#D55E00")
DASHES = ("-", "-.", ":")  # the next one where the colours begin again
ROC_DASHES = ("-", "--", ":", "-.")
CURVES, PAIRS = 5, 3  # attacks of a figure, at most
COLUMNS = 3  # of ROC panels, at most
PANEL = 2.75  # inches: the width of a ROC panel
NARROWEST = 7.0  # inches, for the areas above the ROC panels
ASPECT = 0.72  # of a ROC panel
STEP = 0.105  # inches between two settings of an attack
LOWEST = 0.1  # false positive rate from which a hundred non-members give ten
AREAS = 5  # in a column of a curve's legend
SMALL: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "lines.linewidth": 1.4,
}
TURN = 0.05  # of a curve's way, which is 2 long: what one of several that coincide is seen for
Points = npt.NDArray[np.float64]
Rows = dict[str, dict[str, Scored]]
Looks = dict[str, dict[str, Any]]  # how each setting is drawn, in every panel


def audit_figure(audit: Audit) -> Figure | None:
    """Draw areas under the ROC curve with intervals, and the ROC curves of the strongest attacks; None without verdicts."""
    rows = by_attack(audit)
    if not rows:
        return None
    looks, curved = _looks(audit, rows), strongest(rows, audit.settings[-1], CURVES)
    columns = min(COLUMNS, len(curved))
    lines = -(-len(curved) // columns)
    width = max(NARROWEST, PANEL * columns)
    panel = 0.8 * min(width / columns, 1.3 * PANEL)
    heights = [len(rows) * max(0.3, STEP * (len(looks) + 1.5)) + 0.7, panel * lines + 0.3]
    with own_style(SMALL):
        figure = Figure(figsize=(width, sum(heights) + 0.4), layout="constrained")
        parts = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)
        above, below = parts[:, 0]
        forest = above.subplots()
        _forest(forest, rows, looks)
        panels = below.subplots(lines, columns, squeeze=False)
        for axes in panels.flat[len(curved) :]:
            axes.remove()
        for axes, (name, by) in zip(panels.flat, curved.items(), strict=False):
            _curves(axes, name, by, looks)
        below.supxlabel("false positive rate", fontsize=8)
        below.supylabel("true positive rate", fontsize=8)
        figure.suptitle(wrapped(_about(audit), width, 10), fontsize=10)
        legend_below(figure, labelled([forest]), size=8)
    return figure


def evidence_figure(audit: Audit) -> Figure | None:
    """Draw scores in both worlds, and the evidence over rounds, against the last defence; None without verdicts."""
    defended = audit.settings[-1]
    judged = {name: by for name, by in by_attack(audit).items() if defended in by}
    shown = strongest(judged, defended, PAIRS)
    if not shown:
        return None
    with own_style(SMALL):
        figure = Figure(figsize=(8.0, 2.4 * len(shown) + 0.6), layout="constrained")
        panels = figure.subplots(len(shown), 2, squeeze=False)
        for (scores, evidence), (name, by) in zip(panels, shown.items(), strict=True):
            _scores(scores, by[defended], name)
            _evidence(evidence, by[defended], name)
        legend_below(figure, labelled(list(panels.flat)))
        figure.suptitle(wrapped(f"{_about(audit)}: {defended}", 8.0, 10), fontsize=10)
    return figure


@own_style()
def roc_figure(rates: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> Figure:
    """Draw the ROC curves of the first run: one panel per setting, one line per attack.

    Lines begin at the rate where ten false positives are expected, since further left too few non-members decide. Axes
    are logarithmic, to show low rates, and linear with fewer than a hundred non-members.
    """
    figure, panels = new_figure(4.4 * len(rates), 4.6, [list(rates)])
    places: dict[str, int] = {}
    least = 1.0
    for lines in rates.values():
        for name, (false, _) in lines.items():
            places.setdefault(name, len(places))
            least = min(least, false[0])
    low, begin = least <= LOWEST, 0.0
    if low:
        begin = least
    for setting, lines in rates.items():
        axes = panels[setting]
        for name, (false, true) in lines.items():
            again, colour = divmod(places[name], len(COLOURS))
            dash = ROC_DASHES[again % 4]
            axes.plot(false, true, label=name, linewidth=1.4, color=COLOURS[colour], linestyle=dash)
        ends = [begin, 1]
        axes.plot(ends, ends, color="#999999", linewidth=0.8, label="_chance")
        axes.set(title=setting, xlabel="false positive rate", ylabel="true positive rate")
        if low:
            axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least / 2, 1.05))
            continue
        axes.axvspan(0, least, color="#ececec", zorder=-1)
        axes.text(
            least / 2,
            0.5,
            "too few non-members",
            rotation=90,
            ha="center",
            va="center",
            color="#555555",
        )
        axes.set(xlim=(0, 1), ylim=(0, 1.03))
    legend_below(figure, labelled(list(panels.values())), size=8)
    return figure


def _about(audit: Audit) -> str:
    runs, target = audit.values["replicates"], audit.values["target"]
    return (
        f"{audit.values['name']}: {runs} independent runs with and {runs} without client {target}"
    )


def strongest(rows: Rows, label: str, most: int) -> Rows:
    """Choose the strongest attacks against a setting, in their own order; attacks on unpublished metrics come last."""

    def rank(name: str) -> tuple[bool, float]:
        verdict = rows[name].get(label)
        if verdict is None:
            return True, 0.0
        return verdict.supposed, -verdict.point

    best = sorted(rows, key=rank)[:most]
    return {name: by for name, by in rows.items() if name in best}


def _looks(audit: Audit, rows: Rows) -> Looks:
    """Choose line styles for the settings in which an attack was judged."""
    first, *defended = audit.settings
    looks: Looks = {
        first: {
            "color": PLAIN,
            "marker": MARKERS[0],
            "linestyle": "-",
            "label": f"{first} (no defence)",
        }
    }
    for i, label in enumerate(defended):
        again, colour = divmod(i, len(DEFENDED))
        dash, marker = DASHES[again % len(DASHES)], MARKERS[(i + 1) % len(MARKERS)]
        looks[label] = {
            "color": DEFENDED[colour],
            "marker": marker,
            "linestyle": dash,
            "label": label,
        }
    judged = set[str]().union(*rows.values())
    return {label: look for label, look in looks.items() if label in judged}


def _forest(axes: Axes, rows: Rows, looks: Looks) -> None:
    """Draw one line per attack, with a mark for each setting."""
    plain(axes)
    count = len(looks) + 0.5
    for j, (label, look) in enumerate(looks.items()):
        shift = (j + 0.75) / count - 0.5
        at, points, reach = [], [], []
        for i, by in enumerate(rows.values()):
            if label in by:
                area = by[label].auc
                at.append(i + shift)
                points.append(area.point)
                reach.append([area.point - area.low, area.high - area.point])
        style = {**look, "linestyle": "none", "markersize": 3.5}
        axes.errorbar(points, at, xerr=np.array(reach).T, **style)
    for i in range(1, len(rows)):
        axes.axhline(i - 0.5, color="#cccccc", linewidth=0.6)
    axes.grid(visible=False, axis="y")
    axes.axvline(0.5, color="#000000", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [_named(name, by) for name, by in rows.items()], fontsize=8)
    least = 1.0
    for by in rows.values():
        for verdict in by.values():
            least = min(least, verdict.auc.low)
    axes.set(xlim=(max(0.0, min(0.45, least - 0.02)), 1.01), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlabel("area under the ROC curve, 95% over runs")


def _curves(axes: Axes, name: str, by: dict[str, Scored], looks: Looks) -> None:
    plain(axes)
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
    curves = []
    for verdict in by.values():
        curves.append(roc(verdict.inside[:, -1].numpy(), verdict.outside[:, -1].numpy()))
    for (label, verdict), (false, true) in zip(by.items(), in_turn(curves), strict=True):
        axes.plot(false, true, **{**looks[label], "marker": "", "label": f"{verdict.point:.2f}"})
    axes.set(xlim=(-0.03, 1.01), ylim=(0, 1.03), title=_named(name, by))
    axes.set_box_aspect(ASPECT)
    backed: dict[str, Any] = {
        "framealpha": 0.75,
        "edgecolor": "none",
        "borderpad": 0.2,
        "columnspacing": 0.8,
    }
    axes.legend(loc="lower right", handlelength=1.2, ncols=-(-len(by) // AREAS), **backed)


def _named(name: str, by: dict[str, Scored]) -> str:
    if any(verdict.supposed for verdict in by.values()):
        return name + SUPPOSED
    return name


def _scores(axes: Axes, verdict: Scored, name: str) -> None:
    """Draw the score of an attack on every run of both worlds."""
    plain(axes)
    worlds = [verdict.outside[:, -1].numpy(), verdict.inside[:, -1].numpy()]
    how: dict[str, Any] = {"color": [OUT, IN], "label": ["without the target", "with the target"]}
    axes.hist(worlds, bins=16, histtype="stepfilled", alpha=0.55, **how)
    if verdict.threshold is not None:
        axes.axvline(
            verdict.threshold, color="#000000", linewidth=0.8, linestyle=":", label="threshold"
        )
    axes.yaxis.set_major_locator(whole_numbers())
    what = "mean of its scores over all rounds"
    if _weighs(name):
        what = "log-likelihood ratio after the last round"
    title = f"{_named(name, {'': verdict})}: at the end of every run"
    axes.set(title=title, xlabel=what, ylabel="number of runs")


def _evidence(axes: Axes, verdict: Scored, name: str) -> None:
    """Draw the evidence of an attack after each round."""
    plain(axes)
    rounds = np.arange(1, verdict.inside.shape[1] + 1)
    for values, colour, aside in (
        (verdict.outside.numpy(), OUT, -0.02),
        (verdict.inside.numpy(), IN, 0.02),
    ):
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
        if len(rounds) == 1:
            axes.errorbar(
                rounds + aside, middle, yerr=[middle - low, high - middle], color=colour, fmt="o"
            )
        else:
            axes.plot(rounds, middle, color=colour)
            axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    beside = 5.0
    if len(rounds) > 1:
        beside = 0.1
    axes.margins(x=beside)
    if verdict.sequential is not None:
        for boundary in boundaries():
            axes.axhline(boundary, color="#000000", linewidth=0.8, linestyle=":")
    axes.xaxis.set_major_locator(whole_numbers())
    what = "mean score so far"
    if _weighs(name):
        what = "log-likelihood ratio"
    axes.set(title="after each round: median and 90%", xlabel="round", ylabel=what)


def _weighs(row: str) -> bool:
    """Whether the attack of a row reports log-likelihood ratios."""
    return issubclass(ATTACKS[attack_of(row)], Weighing)


def in_turn(curves: Sequence[tuple[Points, Points]]) -> list[tuple[Points, Points]]:
    """Cut coinciding curves into alternating dashes, so that none hides another.

    Parameters
    ----------
    curves : sequence of two arrays
        False and true positive rates. Neither rate may fall along a curve. Then curves through a point have equal
        length up to it.

    Returns
    -------
    list of two arrays
        The curves in many small steps, with NaN in the gaps.
    """
    far = np.linspace(0, 2, 1601)
    steps = []
    for false, true in curves:
        way = false + true
        steps.append([np.interp(far, way, false), np.interp(far, way, true)])
    rates = np.array(steps)
    turn = (far / TURN).astype(int)
    ordered = []
    for i, (false, true) in enumerate(rates):
        same = np.isclose(
            rates[:, 0], false, rtol=0, atol=1e-9
        )  # and so is the other rate, their sum being `far`
        seen = turn % same.sum(0) == same[:i].sum(0)
        ordered.append((np.where(seen, false, np.nan), np.where(seen, true, np.nan)))
    return ordered
