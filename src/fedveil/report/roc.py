"""ROC curves of membership on logarithmic axes, where few false positives can be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.report.canvas import COLOURS, keep, new_figure
from fedveil.report.labels import labelled, legend_below

if TYPE_CHECKING:
    from fedveil.audit.membership import MembershipAudit


def draw_roc(found: MembershipAudit, file: Path) -> Path | None:
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
    return keep(figure, file, 120)
