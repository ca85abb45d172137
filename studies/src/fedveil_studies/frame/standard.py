"""Measures and curves that every study may name in its study.toml."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from fedveil.errors import require_choice
from fedveil.grid import Outcome
from fedveil.learning import METRICS
from fedveil.runs.summary import LAST, last_rounds
from fedveil_studies.frame.models import outputs, test_half
from fedveil_studies.frame.plots import Curve
from fedveil_studies.frame.result import Value

GROUPS = ("metrics", "noise", "figures", "server")  # of a run's rounds
CLIMB = 4  # the first of so many parts of a run: everything climbs there
RATES = np.linspace(0, 1, 201)  # false positive rates of a ROC curve


def last(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``last FIGURE``: mean and deviation over the last five rounds, on the clients' pooled held-out examples."""
    found = last_rounds(outcomes[0].summary.rows, LAST)[figure]
    return Value(float(found["mean"]), float(found["deviation"]))


def final(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``final FIGURE``: after the last round, on the clients' pooled held-out examples."""
    return Value(float(outcomes[0].summary.values["metrics"][figure]))


def tested(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``test FIGURE``: of the last model, on the server's test half."""
    return Value(float(outcomes[0].summary.values["test_metrics"].get(figure, math.nan)))


def gain(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``gain FIGURE``: the same less that of the public model, of the same split, with which the run began."""
    public = outcomes[0].summary.values["public_model"]["test_metrics"]
    return Value(tested(outcomes, figure).value - float(public.get(figure, math.nan)))


def change(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``change FIGURE``: mean absolute change from one round to the next, the first quarter of the run left out."""
    values = series(outcomes[0], "metrics", figure)
    settled = values[len(values) // CLIMB :]
    return Value(fmean(abs(b - a) for a, b in pairwise(settled)) if len(settled) > 1 else math.nan)


def noised(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``mean noise FIGURE``: sigma, distance or noise_to_clip, mean over the rounds; undefined where there is none."""
    found = outcomes[0].summary.noise(figure)
    return Value(math.nan if found is None else found)


def poisoning(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``poisoning success``, ``recall`` or ``accuracy``; in a run in which nobody acts, success is the clean rate."""
    return Value(float(outcomes[0].summary.values["malicious"][figure]))


def rounds(outcomes: Sequence[Outcome], argument: str) -> Curve:
    """``rounds GROUP NAME``: of every round; the group is "metrics", "noise", "figures" (of probes) or "server"."""
    group, _, name = argument.partition(" ")
    rows = [row for row in outcomes[0].rows if name in row.get(group, {})]
    return Curve([float(row["round"]) for row in rows], [float(row[group][name]) for row in rows])


def roc(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """``roc``: one class against the rest, micro average, of the last model on the server's test half."""
    from sklearn.metrics import roc_curve  # loads for half a second, and few studies draw this

    [outcome] = outcomes
    examples = test_half(outcome.cell.config)
    scores = outputs(outcome, examples).softmax(1).numpy()
    truth = np.eye(examples.classes, dtype=bool)[examples.y.numpy()]
    false, true, _ = roc_curve(truth.ravel(), scores.ravel())
    area = outcome.summary.values["test_metrics"]["auc"]
    return Curve(RATES.tolist(), np.interp(RATES, false, true).tolist(), float(area))


def at(outcomes: Sequence[Outcome], argument: str) -> Curve:
    """``at KEY MEASURE``: one point, a measure of this module above the configuration's value of a dotted key."""
    key, kind, figure = argument.split(" ", 2)
    place: Any = outcomes[0].cell.config.to_dict()
    for name in key.split("."):
        place = place[name]
    return Curve([float(place)], [MEASURES[kind](outcomes, figure).value])


def series(outcome: Outcome, group: str, name: str) -> list[float]:
    """A figure of every round."""
    return [float(row[group][name]) for row in outcome.rows]


def require_known(where: str, name: str, argument: str) -> None:
    """Refuse an argument of a standard measure or curve that no run has."""
    if name in ("last", "final", "test", "gain", "change"):
        require_choice(where, argument, (*METRICS, "loss"))
    elif name == "rounds":
        require_choice(where, argument.partition(" ")[0], GROUPS)


MEASURES: Mapping[str, Callable[[Sequence[Outcome], str], Value]] = {
    "last": last,
    "final": final,
    "test": tested,
    "gain": gain,
    "change": change,
    "mean noise": noised,
    "poisoning": poisoning,
}
CURVES: Mapping[str, Callable[[Sequence[Outcome], str], Curve]] = {"rounds": rounds, "roc": roc, "at": at}
