"""ROC curves: on logarithmic axes, where few false positives can be read, and such as hide none of each other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedveil.report.canvas import COLOURS, labelled, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedveil.games.membership import MembershipAudit

TURN = 0.05  # of a curve's way, which is 2 long: what one of several that coincide is seen for
Points = npt.NDArray[np.float64]


def roc_figure(found: "MembershipAudit") -> "Figure | None":
    """One panel a setting, one line an attack, of the first run; None if nothing was scored.

    Lines begin where ten false positives are expected: to the left of that fewer non-members decide.
    """
    if not found.roc:
        return None
    figure, panels = new_figure(4.4 * len(found.roc), 4.6, [list(found.roc)], [1.0] * len(found.roc))
    names = list(dict.fromkeys(name for lines in found.roc.values() for name in lines))
    for setting, lines in found.roc.items():
        axes = panels[setting]
        for name, (false, true) in lines.items():
            place = names.index(name)
            colour, dash = COLOURS[place % len(COLOURS)], ("-", "--", ":", "-.")[place // len(COLOURS) % 4]
            axes.plot(false, true, label=name, linewidth=1.4, color=colour, linestyle=dash)
        least = min(false[0] for false, _ in lines.values())
        axes.plot([least, 1], [least, 1], color="#999999", linewidth=0.8, label="_chance")
        axes.set(xscale="log", yscale="log", title=setting, xlabel="false positive rate", ylabel="true positive rate")
        axes.set(xlim=(least, 1), ylim=(least / 2, 1.05))
    legend_below(figure, labelled(list(panels.values())), size=8)
    return figure


def in_turn(curves: Sequence[tuple[Points, Points]]) -> list[tuple[Points, Points]]:
    """Curves that hide none of each other: where several coincide, each has gaps (NaN) in which another is seen.

    Parameters
    ----------
    curves : sequence of two arrays
        False and true positive rates. Neither ever falls, so that curves through one point have come equally far there.

    Returns
    -------
    list of two arrays
        The same curves in many small steps.
    """
    far = np.linspace(0, 2, 1601)
    rates = np.array([[np.interp(far, false + true, rate) for rate in (false, true)] for false, true in curves])
    turn = (far / TURN).astype(int)
    found = []
    for i, (false, true) in enumerate(rates):
        same = np.isclose(rates[:, 0], false, rtol=0, atol=1e-9)  # and so is the other rate, their sum being `far`
        seen = turn % same.sum(0) == same[:i].sum(0)
        found.append((np.where(seen, false, np.nan), np.where(seen, true, np.nan)))
    return found
