"""The study of the group-privacy paper (Galli et al. 2023), personalised federated learning.

The measures that it adds: what clients leaked, counted as the paper does (n / nu a participation), over all clients
that may train, those that never did included; and the validation clients' loss where the run has settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from fedveil.grid import Outcome
from fedveil.papers import Study, Value
from fedveil.report.plots import Curve

study = Study.of(__name__)


def _participations(outcome: Outcome) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Of every client, ascending."""
    counts = outcome.summary.values["participations"]
    return np.repeat([int(k) for k in counts], [int(v) for v in counts.values()])


def _each(outcome: Outcome) -> float:
    """Leakage of one participation: n / nu, or 0 where there is no noise to count."""
    nu = float(outcome.cell.config.privacy.options["noise_multiplier"])
    return float(outcome.summary.values["dimension"]) / nu if nu else 0.0


@study.measure("leakage")
def leakage(outcomes: Sequence[Outcome], which: str) -> Value:
    """``leakage median`` or ``leakage max``, over the clients."""
    [outcome] = outcomes
    made = _participations(outcome)
    return Value(_each(outcome) * float(np.median(made) if which == "median" else made.max()))


@study.measure("settled")
def settled(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """``settled validation``: mean over the validations after which the run gave up, or the last 30."""
    losses = [float(row["validation"]) for row in outcomes[0].rows if "validation" in row]
    return Value(fmean(losses[-30:]))


@study.measure("rounds")
def rounds(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """``rounds``: how many there were."""
    return Value(float(len(outcomes[0].rows)))


@study.curve("share leaked")
def share_leaked(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """The share of clients whose leakage is at most x: the paper's figure 3 as a distribution function."""
    [outcome] = outcomes
    made, each = _participations(outcome), _each(outcome)
    x = np.arange(int(made.max()) + 1)
    return Curve((each * x).tolist(), [float((made <= k).mean()) for k in x])


@study.curve("validation")
def validation(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """The validation loss of every round."""
    rows = [row for row in outcomes[0].rows if "validation" in row]
    return Curve([float(row["round"]) for row in rows], [float(row["validation"]) for row in rows])
