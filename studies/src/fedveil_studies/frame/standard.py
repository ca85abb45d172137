"""Standard measures and curves that every study.toml may name."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from fedveil.errors import require_choice
from fedveil.evidence import LAST, last_rounds
from fedveil.learning import METRICS
from fedveil_lab.grid import Outcome
from fedveil_studies.frame.described import MeasureOf
from fedveil_studies.frame.models import outputs, test_half
from fedveil_studies.frame.plots import Curve
from fedveil_studies.frame.result import Value

GROUPS = ("metrics", "noise", "figures", "server")  # of a run's rounds
CLIMB = 4  # the first of so many parts of a run: everything climbs there
RATES = np.linspace(0, 1, 201)  # false positive rates of a ROC curve


def last(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Measure a figure's mean and deviation over the last five rounds, on pooled held-out examples."""
    over_rounds = last_rounds(outcomes[0].summary.rows, LAST)[figure]
    return Value(float(over_rounds["mean"]), float(over_rounds["deviation"]))


def final(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Measure a figure after the last round, on pooled held-out examples."""
    return Value(float(outcomes[0].summary.values["metrics"][figure]))


def tested(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Measure a figure of the last model on the server's test half."""
    return Value(float(outcomes[0].summary.values["test_metrics"].get(figure, math.nan)))


def gain(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Measure a figure of the last model minus that of the public model with which the run began."""
    public = outcomes[0].summary.values["public_model"]["test_metrics"]
    return Value(tested(outcomes, figure).value - float(public.get(figure, math.nan)))


def change(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Mean absolute change from one round to the next, the first quarter of the run left out."""
    values = [float(row["metrics"][figure]) for row in outcomes[0].rows]
    settled = values[len(values) // CLIMB :]
    if len(settled) < 2:
        return Value(math.nan)
    return Value(fmean(abs(b - a) for a, b in pairwise(settled)))


def noised(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Return sigma, distance or noise_to_clip, averaged over rounds; undefined without noise."""
    mean = outcomes[0].summary.noise(figure)
    if mean is None:
        return Value(math.nan)
    return Value(mean)


def poisoning(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Return success, recall or accuracy of a poisoning attack; if nobody acts, success is the clean rate."""
    return Value(float(outcomes[0].summary.values["malicious"][figure]))


def rounds(outcomes: Sequence[Outcome], name: str, group: str) -> Curve:
    """Return a figure of every round, from the group "metrics", "noise", "figures" (of probes) or "server"."""
    rows = [row for row in outcomes[0].rows if name in row.get(group, {})]
    return Curve([float(row["round"]) for row in rows], [float(row[group][name]) for row in rows])


def roc(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """ROC curve (one class against the rest, micro average) of the last model on the server's test half."""
    from sklearn.metrics import roc_curve  # loads for half a second, and few studies draw this

    [outcome] = outcomes
    examples = test_half(outcome.cell.config)
    scores = outputs(outcome, examples).softmax(1).numpy()
    truth = np.eye(examples.classes, dtype=bool)[examples.y.numpy()]
    false, true, _ = roc_curve(truth.ravel(), scores.ravel())
    area = outcome.summary.values["test_metrics"]["micro_auc"]
    return Curve(RATES.tolist(), np.interp(RATES, false, true).tolist(), float(area))


def at(outcomes: Sequence[Outcome], of: MeasureOf, key: str) -> Curve:
    """Return one point: a standard measure against the configuration's value of a dotted key."""
    place: Any = outcomes[0].cell.config.to_dict()
    for name in key.split("."):
        place = place[name]
    return Curve([float(place)], [MEASURES[of.measure](outcomes, of.of).value])


def require_known(where: str, one: MeasureOf) -> None:
    """Refuse a standard measure or curve of a figure that no run has."""
    if one.measure in ("last", "final", "test", "gain", "change"):
        require_choice(where, str(one.of), (*METRICS, "loss"))
    elif one.measure == "rounds":
        require_choice(where, one.given("")["group"], GROUPS)


MEASURES: Mapping[str, Callable[..., Value]] = {
    "last": last,
    "final": final,
    "test": tested,
    "gain": gain,
    "change": change,
    "mean noise": noised,
    "poisoning": poisoning,
}
CURVES: Mapping[str, Callable[..., Curve]] = {"rounds": rounds, "roc": roc, "at": at}
