"""From the scores of reconstructions to a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedveil.attacks.inversion.knowledge import Inversion
from fedveil.attacks.inversion.metrics import SUCCESS, mean_scores
from fedveil.attacks.observation import ThreatModel
from fedveil.attacks.statistics import CONFIDENCE, rate
from fedveil.attacks.verdict import Verdict
from fedveil.errors import FieldError, require_choice

FIGURES = {
    "mse": "MSE",
    "success": f"success rate (MSE below {SUCCESS:g} of the squared range)",
    "identified": "identification rate",
    "labels": "share of labels recovered",
}
RESAMPLES = 2000


def judge_inversion(
    attack: Inversion,
    setting: str,
    units: Sequence[Mapping[str, float]],
    *,
    threat: ThreatModel,
    undefended: Sequence[Mapping[str, float]] | None = None,
    figure: str = "mse",
    replication: str = "client",
    seed: int = 0,
) -> Verdict:
    """Judge one attack against one setting.

    Parameters
    ----------
    attack : Inversion
        Which.
    setting : str
        Against what.
    units : sequence of mapping
        `scores` of each release; releases are independent of each other.
    threat : ThreatModel
        Who attacks.
    undefended : sequence of mapping, optional
        The same attack on the same examples where no defence stood. It is valid if it identifies at least half of the
        images there, with less than half of the mean image's error.
    figure : {"mse", "success", "identified", "labels"}
        What is judged; the others are details.
    replication : str
        What a unit is: ``"image"`` where every release is of one image, otherwise ``"client"``.
    seed : int
        Of the bootstrap.

    Raises
    ------
    FieldError
        Without a unit, or for an unknown figure.
    """
    require_choice("figure", figure, FIGURES)
    if not units or (undefended is not None and not undefended):
        raise FieldError("units", 0, "at least one release is needed")
    point, low, high = _interval([u[figure] for u in units], figure != "mse", seed)
    details = mean_scores(list(units))
    without = None if undefended is None else mean_scores(list(undefended))
    notes = [] if "perceptual" in details else ["LPIPS: not available without weights of your own"]
    if without is not None:
        details |= {f"{name} without defence": without[name] for name in without}
    return Verdict(
        attack=attack.name,
        setting=setting,
        figure=FIGURES[figure],
        point=point,
        low=low,
        high=high,
        n=len(units),
        replication=replication,
        without_defence=None if without is None else without[figure],
        valid=None if without is None else _works(without),
        threat=threat.who,
        details=details,
        notes=notes,
    )


def _works(without: Mapping[str, float]) -> bool:
    """Whether an attack succeeds where there is no defence."""
    return without["identified"] >= 0.5 and without["mse"] < without["mean_image"] / 2


def _interval(values: Sequence[float], share: bool, seed: int) -> tuple[float, float, float]:
    """Mean and 95% interval: exact for rates of all or nothing, otherwise a percentile bootstrap over the units."""
    found = np.asarray(values, dtype=np.float64)
    point = float(found.mean())
    if share and bool(np.isin(found, (0.0, 1.0)).all()):
        exact = rate(round(float(found.sum())), len(found))
        return exact.point, exact.low, exact.high
    draws = np.random.default_rng(seed).choice(found, (RESAMPLES, len(found))).mean(1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return point, min(float(low), point), max(float(high), point)
