"""What membership scores are worth: AUC, true positives at few false ones, balanced accuracy, a ROC on log axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from fedveil.attacks.statistics import Floats, auc, auc_interval, best_threshold, roc, runs_for_rate, true_rate_at
from fedveil.attacks.verdict import Verdict

RATES = (0.1, 0.01, 0.001)
_WORK = 2e9  # pairs times resamples of the bootstrap


def membership(
    attack: str,
    setting: str,
    members: ArrayLike,
    others: ArrayLike,
    *,
    threat: str = "",
    without_defence: float | None = None,
    rates: Sequence[float] = RATES,
    replication: str = "one record of one run",
) -> Verdict:
    """The AUC of scores with its interval, and true positive rates at low false ones.

    Parameters
    ----------
    attack, setting, threat : str
        For reports.
    members, others : array
        Scores [n] and [m]; higher means member.
    without_defence : float, optional
        AUC of the same attack without a defence; the attack is called valid where that is above .55.
    rates : sequence of float
        False positive rates. One for which fewer than ten false positives are expected is refused, in a note.
    replication : str
        What a score is of. Records of one run share its model: the interval says nothing about other runs.
    """
    inside, outside = np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)
    resamples = int(min(4000, max(200, _WORK // (len(inside) * len(outside)))))
    area = auc_interval(inside, outside, resamples=resamples)
    details, notes = {"balanced accuracy": _balanced(inside, outside)}, []
    for alpha in rates:
        found = true_rate_at(inside, outside, alpha)
        if found is None:
            notes.append(f"TPR at FPR {alpha:g} needs {runs_for_rate(alpha)} non-members; there are {len(outside)}")
        else:
            details |= {f"TPR at FPR {alpha:g}": found.point, f"TPR at FPR {alpha:g}, low": found.low}
            details[f"TPR at FPR {alpha:g}, high"] = found.high
    return Verdict(
        attack=attack,
        setting=setting,
        figure="AUC",
        point=area.point,
        low=area.low,
        high=area.high,
        n=min(len(inside), len(outside)),
        replication=replication,
        without_defence=without_defence,
        valid=None if without_defence is None else without_defence > 0.55,
        threat=threat,
        details=details,
        notes=notes,
    )


def log_roc(members: ArrayLike, others: ArrayLike, points: int = 100) -> tuple[Floats, Floats]:
    """False and true positive rates for logarithmic axes.

    The false ones go from 10 / m to 1 in equal ratios: below that, fewer than ten non-members decide.
    """
    false, true = roc(members, others)
    least = min(1.0, 10 / np.size(others))
    grid = np.geomspace(least, 1.0, points)
    at = np.searchsorted(false, grid, side="right") - 1  # the step: no rate between two thresholds is reached
    return grid, true[at]


def figures_of(scores: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, dict[str, Any]]:
    """Plain values of attacks by name, whose scores [n] of members and [m] of others are given.

    Returns
    -------
    dict
        ``figures``: the AUC. ``rates``: true positive rates at those of `RATES` at which ten false positives are
        expected. ``others``: how many non-members there are. ``roc``: points of `log_roc`.
    """
    found: dict[str, dict[str, Any]] = {"figures": {}, "rates": {}, "others": {}, "roc": {}}
    for name, pair in scores.items():
        inside, outside = (one.numpy() for one in pair)
        found["figures"][name] = auc(inside, outside)
        rates = {f"{alpha:g}": true_rate_at(inside, outside, alpha) for alpha in RATES}
        found["rates"][name] = {alpha: rate.point for alpha, rate in rates.items() if rate is not None}
        found["others"][name] = len(outside)
        found["roc"][name] = [axis.tolist() for axis in log_roc(inside, outside, 40)]
    return found


def _balanced(inside: Floats, outside: Floats) -> float:
    """Mean of both rates on one half, at the threshold of the other."""
    a, b = inside[::2], outside[::2]
    c, d = inside[1::2], outside[1::2]
    if min(len(a), len(b), len(c), len(d)) < 2:
        return float("nan")
    cut = best_threshold(a, b)
    return float(((c >= cut).mean() + (d < cut).mean()) / 2)
